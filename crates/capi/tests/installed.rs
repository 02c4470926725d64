//! Tests of the documented installation. `cargo xtask cinstall` runs them, because they need
//! cargo-c, which takes long to build.

use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaints}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_installed_library_is_found_by_pkg_config() {
    let prefix = tempfile::tempdir().unwrap();
    let mut install = Command::new(env!("CARGO"));
    install.args(["cinstall", "--release", "--locked", "--package", "megapipe-capi"]);
    install.args(["--libdir", "lib", "--prefix"]).arg(prefix.path());
    run(install.current_dir(directory()));
    let library = format!("lib/libmegapipe.so.{VERSION}");
    for file in [
        "include/megapipe.h",
        "include/megapipe.hpp",
        "include/megapipe/task.hpp",
        "include/mtcp.h",
        "include/xio.h",
        "lib/libmegapipe.a",
        &library,
        "lib/pkgconfig/megapipe.pc",
        "share/man/man3/mp_create.3",
        "share/man/man3/mtcp_init.3",
        "share/man/man3/xpoll.3",
        "share/man/man7/megapipe.7",
        "share/man/man7/mtcp.7",
        "share/man/man7/xio.7",
    ] {
        assert!(prefix.path().join(file).is_file(), "{file} is missing");
    }
    let program = prefix.path().join("abi");
    run(compile(prefix.path()).arg("-o").arg(&program));
    let libraries = prefix.path().join("lib");
    let said = run(Command::new(&program).env("LD_LIBRARY_PATH", &libraries));
    assert_eq!(said.trim(), format!("megapipe {VERSION}"));
    let dynamic = run(Command::new("readelf").arg("-d").arg(libraries.join("libmegapipe.so")));
    let (major_minor, _) = VERSION.rsplit_once('.').unwrap();
    assert!(dynamic.contains(&format!("soname: [libmegapipe.so.{major_minor}]")), "{dynamic}");
    assert_links_statically(prefix.path());
}

/// Checks that the flags for static linking and the archive are all that a program needs, even if
/// the compiler adds no library of its own (some add no libgcc_s to C programs).
fn assert_links_statically(prefix: &Path) {
    let flags = pkg_config(prefix, &["--static", "--cflags", "--libs"]);
    assert!(flags.split_whitespace().any(|flag| flag == "-lgcc_s"), "{flags}");
    // -lgcc_s is a shared library only; docs/channel.md says to replace it for -static.
    let fully = flags.replace("-lgcc_s", "-lgcc_eh");
    for (flags, only_these) in
        [(&flags, &["-nodefaultlibs"][..]), (&flags, &[]), (&fully, &["-static"])]
    {
        let program = prefix.join("abi-static");
        let mut command = Command::new("gcc");
        command
            .arg(directory().join("../../systemtests/channel/tests/capi/c/abi.c"))
            .args(only_these);
        // The linker would take the shared library, which is installed in the same directory.
        let archive = |flag| if flag == "-lmegapipe" { "-l:libmegapipe.a" } else { flag };
        command.args(flags.split_whitespace().map(archive)).arg("-o").arg(&program);
        run(&mut command);
        let said = run(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
        assert_eq!(said.trim(), format!("megapipe {VERSION}"), "{command:?}");
    }
}

fn compile(prefix: &Path) -> Command {
    let flags = pkg_config(prefix, &["--cflags", "--libs"]);
    let mut command = Command::new("gcc");
    command
        .arg(directory().join("../../systemtests/channel/tests/capi/c/abi.c"))
        .args(flags.split_whitespace());
    command
}

/// Returns what pkg-config prints about the installed library.
fn pkg_config(prefix: &Path, words: &[&str]) -> String {
    let mut command = Command::new("pkg-config");
    command.args(words).arg("megapipe");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    run(&mut command)
}
