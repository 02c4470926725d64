//! Lists the suites and programs, as data.

use super::preload_command::PreloadCommand;

/// A test module of CPython.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// Whether the suite makes connections that must be upgraded.
    pub(crate) connects: bool,
    /// Parts of the names of the cases that the quick form runs; empty if `fable`'s quick form runs
    /// none.
    pub(crate) quick: &'static [&'static str],
    /// Parts of the names of the cases that the full form runs; empty for all.
    pub(crate) full: &'static [&'static str],
    /// Whether "localhost" stays 127.0.0.1 under a library that leaves that to the kernel.
    pub(crate) needs_loopback: bool,
    /// Names of cases that hang even without a library.
    pub(crate) left_out: &'static [&'static str],
}

const fn suite(name: &'static str, quick: &'static [&'static str]) -> Suite {
    Suite { name, connects: true, quick, full: &[], needs_loopback: false, left_out: &[] }
}

/// Makes a suite without connections that can be upgraded.
const fn local(name: &'static str, quick: &'static [&'static str]) -> Suite {
    Suite { connects: false, ..suite(name, quick) }
}

/// Makes a suite whose connections join two processes, of which only one can have a stack's
/// address.
const fn multiprocessing(name: &'static str, quick: &'static [&'static str]) -> Suite {
    Suite { full: MULTIPROCESSING, needs_loopback: true, ..suite(name, quick) }
}

/// The parts of multiprocessing that use sockets or pass descriptors; the rest is about locks,
/// queues and shared memory, and takes minutes.
const MULTIPROCESSING: &[&str] = &[
    "Connection",
    "Listener",
    "PicklingConnections",
    "Poll",
    "TestManagerRestart",
    "TestMyManager",
    "TestRemoteManager",
    "TestSyncManagerTypes",
    "Challenge",
    "OtherTest",
    "TestWait",
    "InvalidHandle",
    "StdinBadfiledescriptor",
];

/// A listener's client may have ended before it is accepted; its connection is then not upgraded. A
/// manager's connection always is.
const MULTIPROCESSING_QUICK: &[&str] = &["TestListenerClient", "TestRemoteManager"];

const SOCKET_QUICK: &[&str] = &["BasicTCP", "BufferIO", "NonBlockingTCP", "SendfileUsingSend"];

/// Parts of the names that the quick form runs of both lists under `mtcp run`: waiting, servers
/// with many clients, TLS.
const MTCP_QUICK: &[&str] =
    &["test_epoll", "test_socketserver", "test_asyncore", "test_ssl", "nginx", "redis"];

/// Returns whether the quick form runs this suite or program under a library.
pub(crate) fn is_quick(name: &str, preload_command: PreloadCommand) -> bool {
    match preload_command {
        PreloadCommand::Fable => {
            SUITES.iter().any(|suite| suite.name == name && !suite.quick.is_empty())
                || PROGRAMS.iter().any(|program| program.name == name && program.quick)
        }
        PreloadCommand::Mtcp => MTCP_QUICK.contains(&name),
    }
}

/// All suites.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        left_out: &["ThreadedVSOCKSocketStreamTest.testStream"],
        ..suite("test_socket", SOCKET_QUICK)
    },
    local("test_selectors", &[]),
    local("test_select", &["SelectTestCase"]),
    local("test_poll", &[]),
    suite("test_epoll", &["TestEPoll"]),
    suite("test_socketserver", &["SocketServerTest.test_TCP", "MiscTestCase"]),
    suite("test_asyncore", &["TestAPI_UseIPv4Select"]),
    suite("test_asynchat", &["TestAsynchat."]),
    Suite {
        needs_loopback: true,
        ..suite(
            "test_asyncio",
            &[
                "test_streams",
                "test_sendfile.EPollEventLoopTests",
                "test_server.SelectorStartServer",
            ],
        )
    },
    suite("test_httplib", &["TunnelTests", "HTTPSTest"]),
    suite("test_httpservers", &["BaseHTTPServerTestCase", "CGIHTTPServer"]),
    suite("test_ssl", &["ThreadedTests.test_echo", "ThreadedTests.test_asyncore_server"]),
    suite("test_ftplib", &["TestFTPClass."]),
    suite("test_poplib", &["TestPOP3Class."]),
    suite("test_imaplib", &[]),
    suite("test_smtplib", &[]),
    suite("test_telnetlib", &[]),
    Suite { needs_loopback: true, ..suite("test_urllib2_localnet", &["BasicAuthTests"]) },
    suite("test_xmlrpc", &["SimpleServerTestCase"]),
    multiprocessing("test_multiprocessing_fork", MULTIPROCESSING_QUICK),
    multiprocessing("test_multiprocessing_spawn", &[]),
    multiprocessing("test_multiprocessing_forkserver", &[]),
    local("test_subprocess", &[]),
    local("test_signal", &[]),
    local("test_fork1", &[]),
    suite("test_os", &["TestSendfile"]),
];

/// A server and its clients; `programs/NAME.sh` has the cases.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Whether its connections must be upgraded.
    pub(crate) connects: bool,
    /// Whether `fable`'s quick form runs it (with its small cases, and both ends under the
    /// library).
    pub(crate) quick: bool,
}

const fn program(name: &'static str, quick: bool) -> Program {
    Program { name, connects: true, quick }
}

/// All programs.
pub(crate) const PROGRAMS: &[Program] = &[
    program("apache-event", false),
    program("apache-prefork", false),
    program("git", false),
    // A Go program, which must run plainly.
    Program { connects: false, ..program("go", true) },
    program("haproxy", false),
    program("iperf3", false),
    program("java", false),
    program("memcached", true),
    program("ncat", false),
    program("nginx", true),
    program("node", true),
    program("openssl", false),
    program("postgres", false),
    program("redis", true),
    program("rsync", false),
    program("socat", true),
    program("ssh", false),
    program("uvicorn", false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quick_is_in_the_lists() {
        let suites = SUITES.iter().filter(|suite| !suite.quick.is_empty()).map(|suite| suite.name);
        let names: Vec<&str> = suites.chain(PROGRAMS.iter().map(|program| program.name)).collect();
        for name in MTCP_QUICK {
            assert!(names.contains(name) && is_quick(name, PreloadCommand::Mtcp), "{name}");
        }
        assert!(
            is_quick("socat", PreloadCommand::Fable) && !is_quick("ssh", PreloadCommand::Fable)
        );
        assert!(
            is_quick("test_xmlrpc", PreloadCommand::Fable)
                && !is_quick("test_poll", PreloadCommand::Fable)
        );
    }
}
