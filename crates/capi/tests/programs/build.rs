//! Builds the library with cargo, and programs with C compilers.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;
use testkit::process::built;

pub(crate) fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Builds the library and returns its directory.
pub(crate) fn library_directory() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built(&["megapipe-capi"]))
}

/// Returns the path of the name daemon.
pub(crate) fn daemon() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built(&["fabled"]).join("fabled"))
}

pub(crate) fn shared_library() -> PathBuf {
    library_directory().join("libmegapipe.so")
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Compiler {
    Gcc,
    Clang,
    Cpp,
    ClangCpp,
}

impl Compiler {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Compiler::Gcc => "gcc",
            Compiler::Clang => "clang",
            Compiler::Cpp => "g++",
            Compiler::ClangCpp => "clang++",
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        Command::new(self.name()).arg("--version").output().is_ok()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linking {
    Shared,
    Static,
}

/// A compiled program; dropping this removes it.
pub(crate) struct Program {
    path: PathBuf,
    _directory: TempDir,
}

impl Program {
    pub(crate) fn compile(
        compiler: Compiler,
        source: &Path,
        flags: &[&str],
        linking: Linking,
    ) -> Program {
        let libraries = library_directory();
        let mut command = Command::new(compiler.name());
        command.args(flags).arg(source).arg("-I").arg(directory().join("include"));
        match linking {
            Linking::Shared => {
                command.arg("-L").arg(libraries).arg("-lmegapipe");
                command.arg(format!("-Wl,-rpath,{}", libraries.display()));
            }
            Linking::Static => {
                command.arg(libraries.join("libmegapipe.a"));
                command.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]);
            }
        }
        Program::link(command)
    }

    /// Runs a compiler's command with the output option added.
    pub(crate) fn link(mut command: Command) -> Program {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        command.arg("-o").arg(&path);
        let output = command.output().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; `cargo xtask setup` installs compilers")
        });
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaints.is_empty(), "{command:?}\n{complaints}");
        Program { path, _directory: directory }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// Returns the command that runs the program under valgrind, whose exit code is the result.
    pub(crate) fn valgrind(&self) -> Command {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
        command.arg("--errors-for-leak-kinds=definite");
        let known = directory().join("tests/c/valgrind.supp");
        command.arg(format!("--suppressions={}", known.display())).arg(&self.path);
        command
    }
}
