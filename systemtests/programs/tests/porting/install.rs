//! Tests `make -C crates/capi install`, and programs that pkg-config helps to compile.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use systemtests_programs::{root, target_dir};
use testkit::process::forget_package;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a command, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The prefix of an installation of this checkout, built as users build it.
pub(crate) static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
    let build = target_dir().join("installed");
    let prefix = build.join("prefix");
    run(make(&build).arg("all"));
    let said = run(make(&build).arg("install").arg(assign("PREFIX", &prefix)));
    assert!(said.contains("ldconfig"), "{said}");
    prefix
});

fn assign(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Returns the Makefile's command without options of an outer make.
fn make(build: &Path) -> Command {
    let mut make = Command::new("make");
    forget_package(&mut make);
    make.env_remove("MAKEFLAGS").env_remove("CARGO_BUILD_TARGET");
    make.arg("-C").arg(root().join("crates/capi")).arg(assign("BUILD", build));
    make.arg(assign("CARGO", Path::new(env!("CARGO"))));
    make
}

/// Lets a command find the installation.
pub(crate) fn installed(command: &mut Command) -> &mut Command {
    command.env("PKG_CONFIG_PATH", PREFIX.join("lib/pkgconfig"));
    command.env("LD_LIBRARY_PATH", PREFIX.join("lib"))
}

fn pkg_config(options: &[&str]) -> String {
    run(installed(Command::new("pkg-config").args(options).arg("megapipe")))
}

#[test]
fn a_package_has_all_files_below_its_directory() {
    let package = tempfile::tempdir().unwrap();
    let build = PREFIX.parent().unwrap();
    run(make(build).args(["install", "PREFIX=/usr"]).arg(assign("DESTDIR", package.path())));
    let usr = package.path().join("usr");
    for file in [
        "include/megapipe.h",
        "include/megapipe.hpp",
        "include/megapipe/task.hpp",
        "include/mtcp.h",
        "include/xio.h",
        "lib/libmegapipe.a",
        "share/man/man3/mp_create.3",
        "share/man/man3/mtcp_init.3",
        "share/man/man3/xpoll.3",
        "share/man/man7/megapipe.7",
    ] {
        assert!(usr.join(file).is_file(), "{file} is missing");
    }
    let described = fs::read_to_string(usr.join("lib/pkgconfig/megapipe.pc")).unwrap();
    assert!(described.starts_with("prefix=/usr\nlibdir=/usr/lib\n"), "{described}");
    let (major_minor, _) = VERSION.rsplit_once('.').unwrap();
    let soname = format!("libmegapipe.so.{major_minor}");
    let file = format!("libmegapipe.so.{VERSION}");
    assert_eq!(fs::read_link(usr.join("lib/libmegapipe.so")).unwrap(), Path::new(&soname));
    assert_eq!(fs::read_link(usr.join("lib").join(&soname)).unwrap(), Path::new(&file));
    let read = |option| run(Command::new("readelf").arg(option).arg(usr.join("lib").join(&file)));
    assert!(read("-dW").contains(&format!("soname: [{soname}]")));
    assert!(read("-VW").contains("MEGAPIPE_0.1"), "the symbols have no version");
    let sections = read("-SW");
    assert!(!sections.contains(".symtab") && !sections.contains(".debug_info"), "{sections}");
}

/// The flags of `--static` are all that a program needs, even if the compiler adds no library, and
/// also if it is linked without any shared library.
#[test]
fn pkg_config_links_programs_statically_and_dynamically() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("abi");
    let source = root().join("systemtests/channel/tests/capi/c/abi.c");
    let shared = pkg_config(&["--cflags", "--libs"]);
    let all = pkg_config(&["--static", "--cflags", "--libs"]);
    // The linker prefers a shared library in the same directory.
    let archive = all.replace("-lmegapipe", "-l:libmegapipe.a");
    for (compiler, flags, more) in [
        ("gcc", &shared, None),
        ("gcc", &archive, None),
        ("gcc", &archive, Some("-nodefaultlibs")),
        ("gcc", &all, Some("-static")),
        ("clang", &shared, None),
        ("clang", &all, Some("-static")),
    ] {
        let mut compile = Command::new(compiler);
        compile.arg(&source).args(more).args(flags.split_whitespace()).arg("-o").arg(&program);
        run(&mut compile);
        let mut command = Command::new(&program);
        if flags == &shared {
            installed(&mut command);
        }
        assert_eq!(run(&mut command).trim(), format!("megapipe {VERSION}"), "{compile:?}");
    }
}

/// The examples' own Makefile finds the installation as users do.
#[test]
fn the_examples_are_built_by_their_makefile() {
    let checkout = tempfile::tempdir().unwrap();
    let sources = checkout.path().join("examples/c");
    fs::create_dir_all(&sources).unwrap();
    for file in ["Makefile", "ping_pong.c"] {
        fs::copy(root().join("examples/c").join(file), sources.join(file)).unwrap();
    }
    let mut make = Command::new("make");
    run(installed(make.env_remove("MAKEFLAGS").arg("-C").arg(&sources)));
    let program = checkout.path().join("target/examples/c/ping_pong");
    let mut server = super::bindings::start(Command::new(program).arg("0"));
    let sent = testkit::content(100_000);
    assert!(super::clients::echo(server.address, &sent, true) == sent);
    server.assert_runs();
}
