//! Fetches the kernel of a suite of Debian without changing the system: apt gets a private
//! configuration, and the packages are only unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::sources;
use crate::apt::entries::MACHINE_APT;
use crate::apt::{Apt, origins};
use crate::command::{make_directory, quietly};
use crate::lock::Lock;

/// The package that depends on a suite's kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// A package of every Debian system, whose origin is the archive.
const EVERYWHERE: &str = "base-files";

/// A package with its version.
type Versioned = (String, String);

/// Checks that this machine has an entry for the archive of the kernels.
pub(super) fn is_named() -> Result<(), String> {
    sources::is_named(Path::new(MACHINE_APT))
}

/// Returns the directory with the unpacked kernel of a suite. Fetches it if the archive has another
/// version than the cache; if the archive cannot be reached, uses the cache.
pub(super) fn fetch(base: &Path, suite: &str) -> Result<PathBuf, String> {
    let directory = base.join(suite);
    let _alone = Lock::of(&directory)?;
    let files = sources::files_of(Path::new(MACHINE_APT), suite, &origins(EVERYWHERE))?;
    let (stamp, root) = (directory.join("complete"), directory.join("root"));
    let cached = fs::read_to_string(&stamp).ok().filter(|_| root.is_dir());
    let apt = Apt::new(&directory.join("apt"), files)?;
    let offered = update(&apt).and_then(|()| offered(&apt));
    let packages = match (offered, cached.is_some()) {
        (Ok(packages), _) => packages,
        (Err(error), true) => {
            println!("kernels: {suite}: {error}; using the kernel that was fetched before");
            return Ok(root);
        }
        (Err(error), false) => return Err(format!("cannot get the kernel of {suite}: {error}")),
    };
    let wanted: String =
        packages.iter().map(|(name, version)| format!("{name} {version}\n")).collect();
    if cached.as_deref() == Some(&wanted) {
        return Ok(root);
    }
    println!("kernels: fetching {}", names(&packages).join(" "));
    let _ = fs::remove_file(&stamp);
    unpack(&apt, &packages, &directory, &root)?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(root)
}

fn names(packages: &[Versioned]) -> Vec<String> {
    packages.iter().map(|(name, version)| format!("{name}={version}")).collect()
}

fn update(apt: &Apt) -> Result<(), String> {
    let mut command = apt.command("apt-get");
    // By default, failures of single files are only warnings.
    command.args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]);
    let output = command.output().map_err(|error| {
        format!("cannot run apt-get: {error}; this command needs Debian, Ubuntu or a relative")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or_default();
    Err(format!("cannot reach the archive (apt-get update: {first}); check the network"))
}

/// Returns the packages of the kernel: those that an installation on a system without packages
/// would install.
fn offered(apt: &Apt) -> Result<Vec<Versioned>, String> {
    let mut command = apt.command("apt-get");
    command.args(["-o", "Dir::State::status=/dev/null", "-o", "APT::Architecture=amd64"]);
    command.args(["-q", "-s", "install", "--no-install-recommends", PACKAGE]);
    let output = command.output().map_err(|error| {
        format!("cannot run apt-get: {error}; this command needs Debian, Ubuntu or a relative")
    })?;
    let packages = installed(&String::from_utf8_lossy(&output.stdout));
    if packages.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "the archive has no {PACKAGE}: {}; check its entry in /etc/apt",
            said.trim()
        ));
    }
    Ok(packages)
}

/// Returns the kernel's packages in lines such as `Inst linux-image-6.1.0 (6.1.1-1 Debian:12
/// [amd64])`.
fn installed(said: &str) -> Vec<Versioned> {
    let package = |line: &str| {
        let mut words = line.strip_prefix("Inst ")?.split_whitespace();
        let name = words.next().filter(|name| name.starts_with("linux-") && *name != PACKAGE)?;
        let version = words.find_map(|word| word.strip_prefix('('))?;
        Some((name.to_string(), version.to_string()))
    };
    said.lines().filter_map(package).collect()
}

/// Replaces `root` by the content of the packages.
fn unpack(apt: &Apt, packages: &[Versioned], base: &Path, root: &Path) -> Result<(), String> {
    let [downloads, fresh] = ["download", "root.new"].map(|name| base.join(name));
    for directory in [&downloads, &fresh] {
        let _ = fs::remove_dir_all(directory);
        make_directory(directory)?;
    }
    let mut download = apt.command("apt-get");
    download.args(["-q", "download"]).args(names(packages)).current_dir(&downloads);
    quietly(&mut download, "apt-get download")?;
    let files = fs::read_dir(&downloads).map_err(|e| format!("{}: {e}", downloads.display()))?;
    for file in files.flatten() {
        let mut extract = Command::new("dpkg-deb");
        extract.arg("-x").arg(file.path()).arg(&fresh);
        quietly(&mut extract, "dpkg-deb -x")?;
    }
    let _ = fs::remove_dir_all(&downloads);
    let _ = fs::remove_dir_all(root);
    fs::rename(&fresh, root).map_err(|error| format!("cannot place {}: {error}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_packages_are_read_from_a_simulation() {
        let said = "Reading package lists...\n\
                    Inst kmod (34.2-2 Debian:unstable [amd64])\n\
                    Inst linux-base (4.17 Debian:unstable [all])\n\
                    Inst linux-binary-7.2.13+deb14-cloud-amd64 (7.2.13-1 Debian:unstable [amd64])\n\
                    Inst linux-image-cloud-amd64 (7.2.13-1 Debian:unstable [amd64])\n\
                    Conf linux-base (4.17 Debian:unstable [all])\n";
        let packages = installed(said);
        assert_eq!(
            names(&packages),
            ["linux-base=4.17", "linux-binary-7.2.13+deb14-cloud-amd64=7.2.13-1"]
        );
        assert!(installed("E: Unable to locate package linux-image-cloud-amd64\n").is_empty());
    }
}
