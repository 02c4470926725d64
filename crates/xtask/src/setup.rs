//! Installs everything that tests need.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{privilege, services};

mod packages;

pub(crate) use packages::{KERNELS, MEMCACHED, MEMCACHED_SUITE, NGINX, NGINX_CLIENTS, PROGRAMS};

use packages::{PACKAGES, Package, Probe};

/// A component of the Rust toolchain, and its cargo command.
struct Component {
    name: &'static str,
    subcommand: &'static str,
}

const COMPONENTS: &[Component] = &[
    Component { name: "rustfmt", subcommand: "fmt" },
    Component { name: "clippy", subcommand: "clippy" },
];

/// Installs missing packages, and prints which and why.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let packages = install_packages(&Host::here(), |_| true);
    packages.and_then(|()| add_components(root))
}

/// Installs the missing packages of a command, and nothing else.
pub(crate) fn run_for(packages: &[&str]) -> Result<(), String> {
    install_packages(&Host::here(), |package| packages.contains(&package.name))
}

/// Installs missing packages as a step of a run; returns those that are still missing. A user who
/// may not install them gets the command to run, and steps that do not need them still run.
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

/// Returns the packages that are missing.
pub(crate) fn missing() -> Vec<&'static str> {
    let missing = PACKAGES.iter().filter(|package| !present(&package.probe));
    missing.map(|package| package.name).collect()
}

/// Returns whether this is a package that the set-up installs.
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
        Some(Package { name, why, .. }) => Err(format!(
            "{name} was installed but cannot be found ({why}); add its directory to the PATH"
        )),
    }
}

/// Disables services that an installation has enabled for the next boot.
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
    let missing = COMPONENTS.iter().filter(|component| !answers(root, component.subcommand));
    let names: Vec<&str> = missing.map(|component| component.name).collect();
    if names.is_empty() { Ok(()) } else { add(&names) }
}

/// Adds the sources of the standard library, which only some commands need.
pub(crate) fn add_sources(root: &Path) -> Result<(), String> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output();
    let output =
        output.map_err(|error| format!("cannot run `rustc`: {error}; add it to the PATH"))?;
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let manifest = "lib/rustlib/src/rust/library/Cargo.toml";
    if Path::new(&sysroot).join(manifest).exists() { Ok(()) } else { add(&["rust-src"]) }
}

fn add(names: &[&str]) -> Result<(), String> {
    println!("setup: the toolchain lacks {}", names.join(" and "));
    if !on_path("rustup") {
        return Err(format!(
            "rustup is missing; install {} with your distribution's packages",
            names.join(" and ")
        ));
    }
    execute(&[&["rustup", "component", "add"], names].concat())
}

/// Properties of the machine that determine how packages are installed.
struct Host {
    apt: bool,
    root: bool,
    sudo: bool,
    /// Whether a user can enter a password.
    terminal: bool,
}

impl Host {
    fn here() -> Host {
        Host {
            apt: on_path("apt-get"),
            root: privilege::is_root(),
            sudo: on_path("sudo"),
            terminal: io::stdin().is_terminal(),
        }
    }
}

/// Returns the commands that install the packages, or instructions for the user.
fn install<'a>(names: &[&'a str], host: &Host) -> Result<Vec<Vec<&'a str>>, String> {
    let wanted = names.join(" ");
    if !host.apt {
        return Err(format!(
            "apt-get is missing; install these packages under your distribution's names: {wanted}"
        ));
    }
    if !host.root && !host.sudo {
        return Err(format!(
            "cannot install packages: this user is not root, and sudo is missing; run as root: \
             apt-get install {wanted}"
        ));
    }
    // Another apt may have the lock on a machine that has just started.
    let apt = [
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        // Prevents that packages start their services, see systemctl(1) and invoke-rc.d(8).
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

/// Returns the prefix of a command that needs root.
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
        Ok(status) => Err(format!(
            "`{shown}` ended with {status}; correct the cause in its output above, such as the \
             network"
        )),
        Err(error) => Err(format!("cannot run `{shown}`: {error}; add it to the PATH")),
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

/// Returns whether a cargo subcommand works. rustup has a proxy on the PATH for components that are
/// not installed, so the existence of the file is not enough.
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
        for package in
            [KERNELS, NGINX, NGINX_CLIENTS, MEMCACHED, MEMCACHED_SUITE, PROGRAMS].concat()
        {
            assert!(knows(package), "{package}");
        }
    }

    #[test]
    fn what_cannot_be_installed_is_named() {
        let elsewhere = Host { apt: false, ..ROOT };
        assert!(install(&["strace"], &elsewhere).unwrap_err().ends_with("names: strace"));
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
