//! Brings a machine to the point where every test can run.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{means, services};

/// A package of Debian and its relatives, and how to tell that it, or another distribution's
/// equivalent, is there.
struct Package {
    name: &'static str,
    why: &'static str,
    probe: Probe,
}

enum Probe {
    /// A program on the path.
    Program(&'static str),
    /// A file at a fixed place.
    File(&'static str),
    /// A command that succeeds, where neither would tell.
    Command(&'static [&'static str]),
}

const PACKAGES: &[Package] = &[
    Package { name: "gcc", why: "rustc links with cc", probe: Probe::Program("cc") },
    Package {
        name: "libc6-dev",
        why: "linking needs the C library's start files and headers",
        probe: Probe::File("/usr/include/stdio.h"),
    },
    Package {
        name: "strace",
        why: "a test compares the channel's system-call counter with the kernel's view",
        probe: Probe::Program("strace"),
    },
    Package {
        name: "socat",
        why: "tests of the README's server use it as a client",
        probe: Probe::Program("socat"),
    },
    Package {
        name: "ncat",
        why: "tests of the README's server use it as a client",
        probe: Probe::Program("ncat"),
    },
    Package {
        name: "iproute2",
        why: "network namespaces stand in for hosts in a test",
        probe: Probe::Program("ip"),
    },
    Package {
        name: "nftables",
        why: "tests lose packets of user-level TCP with it",
        probe: Probe::Program("nft"),
    },
    Package {
        name: "openmpi-bin",
        why: "iobench runs over several hosts under mpirun",
        probe: Probe::Program("mpirun"),
    },
    Package {
        name: "libopenmpi-dev",
        why: "iobench's feature `mpi` is compiled against it",
        probe: Probe::Command(&["mpicc", "-fsyntax-only", "-include", "mpi.h", "-xc", "/dev/null"]),
    },
    Package {
        name: "clang",
        why: "the crate `mpi` reads the MPI headers with libclang",
        probe: Probe::Program("clang"),
    },
    Package {
        name: "libuv1-dev",
        why: "iobench-peers serves on libuv, too, where it is built with that feature",
        probe: Probe::File("/usr/include/uv.h"),
    },
    Package {
        name: "libzmq3-dev",
        why: "iobench-peers measures ZeroMQ for iobench ipc where it is built with that feature",
        probe: Probe::File("/usr/include/zmq.h"),
    },
    Package {
        name: "pkg-config",
        why: "the build finds ZeroMQ with it",
        probe: Probe::Program("pkg-config"),
    },
    Package {
        name: "g++",
        why: "a test includes the C header from C++",
        probe: Probe::Program("g++"),
    },
    Package {
        name: "valgrind",
        why: "tests run C programs beneath it",
        probe: Probe::Program("valgrind"),
    },
    Package {
        name: "chromium",
        why: "tests open the page of iobench report as a reader would",
        probe: Probe::Program("chromium"),
    },
    Package {
        name: "groff-base",
        why: "a test formats the manual pages",
        probe: Probe::Program("groff"),
    },
    Package {
        name: "dpkg-dev",
        why: "the sources of nginx and memcached are unpacked with dpkg-source",
        probe: Probe::Program("dpkg-source"),
    },
    Package { name: "make", why: "nginx is built with make", probe: Probe::Program("make") },
    Package {
        name: "nginx",
        why: "the event module is built for it and tested with it",
        probe: Probe::Program("nginx"),
    },
    Package {
        name: "libnginx-mod-stream",
        why: "tests serve UDP and TCP streams with it, beside the event module",
        probe: Probe::File("/usr/lib/nginx/modules/ngx_stream_module.so"),
    },
    Package {
        name: "libpcre2-dev",
        why: "nginx's modules are compiled against it",
        probe: Probe::File("/usr/include/pcre2.h"),
    },
    Package {
        name: "zlib1g-dev",
        why: "nginx's modules are compiled against it",
        probe: Probe::File("/usr/include/zlib.h"),
    },
    Package {
        name: "libssl-dev",
        why: "nginx's modules are compiled against it",
        probe: Probe::File("/usr/include/openssl/ssl.h"),
    },
    Package {
        name: "libevent-dev",
        why: "memcached is compiled against it",
        probe: Probe::File("/usr/include/event.h"),
    },
    Package {
        name: "libsasl2-dev",
        why: "memcached is compiled against it",
        probe: Probe::File("/usr/include/sasl/sasl.h"),
    },
    Package {
        name: "libio-socket-ssl-perl",
        why: "memcached's own tests of TLS are written with it",
        probe: Probe::Command(&["perl", "-MIO::Socket::SSL", "-e", "1"]),
    },
    Package {
        name: "perl",
        why: "memcached's own tests are run with prove",
        probe: Probe::Program("prove"),
    },
    Package {
        name: "lighttpd",
        why: "a test runs it on the user-level stack; its own service is left alone",
        probe: Probe::Program("lighttpd"),
    },
    Package {
        name: "apache2-utils",
        why: "tests of the user-level stack load lighttpd with ab",
        probe: Probe::Program("ab"),
    },
    Package {
        name: "iperf3",
        why: "a test runs it on the user-level stack and against it",
        probe: Probe::Program("iperf3"),
    },
    Package { name: "curl", why: "tests talk to nginx with it", probe: Probe::Program("curl") },
    Package {
        name: "openssl",
        why: "a test makes a certificate for nginx with it",
        probe: Probe::Program("openssl"),
    },
    Package {
        name: "memcached",
        why: "a test loads it with iobench apps; its own service, if it is started, is left alone",
        probe: Probe::Program("memcached"),
    },
    Package {
        name: "wrk",
        why: "a test loads nginx with it while it is reloaded",
        probe: Probe::Program("wrk"),
    },
    Package {
        name: "etcd-server",
        why: "hosts share their names through it in a test; its own service is left alone",
        probe: Probe::Program("etcd"),
    },
    Package {
        name: "etcd-client",
        why: "a test compacts etcd's history with etcdctl",
        probe: Probe::Program("etcdctl"),
    },
    Package {
        name: "redis-server",
        why: "a test runs it, unmodified, over flows; its own service is left alone",
        probe: Probe::Program("redis-server"),
    },
    Package {
        name: "redis-tools",
        why: "a test loads redis with redis-benchmark",
        probe: Probe::Program("redis-benchmark"),
    },
    Package {
        name: "libmemcached-tools",
        why: "a test loads memcached with memcslap",
        probe: Probe::Program("memcslap"),
    },
    Package {
        name: "postgresql",
        why: "a test runs it and pgbench, unmodified, over flows; no cluster of its own is used",
        probe: Probe::Command(&["sh", "-c", "ls /usr/lib/postgresql/*/bin/postgres"]),
    },
    Package {
        name: "nghttp2-client",
        why: "a test speaks HTTP/2 to nginx with h2load",
        probe: Probe::Program("h2load"),
    },
    Package {
        name: "libpython3.11-testsuite",
        why: "its tests run under the preload libraries",
        // Of another version nothing is known, and its package has another name.
        probe: Probe::Command(&[
            "/usr/bin/python3",
            "-c",
            "import sys; sys.version_info[:2] != (3, 11) or __import__('test.test_socket')",
        ]),
    },
    Package {
        name: "nodejs",
        why: "a test runs it as server and client under the preload libraries",
        probe: Probe::Program("node"),
    },
    Package {
        name: "default-jdk-headless",
        why: "a test runs a server and a client in Java under the preload libraries",
        probe: Probe::Program("javac"),
    },
    Package {
        name: "uvicorn",
        why: "a test runs it under the preload libraries",
        probe: Probe::Command(&["/usr/bin/python3", "-c", "import uvicorn"]),
    },
    Package {
        name: "apache2-bin",
        why: "a test runs it under the preload libraries",
        probe: Probe::Program("apache2"),
    },
    Package {
        name: "haproxy",
        why: "a test runs it under the preload libraries; its own service is left alone",
        probe: Probe::Program("haproxy"),
    },
    Package {
        name: "rsync",
        why: "a test runs it under the preload libraries; its own service is left alone",
        probe: Probe::Program("rsync"),
    },
    Package {
        name: "git",
        why: "a test runs its daemon under the preload libraries",
        probe: Probe::Program("git"),
    },
    Package {
        name: "openssh-client",
        why: "a test runs it under the preload libraries",
        probe: Probe::Program("ssh"),
    },
    Package {
        name: "openssh-server",
        why: "a test runs sshd under the preload libraries; its own service is left alone",
        probe: Probe::Program("sshd"),
    },
];

/// What building nginx's module takes.
pub(crate) const NGINX: &[&str] =
    &["gcc", "libc6-dev", "dpkg-dev", "make", "nginx", "libpcre2-dev", "zlib1g-dev", "libssl-dev"];
/// What scenarios and tests of nginx talk to it with, and a module that they load.
pub(crate) const NGINX_CLIENTS: &[&str] =
    &["curl", "openssl", "nghttp2-client", "libnginx-mod-stream"];
/// What building memcached takes.
pub(crate) const MEMCACHED: &[&str] =
    &["gcc", "libc6-dev", "dpkg-dev", "make", "libevent-dev", "libsasl2-dev"];
/// And its own tests.
pub(crate) const MEMCACHED_SUITE: &[&str] = &["perl", "libio-socket-ssl-perl"];
/// What `cargo xtask programs` runs under a preload library.
pub(crate) const PROGRAMS: &[&str] = &[
    "iproute2",
    "libpython3.11-testsuite",
    "nginx",
    "wrk",
    "redis-server",
    "redis-tools",
    "memcached",
    "libmemcached-tools",
    "postgresql",
    "nodejs",
    "socat",
    "ncat",
    "curl",
    "openssl",
    "iperf3",
    "rsync",
    "git",
    "haproxy",
    "apache2-bin",
    "apache2-utils",
    "default-jdk-headless",
    "etcd-server",
    "uvicorn",
    "openssh-client",
    "openssh-server",
];

/// A part of the Rust toolchain, and the cargo command that it brings.
struct Component {
    name: &'static str,
    subcommand: &'static str,
}

const COMPONENTS: &[Component] = &[
    Component { name: "rustfmt", subcommand: "fmt" },
    Component { name: "clippy", subcommand: "clippy" },
];

/// Installs what is missing, and says what and why.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let packages = install_packages(&Host::here(), |_| true);
    packages.and_then(|()| add_components(root))
}

/// Installs what is missing of the packages that a command needs, and nothing else.
pub(crate) fn run_for(packages: &[&str]) -> Result<(), String> {
    install_packages(&Host::here(), |package| packages.contains(&package.name))
}

/// The same as a step of a run; gives the packages that are still missing. A user who cannot
/// install them is told the command, and what needs none of them runs all the same.
pub(crate) fn prepare(root: &Path) -> Result<Vec<&'static str>, String> {
    let host = Host::here();
    if let Err(error) = install_packages(&host, |_| true) {
        if host.root {
            return Err(error);
        }
        println!("setup: {error}");
        println!("setup: going on without them; what needs one of them is skipped");
    }
    add_components(root)?;
    Ok(missing())
}

/// The packages that are missing.
pub(crate) fn missing() -> Vec<&'static str> {
    let missing = PACKAGES.iter().filter(|package| !present(&package.probe));
    missing.map(|package| package.name).collect()
}

/// Whether this is a package that the set-up installs.
#[cfg(test)]
pub(crate) fn knows(package: &str) -> bool {
    PACKAGES.iter().any(|known| known.name == package)
}

fn install_packages(host: &Host, wanted: impl Fn(&Package) -> bool) -> Result<(), String> {
    let packages = PACKAGES.iter().filter(|package| wanted(package));
    let packages: Vec<&Package> = packages.filter(|package| !present(&package.probe)).collect();
    if packages.is_empty() {
        println!("setup: no package is missing");
        return Ok(());
    }
    for package in &packages {
        println!("setup: {} is missing: {}", package.name, package.why);
    }
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    let before = services::enabled(Path::new("/"));
    install(&names, host)?.iter().try_for_each(|line| execute(line))?;
    disable_services(host, &before)?;
    match packages.iter().find(|package| !present(&package.probe)) {
        None => Ok(()),
        Some(Package { name, why, .. }) => {
            Err(format!("{name} was installed but still cannot be found ({why})"))
        }
    }
}

/// Takes out what an installation has enabled for the next boot.
fn disable_services(host: &Host, before: &BTreeSet<PathBuf>) -> Result<(), String> {
    let (commands, names) = services::disabling(before, &services::enabled(Path::new("/")));
    for command in &commands {
        let words = command.iter().map(String::as_str);
        execute(&privilege(host).iter().copied().chain(words).collect::<Vec<_>>())?;
    }
    if !names.is_empty() {
        let names: Vec<String> = names.into_iter().collect();
        println!("setup: not started at boot, as before: {}", names.join(", "));
    }
    Ok(())
}

fn add_components(root: &Path) -> Result<(), String> {
    let components: Vec<&Component> =
        COMPONENTS.iter().filter(|c| !answers(root, c.subcommand)).collect();
    if components.is_empty() { Ok(()) } else { add(&components) }
}

fn add(components: &[&Component]) -> Result<(), String> {
    let names: Vec<&str> = components.iter().map(|component| component.name).collect();
    println!("setup: the toolchain lacks {}", names.join(" and "));
    if !on_path("rustup") {
        return Err(format!("there is no rustup; install {} by hand", names.join(" and ")));
    }
    execute(&[&["rustup", "component", "add"], names.as_slice()].concat())
}

/// What decides how packages are installed.
struct Host {
    apt: bool,
    root: bool,
    sudo: bool,
    /// Whether somebody is there to type a password.
    terminal: bool,
}

impl Host {
    fn here() -> Host {
        Host {
            apt: on_path("apt-get"),
            root: means::is_root(),
            sudo: on_path("sudo"),
            terminal: io::stdin().is_terminal(),
        }
    }
}

/// The commands that install the packages, or what a person has to do instead.
fn install<'a>(names: &[&'a str], host: &Host) -> Result<Vec<Vec<&'a str>>, String> {
    let wanted = names.join(" ");
    if !host.apt {
        return Err(format!(
            "there is no apt-get; install by hand what this system calls {wanted}"
        ));
    }
    if !host.root && !host.sudo {
        return Err(format!(
            "installing needs root and there is no sudo; as root: apt-get install {wanted}"
        ));
    }
    // Another apt may hold the lock on a machine that has just started.
    let apt = [
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        // Packages' own services are not started, see systemctl(1) and invoke-rc.d(8).
        "SYSTEMD_OFFLINE=1",
        "RUNLEVEL=1",
        "apt-get",
        "-o",
        "DPkg::Lock::Timeout=120",
    ];
    let prefix = [privilege(host), &apt].concat();
    let install = ["install", "-y", "--no-install-recommends"];
    Ok(vec![
        [prefix.as_slice(), &["update"]].concat(),
        [prefix.as_slice(), &install, names].concat(),
    ])
}

/// The words before a command that needs root.
fn privilege(host: &Host) -> &'static [&'static str] {
    match host {
        Host { root: true, .. } => &[],
        Host { terminal: true, .. } => &["sudo"],
        _ => &["sudo", "--non-interactive"],
    }
}

fn execute(line: &[&str]) -> Result<(), String> {
    let shown = line.join(" ");
    println!("setup: {shown}");
    let [program, arguments @ ..] = line else { return Ok(()) };
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` ended with {status}; its output says why")),
        Err(error) => Err(format!("cannot run `{shown}`: {error}")),
    }
}

fn present(probe: &Probe) -> bool {
    match probe {
        Probe::Program(name) => on_path(name),
        Probe::File(path) => Path::new(path).exists(),
        Probe::Command(line) => succeeds(line),
    }
}

fn succeeds(line: &[&str]) -> bool {
    let [program, arguments @ ..] = line else { return false };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn on_path(program: &str) -> bool {
    env::split_paths(&search_path()).any(|directory| directory.join(program).is_file())
}

/// Where programs are looked for: the path, and the directories of servers and of administrators,
/// which other users than root often have not on theirs.
pub(crate) fn search_path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = env::split_paths(&path).collect();
    for directory in ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    env::join_paths(directories).unwrap_or(path)
}

/// Whether a cargo subcommand works. rustup leaves a proxy on the path for components that are not
/// installed, so looking for the file would not do.
fn answers(root: &Path, subcommand: &str) -> bool {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([subcommand, "--version"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Host = Host { apt: true, root: true, sudo: false, terminal: false };

    fn lines(host: &Host) -> Vec<String> {
        let commands = install(&["gcc", "strace"], host).unwrap();
        commands.iter().map(|line| line.join(" ")).collect()
    }

    #[test]
    fn root_installs_directly_after_an_update() {
        let lines = lines(&ROOT);
        assert!(lines[0].ends_with(" update"), "{lines:?}");
        assert!(lines[1].ends_with(" install -y --no-install-recommends gcc strace"), "{lines:?}");
        assert!(lines.iter().all(|line| line.starts_with("env DEBIAN_FRONTEND=noninteractive ")));
    }

    #[test]
    fn others_go_through_sudo_and_nobody_is_asked_without_a_terminal() {
        let asked = Host { root: false, sudo: true, terminal: true, ..ROOT };
        assert!(lines(&asked)[0].starts_with("sudo env "));
        let alone = Host { terminal: false, ..asked };
        assert!(lines(&alone)[0].starts_with("sudo --non-interactive env "));
    }

    #[test]
    fn the_lists_of_commands_are_of_packages_that_the_set_up_knows() {
        for package in [NGINX, NGINX_CLIENTS, MEMCACHED, MEMCACHED_SUITE, PROGRAMS].concat() {
            assert!(knows(package), "{package}");
        }
    }

    #[test]
    fn what_cannot_be_installed_is_named() {
        let elsewhere = Host { apt: false, ..ROOT };
        assert!(install(&["strace"], &elsewhere).unwrap_err().ends_with("calls strace"));
        let powerless = Host { root: false, ..ROOT };
        assert!(install(&["strace"], &powerless).unwrap_err().ends_with("apt-get install strace"));
    }

    #[test]
    fn servers_are_found_where_the_path_does_not_lead() {
        let path = search_path();
        let directories: Vec<_> = env::split_paths(&path).collect();
        for directory in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
            let count = directories.iter().filter(|d| **d == Path::new(directory)).count();
            assert_eq!(count, 1, "{directory} in {path:?}");
        }
    }

    #[test]
    fn probes_see_what_is_there() {
        assert!(present(&Probe::Program("sh")));
        assert!(!present(&Probe::Program("no-such-program")));
        assert!(!present(&Probe::File("/no/such/file")));
        assert!(present(&Probe::Command(&["true"])));
        assert!(!present(&Probe::Command(&["false"])));
        assert!(!present(&Probe::Command(&["no-such-program"])));
    }
}
