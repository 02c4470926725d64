//! What the documented installation leaves behind: `cargo xtask cinstall`, because it needs
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
}

fn compile(prefix: &Path) -> Command {
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.args(["--cflags", "--libs", "megapipe"]);
    pkg_config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = run(&mut pkg_config);
    let mut command = Command::new("gcc");
    command.arg(directory().join("tests/c/abi.c")).args(flags.split_whitespace());
    command
}
