//! memcached on the channel: builds the distribution's version twice, as it is and adapted, and
//! compares what its own tests say of both.

mod earlier;
mod sanitized;
mod suite;
mod table;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{edits, library, source, strip_in_place};
use crate::cargo::absolute_target;
use crate::command::quietly;
use crate::lock::Lock;
use crate::setup;
use table::{OURS, TABLE, VERSION};

const USAGE: &str = "usage: cargo xtask memcached \
     [--diff | --sanitize | --test [--driver uring|epoll] [FILE.t ...]]";

/// The Makefile's targets that its test suite needs beside the server.
const TARGETS: &[&str] = &["memcached", "memcached-debug", "testapp", "sizes", "timedrun"];

/// One of the two trees, configured and built alike.
#[derive(Debug)]
struct Tree {
    path: PathBuf,
    adapted: bool,
    /// What its compiler is told besides.
    flags: &'static str,
}

/// What is made of what, in absolute paths.
#[derive(Debug)]
struct Build {
    original: PathBuf,
    /// Our sources.
    ours: PathBuf,
    library: PathBuf,
    include: PathBuf,
    stock: Tree,
    megapipe: Tree,
}

/// `cargo xtask memcached`: sets the machine up and builds both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    match words {
        [] | ["--diff" | "--sanitize"] => setup::run_for(setup::MEMCACHED)?,
        ["--test", rest @ ..] if suite::Choice::parse(rest).is_some() => {
            setup::run_for(&[setup::MEMCACHED, setup::MEMCACHED_SUITE].concat())?;
        }
        _ => return Err(format!("cannot make sense of `{}`; {USAGE}", words.join(" "))),
    }
    let build = Build::new(root)?;
    if let ["--diff"] = words {
        let alone = build.megapipe.lock()?;
        build.lay_out(&build.megapipe)?;
        drop(alone);
        print!("{}", edits::diff(TABLE, &build.original, &build.megapipe.path)?);
        println!("{}", build.account()?);
        return Ok(());
    }
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

/// Builds the adapted server; gives its path.
pub(crate) fn program(root: &Path) -> Result<PathBuf, String> {
    let build = Build::new(root)?;
    build.make(&build.megapipe, &["memcached"])?;
    Ok(build.megapipe.path.join("memcached"))
}

/// memcached's own test suite on both, as a step of the full run.
pub(crate) fn compare_suites(root: &Path) -> Result<(), String> {
    run(root, &["--test"])
}

/// Our tests on the adapted server under AddressSanitizer, as a step of the full run.
pub(crate) fn sanitize(root: &Path) -> Result<(), String> {
    run(root, &["--sanitize"])
}

impl Tree {
    /// Nobody else changes it, or one beside it, meanwhile.
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

    /// A configured copy of the sources, adapted or not; what is as it should be stays.
    fn lay_out(&self, tree: &Tree) -> Result<(), String> {
        let flags = flags()?.replace("CFLAGS=\"", &format!("CFLAGS=\"{}", tree.flags));
        let recipe = format!("{}\n{flags}\n", self.original.display());
        let stamp = tree.path.with_extension("recipe");
        let same = fs::read_to_string(&stamp).is_ok_and(|before| before == recipe);
        if !same || !tree.path.join("Makefile").is_file() {
            let _ = fs::remove_file(&stamp);
            let _ = fs::remove_dir_all(&tree.path);
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&self.original).arg(&tree.path);
            quietly(&mut copy, "cp")?;
            let mut configure = Command::new("sh");
            let script = format!("{flags} ./configure --enable-sasl --enable-tls");
            configure.args(["-c", &script]).current_dir(&tree.path);
            quietly(&mut configure, "memcached's configure")?;
            fs::write(&stamp, recipe).map_err(|error| format!("{}: {error}", stamp.display()))?;
        }
        if tree.adapted { self.adapt(tree) } else { Ok(()) }
    }

    fn adapt(&self, tree: &Tree) -> Result<(), String> {
        edits::apply(TABLE, &self.original, &tree.path)?;
        for name in OURS {
            let (from, to) = (self.ours.join(name), tree.path.join(name));
            let text = fs::read(&from).map_err(|error| format!("{}: {error}", from.display()))?;
            // A file that has not changed keeps its time, so that make has nothing to do.
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

    /// A program in a tree, with what our makefile wants to know.
    fn command(&self, tree: &Tree, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("MEGAPIPE_LIBRARY", &self.library).env("MEGAPIPE_INCLUDE", &self.include);
        command.current_dir(&tree.path).stdin(Stdio::null());
        // Settings of the make that may have started us are none of memcached's.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        command
    }

    /// How much of memcached is changed, and how much of ours stands beside it.
    fn account(&self) -> Result<String, String> {
        let diff = edits::diff(TABLE, &self.original, &self.megapipe.path)?;
        let extent = edits::extent(&diff);
        let mut lines = 0;
        for name in OURS {
            let path = self.ours.join(name);
            let text = fs::read_to_string(&path);
            lines += text.map_err(|e| format!("{}: {e}", path.display()))?.lines().count();
        }
        Ok(format!(
            "{} files of memcached changed: {} lines removed, {} added; {} lines in {} files of \
             ours beside them",
            TABLE.len(),
            extent.removed,
            extent.added,
            lines,
            OURS.len()
        ))
    }
}

/// The distribution's compiler flags, as assignments for a shell; the same for both trees.
fn flags() -> Result<String, String> {
    let mut command = Command::new("dpkg-buildflags");
    command.env("DEB_BUILD_MAINT_OPTIONS", "hardening=+all").arg("--export=cmdline");
    let output = command.current_dir("/").stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        format!("dpkg-buildflags cannot be run: {error}; install dpkg-dev (cargo xtask setup)")
    })?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
    let is_assignment = |name: &str| said.contains(name);
    match is_assignment("CFLAGS=") && is_assignment("LDFLAGS=") {
        true => Ok(said.replace("-ffile-prefix-map=/=. ", "")),
        false => Err("dpkg-buildflags names no flags; reinstall the package dpkg-dev".to_string()),
    }
}
