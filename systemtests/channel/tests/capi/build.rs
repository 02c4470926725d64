//! Compiles C programs against the library, which the build of the workspace has made.

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use testkit::process::{profile_directory, program};

/// Returns the directory of the library's crate.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/capi").canonicalize().unwrap()
}

/// Returns the path of a test program's source.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi/c").join(name)
}

pub(crate) fn shared_library() -> PathBuf {
    program("libmegapipe.so")
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
    /// Without any shared library.
    FullyStatic,
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
        let libraries = profile_directory();
        let mut command = Command::new(compiler.name());
        command.args(flags).arg(source).arg("-I").arg(directory().join("include"));
        match linking {
            Linking::Shared => {
                command.arg("-L").arg(&libraries).arg("-lmegapipe");
                command.arg(format!("-Wl,-rpath,{}", libraries.display()));
            }
            Linking::Static | Linking::FullyStatic => {
                let is_full = linking == Linking::FullyStatic;
                // glibc's archives load shared libraries for names of hosts, of which ld warns.
                command.args(is_full.then_some(["-static", "-Wl,--no-warnings"]).iter().flatten());
                command.arg(program("libmegapipe.a"));
                command.arg(if is_full { "-lgcc_eh" } else { "-lgcc_s" });
                command.args(["-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]);
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
        let known = source("valgrind.supp");
        command.arg(format!("--suppressions={}", known.display())).arg(&self.path);
        command
    }
}
