//! Starts programs under a preload library.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A preload library with its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PreloadCommand {
    /// `fable run`: connections of one host through shared memory.
    Fable,
    /// `mtcp run`: connections through a TCP stack in the program.
    Mtcp,
}

/// Which ends of a connection run under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Neither,
    Both,
    Server,
    Client,
}

/// The settings of a stack on a TAP device of the namespace, whose other end is the kernel.
const MTCP_SETTINGS: &str = "\
[device]
kind = \"tap\"
interface = \"mtcp0\"
[address]
list = [\"10.10.0.2/24\"]
[[route]]
to = \"0.0.0.0/0\"
via = \"10.10.0.1\"
";

/// Shell commands that configure the kernel's end of that device as soon as the program that owns
/// it has created it. The device is created in advance for programs that do not wait.
const MTCP_NETWORK: &str = "ip tuntap add mtcp0 mode tap && \
     ip address add 10.10.0.1/24 dev mtcp0 && ip link set mtcp0 up";

/// A built library, and its command.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub(crate) preload_command: PreloadCommand,
    command: PathBuf,
}

impl Ends {
    /// Returns whether the server runs under the library.
    pub(crate) fn server(self) -> bool {
        matches!(self, Ends::Both | Ends::Server)
    }

    /// Returns whether the client runs under the library.
    pub(crate) fn client(self) -> bool {
        matches!(self, Ends::Both | Ends::Client)
    }

    /// Returns the word in the name of a case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ends::Neither => "plain",
            Ends::Both => "both",
            Ends::Server => "server",
            Ends::Client => "client",
        }
    }
}

impl PreloadCommand {
    /// Returns the name of the command and of the list.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PreloadCommand::Fable => "fable",
            PreloadCommand::Mtcp => "mtcp",
        }
    }

    /// Returns the command and the library.
    fn products(self) -> [&'static str; 2] {
        match self {
            PreloadCommand::Fable => ["fable", "libfable_preload.so"],
            PreloadCommand::Mtcp => ["mtcp", "libmtcp_preload.so"],
        }
    }

    /// Returns the ends that can run under the library. Two stacks in one namespace would need two
    /// networks.
    pub(crate) fn placements(self) -> &'static [Ends] {
        match self {
            PreloadCommand::Fable => &[Ends::Both, Ends::Server, Ends::Client],
            PreloadCommand::Mtcp => &[Ends::Server, Ends::Client],
        }
    }

    /// Returns whether connections with both ends under the library are counted as upgraded.
    pub(crate) fn counts_upgrades(self) -> bool {
        self == PreloadCommand::Fable
    }

    /// Shell commands that are run in a new network namespace before anything else.
    pub(crate) fn network(self) -> &'static str {
        match self {
            PreloadCommand::Fable => "true",
            PreloadCommand::Mtcp => MTCP_NETWORK,
        }
    }

    /// Returns the address at which a server listens.
    pub(crate) fn address(self, ends: Ends) -> &'static str {
        match (self, ends) {
            (PreloadCommand::Mtcp, Ends::Server) => "10.10.0.2",
            (PreloadCommand::Mtcp, Ends::Client) => "10.10.0.1",
            _ => "127.0.0.1",
        }
    }

    /// Returns the shell commands that redirect "localhost" in Python's suites, which most of their
    /// connections use for both ends: a stack leaves loopback to the kernel. The kernel has the
    /// stack's address too, for UDP, which a stack does not support.
    pub(crate) fn localhost(self, ends: Ends) -> &'static str {
        match (self, ends) {
            (PreloadCommand::Fable, _) => "true",
            (PreloadCommand::Mtcp, Ends::Neither) => {
                "echo 10.10.0.1 localhost > hosts && mount --bind hosts /etc/hosts"
            }
            (PreloadCommand::Mtcp, _) => {
                "ip address add 10.10.0.2/32 dev lo && \
                 echo 10.10.0.2 localhost > hosts && mount --bind hosts /etc/hosts"
            }
        }
    }

    /// Returns command and library of the release build, because the time-outs of foreign tests are
    /// meant for optimised programs.
    pub(crate) fn launcher(self) -> io::Result<Launcher> {
        let [command, library] = self.products();
        crate::built(format!("release/{library}"))?;
        let command = crate::built(format!("release/{command}"))?;
        Ok(Launcher { preload_command: self, command })
    }
}

impl Launcher {
    /// Returns the words that precede a program to run it under the library. Their files and the
    /// statistics are in `directory`.
    pub(crate) fn words(&self, directory: &Path) -> io::Result<Vec<String>> {
        let command = self.command.display();
        let words = match self.preload_command {
            PreloadCommand::Fable => {
                let statistics = Launcher::statistics(directory);
                format!("{command} run --statistics={}", statistics.display())
            }
            PreloadCommand::Mtcp => {
                let settings = directory.join("mtcp.toml");
                fs::write(&settings, MTCP_SETTINGS)?;
                format!("{command} run --config {}", settings.display())
            }
        };
        Ok(words.split(' ').map(String::from).collect())
    }

    fn statistics(directory: &Path) -> PathBuf {
        directory.join("statistics")
    }

    /// Returns the number of upgraded ends of connections in all processes of this directory.
    pub(crate) fn upgraded(directory: &Path) -> u64 {
        let text = fs::read_to_string(Launcher::statistics(directory)).unwrap_or_default();
        sum(&text, "connected") + sum(&text, "accepted")
    }
}

/// Returns the sum of one counter over all processes.
fn sum(statistics: &str, name: &str) -> u64 {
    let words: Vec<&str> = statistics.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == name);
    pairs.filter_map(|pair| pair[1].parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upgraded_ends_of_all_processes_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Launcher::upgraded(directory.path()), 0);
        let lines = "fable: process 3: connected 33 accepted 34 sleeps 839\n\
                     fable: process 4: not_taken 2\nfable: process 5: accepted 1 doorbells 7\n";
        fs::write(Launcher::statistics(directory.path()), lines).unwrap();
        assert_eq!(Launcher::upgraded(directory.path()), 68);
    }
}
