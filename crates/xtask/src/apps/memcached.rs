//! memcached on the channel: builds the distribution's version twice, unmodified and adapted, and
//! compares the results of its own tests on both.

mod earlier;
mod sanitized;
mod suite;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{library, source, strip_in_place};
use crate::cargo::absolute_target;
use crate::command::quietly;
use crate::lock::Lock;
use crate::setup;

const USAGE: &str = "usage: cargo xtask memcached \
     [--sanitize | --test [--driver uring|epoll] [FILE.t ...]]";

/// The upstream version that the patch is for.
const VERSION: &str = "1.6.18";

/// The patch of memcached's own files, and their checksums before it, as in Debian's source.
const PATCH: &str = "memcached.patch";
const ORIGINALS: &str = "originals.sha256";

/// MegaPipe's source files, which are added to memcached's.
const OURS: &[&str] = &[
    "GNUmakefile",
    "megapipe_seam.h",
    "megapipe_inside.h",
    "megapipe_workers.c",
    "megapipe_worker.c",
    "megapipe_connection.c",
    "megapipe_stream.c",
    "megapipe_prefetch.c",
    "megapipe_listen.c",
];

/// The Makefile's targets that its test suite needs in addition to the server.
const TARGETS: &[&str] = &["memcached", "memcached-debug", "testapp", "sizes", "timedrun"];

/// One of the two source trees, configured and built alike.
#[derive(Debug)]
struct Tree {
    path: PathBuf,
    adapted: bool,
    /// Additional compiler flags.
    flags: &'static str,
}

/// The absolute paths of a build.
#[derive(Debug)]
struct Build {
    original: PathBuf,
    /// MegaPipe's sources.
    ours: PathBuf,
    library: PathBuf,
    include: PathBuf,
    stock: Tree,
    megapipe: Tree,
}

/// `cargo xtask memcached`: sets the machine up and builds both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    match words {
        [] | ["--sanitize"] => setup::run_for(setup::MEMCACHED)?,
        ["--test", rest @ ..] if suite::Choice::parse(rest).is_some() => {
            setup::run_for(&[setup::MEMCACHED, setup::MEMCACHED_SUITE].concat())?;
        }
        _ => return Err(format!("unknown argument `{}`; {USAGE}", words.join(" "))),
    }
    let build = Build::new(root)?;
    if let ["--sanitize"] = words {
        return sanitized::test(root, &build);
    }
    build.make(&build.stock, TARGETS)?;
    build.make(&build.megapipe, TARGETS)?;
    println!("memcached: {}", build.account()?);
    for tree in [&build.stock, &build.megapipe] {
        println!("memcached: {}", tree.path.join("memcached").display());
    }
    match words {
        ["--test", rest @ ..] => match suite::Choice::parse(rest) {
            Some(choice) => suite::compare(&build, &choice),
            None => Err(USAGE.to_string()),
        },
        _ => Ok(()),
    }
}

/// Builds the adapted server; returns its path.
pub(crate) fn program(root: &Path) -> Result<PathBuf, String> {
    let build = Build::new(root)?;
    build.make(&build.megapipe, &["memcached"])?;
    Ok(build.megapipe.path.join("memcached"))
}

/// memcached's own test suite on both, as a step of the full run.
pub(crate) fn compare_suites(root: &Path) -> Result<(), String> {
    run(root, &["--test"])
}

/// MegaPipe's tests on the adapted server under AddressSanitizer, as a step of the full run.
pub(crate) fn sanitize(root: &Path) -> Result<(), String> {
    run(root, &["--sanitize"])
}

impl Tree {
    /// Locks the trees against other processes.
    fn lock(&self) -> Result<Lock, String> {
        Lock::of(self.path.parent().unwrap_or(&self.path))
    }
}

impl Build {
    fn new(root: &Path) -> Result<Build, String> {
        let target = absolute_target(root)?;
        let library = library(root, &target)?;
        let original = source::fetch(&target, "memcached", source::Version::Upstream(VERSION))?;
        let base = target.join("apps/memcached");
        Ok(Build {
            original,
            ours: root.join("apps/memcached"),
            library,
            include: root.join("crates/capi/include"),
            stock: Tree { path: base.join("stock"), adapted: false, flags: "" },
            megapipe: Tree { path: base.join("megapipe"), adapted: true, flags: "" },
        })
    }

    /// Creates a configured copy of the sources, adapted or not; keeps files that are up to date.
    fn lay_out(&self, tree: &Tree) -> Result<(), String> {
        let flags = flags()?.replace("CFLAGS=\"", &format!("CFLAGS=\"{} ", tree.flags));
        let patch = if tree.adapted { self.patch()? } else { String::new() };
        let recipe = format!("{}\n{flags}\n{patch}", self.original.display());
        let stamp = tree.path.with_extension("recipe");
        let same = fs::read_to_string(&stamp).is_ok_and(|before| before == recipe);
        if !same || !tree.path.join("Makefile").is_file() {
            let _ = fs::remove_file(&stamp);
            let _ = fs::remove_dir_all(&tree.path);
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&self.original).arg(&tree.path);
            quietly(&mut copy, "cp")?;
            if tree.adapted {
                apply_patch(&self.ours, &tree.path)?;
            }
            let mut configure = Command::new("sh");
            let script = format!("{flags} ./configure --enable-sasl --enable-tls");
            configure.args(["-c", &script]).current_dir(&tree.path);
            quietly(&mut configure, "memcached's configure")?;
            fs::write(&stamp, recipe).map_err(|error| format!("{}: {error}", stamp.display()))?;
        }
        if tree.adapted { self.add_ours(tree) } else { Ok(()) }
    }

    fn patch(&self) -> Result<String, String> {
        let path = self.ours.join(PATCH);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn add_ours(&self, tree: &Tree) -> Result<(), String> {
        for name in OURS {
            let (from, to) = (self.ours.join(name), tree.path.join(name));
            let text = fs::read(&from).map_err(|error| format!("{}: {error}", from.display()))?;
            // Keeps the time of an unchanged file, so that make does not rebuild from it.
            if fs::read(&to).is_ok_and(|before| before == text) {
                continue;
            }
            fs::write(&to, text).map_err(|error| format!("{}: {error}", to.display()))?;
        }
        Ok(())
    }

    fn make(&self, tree: &Tree, targets: &[&str]) -> Result<(), String> {
        let _alone = tree.lock()?;
        self.lay_out(tree)?;
        let mut make = self.command(tree, "make");
        make.arg("-j2").args(targets);
        quietly(&mut make, "make")?;
        if tree.adapted && tree.flags.is_empty() {
            strip_in_place(&tree.path.join("memcached"))?;
        }
        Ok(())
    }

    /// Returns a program in a tree, with the variables of MegaPipe's makefile.
    fn command(&self, tree: &Tree, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("MEGAPIPE_LIBRARY", &self.library).env("MEGAPIPE_INCLUDE", &self.include);
        command.current_dir(&tree.path).stdin(Stdio::null());
        // Settings of a make that started this program do not apply to memcached's make.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        command
    }

    /// Returns the number of changed lines of memcached, and of lines of the added files.
    fn account(&self) -> Result<String, String> {
        let patch = self.patch()?;
        let count = |sign: char, header: &str| {
            patch.lines().filter(|line| line.starts_with(sign) && !line.starts_with(header)).count()
        };
        let mut lines = 0;
        for name in OURS {
            let path = self.ours.join(name);
            let text = fs::read_to_string(&path);
            lines += text.map_err(|e| format!("{}: {e}", path.display()))?.lines().count();
        }
        Ok(format!(
            "{} files of memcached changed: {} lines removed, {} added; {} lines in {} files of \
             ours beside them",
            patch.lines().filter(|line| line.starts_with("--- ")).count(),
            count('-', "--- "),
            count('+', "+++ "),
            lines,
            OURS.len()
        ))
    }
}

/// Patches a copy of memcached, if it is the release that the patch is for.
fn apply_patch(ours: &Path, tree: &Path) -> Result<(), String> {
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "--quiet"]).arg(ours.join(ORIGINALS));
    quietly(check.current_dir(tree), "sha256sum").map_err(|error| {
        format!(
            "{error}\n{} is for another release of memcached than {}: compare the \
             releases, run its test suite, and update the patch and {ORIGINALS}",
            ours.join(PATCH).display(),
            tree.display()
        )
    })?;
    let mut patch = Command::new("patch");
    patch.args(["--strip=1", "--fuzz=0", "--silent", "--input"]).arg(ours.join(PATCH));
    quietly(patch.current_dir(tree), "patch")
}

/// Returns the distribution's compiler flags, as assignments for a shell; the same for both trees.
fn flags() -> Result<String, String> {
    let mut command = Command::new("dpkg-buildflags");
    command.env("DEB_BUILD_MAINT_OPTIONS", "hardening=+all").arg("--export=cmdline");
    let output = command.current_dir("/").stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("cannot run dpkg-buildflags: {error}; install dpkg-dev (cargo xtask setup)")
    })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let is_assignment = |name: &str| said.contains(name);
    match is_assignment("CFLAGS=") && is_assignment("LDFLAGS=") {
        true => Ok(said.replace("-ffile-prefix-map=/=. ", "")),
        false => Err("dpkg-buildflags prints no flags; reinstall the package dpkg-dev".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of a line `one();`.
    const SUM: &str = "95c2c81baa0c945dc0f52c6d32b405fa7b83cd9be6a953fecee3edfa3348247a  a.c\n";
    const CHANGE: &str = "--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@ why\n-one();\n+two();\n";

    fn patched(text: &str) -> Result<String, String> {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join(ORIGINALS), SUM).unwrap();
        fs::write(scratch.path().join(PATCH), CHANGE).unwrap();
        let tree = scratch.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("a.c"), text).unwrap();
        apply_patch(scratch.path(), &tree)?;
        Ok(fs::read_to_string(tree.join("a.c")).unwrap())
    }

    #[test]
    fn the_patch_is_applied() {
        assert_eq!(patched("one();\n").unwrap(), "two();\n");
    }

    #[test]
    fn another_release_stops_the_build_and_its_file_is_named() {
        let error = patched("one();\nthree();\n").unwrap_err();
        assert!(error.contains("a.c: FAILED"), "{error}");
        assert!(error.contains("update the patch and originals.sha256"), "{error}");
    }
}
