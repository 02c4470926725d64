//! Installs what tests need: packages by `setup.sh`, components of the toolchain by rustup.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All packages that the set-up can install, with the reason for each.
#[cfg(test)]
const PACKAGES: &str = include_str!("../packages.txt");

/// Packages for booting other kernels.
pub(crate) const KERNELS: &[&str] = &[
    "qemu-system-x86",
    "virtiofsd",
    "busybox-static",
    "kmod",
    "cpio",
    "e2fsprogs",
    "xz-utils",
    "zstd",
];
/// Packages for building nginx's module.
pub(crate) const NGINX: &[&str] =
    &["dpkg-dev", "make", "nginx", "libpcre2-dev", "zlib1g-dev", "libssl-dev"];
/// Clients of nginx that scenarios and tests use, and a module that they load.
pub(crate) const NGINX_CLIENTS: &[&str] =
    &["curl", "openssl", "nghttp2-client", "ngtcp2-client", "libnginx-mod-stream"];
/// Packages for building memcached.
pub(crate) const MEMCACHED: &[&str] = &["dpkg-dev", "make", "libevent-dev", "libsasl2-dev"];
/// Packages for memcached's own tests.
pub(crate) const MEMCACHED_SUITE: &[&str] = &["perl", "libio-socket-ssl-perl"];
/// Packages for building redis.
pub(crate) const REDIS: &[&str] =
    &["dpkg-dev", "make", "pkg-config", "libjemalloc-dev", "libssl-dev"];
/// Packages for redis' own tests.
pub(crate) const REDIS_SUITE: &[&str] = &["tcl", "procps"];
/// Programs that `cargo xtask programs` runs under a preload library.
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

/// Installs missing packages, of which it prints the reason, and components of the toolchain.
/// `words` are those of `setup.sh`.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    install(words).and_then(|()| add_components(root))
}

/// Installs the missing packages of a command, and nothing else.
pub(crate) fn run_for(packages: &[&str]) -> Result<(), String> {
    install(packages)
}

/// Returns whether this is a package that the set-up installs.
#[cfg(test)]
pub(crate) fn knows(package: &str) -> bool {
    names().any(|name| name.split('|').any(|name| name == package))
}

/// Returns the first words of the list's lines.
#[cfg(test)]
fn names() -> impl Iterator<Item = &'static str> {
    let lines = PACKAGES.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next())
}

fn script(name: &str, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.arg(crate::root().join("crates/xtask").join(name)).args(words);
    command
}

fn install(words: &[&str]) -> Result<(), String> {
    execute(&mut script("setup.sh", words), "setup.sh")
}

/// Follows the README on fresh systems with the packages that it names.
pub(crate) fn fresh(words: &[&str]) -> Result<(), String> {
    run_for(&["git", "mmdebstrap"])?;
    execute(&mut script("fresh.sh", words), "fresh.sh")
}

fn add_components(root: &Path) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // rustup has a proxy on the PATH for components that are not installed, so its existence is not
    // enough.
    let answers = |subcommand: &str| {
        let mut command = Command::new(&cargo);
        command.args([subcommand, "--version"]).current_dir(root);
        command.output().is_ok_and(|output| output.status.success())
    };
    if answers("fmt") && answers("clippy") { Ok(()) } else { add(&["rustfmt", "clippy"]) }
}

/// Adds the sources of the standard library, which only some commands need.
pub(crate) fn add_sources(root: &Path) -> Result<(), String> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output();
    let output =
        output.map_err(|error| format!("cannot run `rustc`: {error}; add it to the PATH"))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let is_there = sysroot.join("lib/rustlib/src/rust/library/Cargo.toml").exists();
    if is_there { Ok(()) } else { add(&["rust-src"]) }
}

fn add(components: &[&str]) -> Result<(), String> {
    let names = components.join(" and ");
    println!("setup: the toolchain lacks {names}; running rustup component add");
    let mut rustup = Command::new("rustup");
    execute(rustup.args(["component", "add"]).args(components), "rustup").map_err(|error| {
        format!("{error}; without rustup, install {names} with your distribution's packages")
    })
}

fn execute(command: &mut Command, name: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}; its output above says why")),
        Err(error) => Err(format!("cannot run {name}: {error}; add it to the PATH")),
    }
}

/// Returns the PATH, and the directories of servers and administrators, which are often not on the
/// PATH of users other than root.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_commands_are_of_packages_that_the_set_up_knows() {
        for package in [
            KERNELS,
            NGINX,
            NGINX_CLIENTS,
            MEMCACHED,
            MEMCACHED_SUITE,
            REDIS,
            REDIS_SUITE,
            PROGRAMS,
        ]
        .concat()
        {
            assert!(knows(package), "{package}");
        }
    }

    #[test]
    fn servers_are_found_where_the_path_does_not_lead() {
        let path = search_path();
        for directory in ["/usr/local/sbin", "/usr/sbin", "/sbin"] {
            let count = env::split_paths(&path).filter(|d| d == Path::new(directory)).count();
            assert_eq!(count, 1, "{directory} in {path:?}");
        }
    }
}
