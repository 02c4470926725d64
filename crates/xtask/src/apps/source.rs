//! Fetches the source package of a program of the distribution, without changing the system.
//!
//! Most machines have apt entries for binary packages but not for sources. apt therefore gets a
//! private configuration: the machine's own entries as `deb-src`, and its own directories for the
//! lists and the cache. Signatures are checked with the machine's keys as usual.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::apt::entries::{self, MACHINE_APT};
use crate::apt::{Apt, SourceFile, origins};
use crate::cargo::target_dir;
use crate::command::make_directory;
use crate::lock::Lock;

/// The requested version of a source package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version<'a> {
    /// The version of the installed package; if the mirrors have removed it, one with the same
    /// upstream version, which differs only by the distribution's patches.
    Installed,
    /// The newest version with this upstream version.
    Upstream(&'a str),
}

const USAGE: &str = "usage: cargo xtask source PACKAGE [UPSTREAM-VERSION]";

/// `cargo xtask source NAME [UPSTREAM]`: fetches the sources and prints their path.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let (name, version) = match words {
        [name] => (name, Version::Installed),
        [name, upstream] => (name, Version::Upstream(upstream)),
        _ => return Err(format!("wrong arguments `{}`; {USAGE}", words.join(" "))),
    };
    let tree = fetch(&root.join(target_dir()), name, version)?;
    println!("source: {}", tree.display());
    Ok(())
}

/// Returns the unpacked sources of `name` below `target`; fetches them if they are not there.
///
/// A later call does not take the remains of an interrupted call for complete.
pub(crate) fn fetch(target: &Path, name: &str, version: Version<'_>) -> Result<PathBuf, String> {
    let (exact, upstream) = match version {
        Version::Installed => {
            let installed = installed(name)?;
            (Some(installed.clone()), upstream_of(&installed).to_string())
        }
        Version::Upstream(upstream) => (None, upstream.to_string()),
    };
    let base = target.join("apps/src");
    let label = exact.as_deref().unwrap_or(&upstream);
    let tree = base.join(format!("{name}-{}", label.replace([':', '~', '/'], "_")));
    let stamp = stamp_of(&tree);
    if stamp.is_file() {
        return Ok(tree);
    }
    let _alone = Lock::of(&base)?;
    // Another process may have fetched them meanwhile.
    if stamp.is_file() {
        return Ok(tree);
    }
    needs("apt-get", "apt")?;
    needs("dpkg-source", "dpkg-dev")?;
    let base = base.canonicalize().map_err(|error| format!("{}: {error}", base.display()))?;
    let apt = Apt::new(
        &base.join("apt").join(name),
        source_files(Path::new(MACHINE_APT), &origins(name))?,
    )?;
    println!("source: fetching {name} {label} from the distribution");
    update(&apt)?;
    let offered = offered(&apt, name)?;
    let chosen = choose(&offered, exact.as_deref(), &upstream);
    let downloads = base.join(format!("{name}-download"));
    let description = chosen
        .iter()
        .find_map(|version| download(&apt, name, version, &downloads).transpose())
        .unwrap_or_else(|| Err(nothing_offered(name, label, &offered)))?;
    unpack(&description, &tree)?;
    let _ = fs::remove_dir_all(&downloads);
    let note = description.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::write(&stamp, note + "\n").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(tree)
}

/// Returns the path of the file that marks a complete tree. It is beside the tree, because
/// unpacking needs a new directory.
fn stamp_of(tree: &Path) -> PathBuf {
    let mut name = tree.as_os_str().to_os_string();
    name.push(".complete");
    PathBuf::from(name)
}

fn needs(program: &str, package: &str) -> Result<(), String> {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    there.map(drop).map_err(|error| {
        format!("cannot run {program}: {error}; install the package {package} (cargo xtask setup)")
    })
}

/// Returns the version of the installed package.
fn installed(name: &str) -> Result<String, String> {
    let query = ["-W", "-f", "${db:Status-Status} ${Version}", name];
    let output = Command::new("dpkg-query").args(query).stderr(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("cannot run dpkg-query: {error}; source packages need Debian, Ubuntu or a relative")
    })?;
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    match answer.strip_prefix("installed ") {
        Some(version) if !version.is_empty() => Ok(version.trim().to_string()),
        _ => Err(format!("the package {name} is not installed; run cargo xtask setup")),
    }
}

/// Returns the version without the epoch and the distribution's revision.
pub(crate) fn upstream_of(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.rsplit_once('-').map_or(version, |(upstream, _)| upstream)
}

/// Returns the versions to try, best first: the exact one, then those of the same upstream version.
fn choose<'a>(offered: &'a [String], exact: Option<&str>, upstream: &str) -> Vec<&'a str> {
    let same = offered.iter().map(String::as_str).filter(|offer| upstream_of(offer) == upstream);
    let mut chosen: Vec<&str> = same.collect();
    // apt lists them oldest first.
    chosen.reverse();
    chosen.sort_by_key(|offer| Some(*offer) != exact);
    chosen
}

fn nothing_offered(name: &str, wanted: &str, offered: &[String]) -> String {
    let offered = if offered.is_empty() { "none".to_string() } else { offered.join(", ") };
    format!(
        "no source of {name} {wanted} could be fetched (offered: {offered}); upgrade the package \
         {name} with apt-get, so that it is a version that the mirror still has, or check the \
         network"
    )
}

/// Returns the machine's entries for packages from these origins, as entries for sources.
fn source_files(apt: &Path, origins: &[String]) -> Result<Vec<SourceFile>, String> {
    let entries = entries::read(apt).into_iter().filter(|entry| entry.is_from(origins));
    let files = entries::files(entries.map(|entry| entry.with_kind("deb-src")));
    if files.is_empty() {
        return Err(format!(
            "{} names no archive with sources; add the distribution's entry there",
            apt.display()
        ));
    }
    Ok(files)
}

fn update(apt: &Apt) -> Result<(), String> {
    let mut command = apt.command("apt-get");
    let output = command.args(["-q", "update"]).output();
    let output = output.map_err(|error| {
        format!("cannot run apt-get: {error}; this command needs Debian, Ubuntu or a relative")
    })?;
    // Even if the update fails, lists from an earlier run may be sufficient.
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("source: apt-get update ended with {}: {}", output.status, said.trim());
    }
    Ok(())
}

/// Returns the versions in the lists, oldest first.
fn offered(apt: &Apt, name: &str) -> Result<Vec<String>, String> {
    let mut command = apt.command("apt-cache");
    let output = command.args(["showsrc", "--only-source", name]).output();
    let output = output.map_err(|error| {
        format!("cannot run apt-cache: {error}; this command needs Debian, Ubuntu or a relative")
    })?;
    Ok(versions(&String::from_utf8_lossy(&output.stdout)))
}

/// Downloads a version. Returns the path of the `.dsc`, or `None` if the mirror has removed it.
fn download(
    apt: &Apt,
    name: &str,
    version: &str,
    directory: &Path,
) -> Result<Option<PathBuf>, String> {
    let _ = fs::remove_dir_all(directory);
    make_directory(directory)?;
    let mut command = apt.command("apt-get");
    command.args(["-q", "source", "--download-only", "--only-source"]);
    let output = command.arg(format!("{name}={version}")).current_dir(directory).output();
    let output = output.map_err(|error| {
        format!("cannot run apt-get: {error}; this command needs Debian, Ubuntu or a relative")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("source: {name} {version} cannot be fetched: {}", said.trim());
        return Ok(None);
    }
    println!("source: {name} {version}");
    let files = fs::read_dir(directory).map_err(|error| error.to_string())?;
    Ok(files
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "dsc")))
}

/// Returns the versions in the output of `apt-cache showsrc`, in its order.
fn versions(records: &str) -> Vec<String> {
    let values = records.lines().filter_map(|line| line.strip_prefix("Version: "));
    values.map(|version| version.trim().to_string()).collect()
}

fn unpack(description: &Path, tree: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(tree);
    let mut command = Command::new("dpkg-source");
    // Does not check the developers' signature, for which there may be no keyring; apt has checked
    // the archive's.
    command.args(["--no-check", "-x"]).arg(description).arg(tree).stdin(Stdio::null());
    let output = command.output().map_err(|error| {
        format!("cannot run dpkg-source: {error}; install dpkg-dev (cargo xtask setup)")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("dpkg-source cannot unpack {}: {}", description.display(), said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstream_version_is_without_epoch_and_revision() {
        assert_eq!(upstream_of("1.22.1-9+deb12u11"), "1.22.1");
        assert_eq!(upstream_of("1:2.0-rc1-3"), "2.0-rc1");
        assert_eq!(upstream_of("1.6.18"), "1.6.18");
    }

    #[test]
    fn the_exact_version_comes_first_and_then_the_newest_of_the_same_upstream() {
        let offered = ["1.22.0-1", "1.22.1-9", "1.22.1-10", "1.22.1-11"].map(String::from);
        let chosen = choose(&offered, Some("1.22.1-10"), "1.22.1");
        assert_eq!(chosen, ["1.22.1-10", "1.22.1-11", "1.22.1-9"]);
        assert_eq!(choose(&offered, None, "1.22.1")[0], "1.22.1-11");
        assert!(choose(&offered, None, "1.23.0").is_empty());
    }

    #[test]
    fn apts_answers_are_read() {
        let records = "Package: p\nVersion: 1-1\n\nPackage: p\nVersion: 1-2\n";
        assert_eq!(versions(records), ["1-1", "1-2"]);
    }

    #[test]
    fn a_missing_package_is_named() {
        let error = installed("no-such-package-anywhere").unwrap_err();
        assert!(error.contains("no-such-package-anywhere is not installed"), "{error}");
        assert!(nothing_offered("p", "1-1", &[]).contains("offered: none"));
    }
}
