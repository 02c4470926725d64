//! Builds real programs on the channel from their distribution's sources and MegaPipe's additions.

pub(crate) mod memcached;
pub(crate) mod nginx;
pub(crate) mod operations;
pub(crate) mod programs;
pub(crate) mod sanitizer;
pub(crate) mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::cargo::cargo;
use crate::command::quietly;

/// Builds the channel's C library. It is linked statically, so that the result is a single file.
fn library(root: &Path, target: &Path) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "--package", "megapipe-capi"]);
    quietly(command.current_dir(root), "cargo build --package megapipe-capi")?;
    let library = target.join("release/libmegapipe.a");
    match library.is_file() {
        true => Ok(library),
        false => Err(format!(
            "cannot find {} after its build; set CARGO_TARGET_DIR for this command and cargo alike",
            library.display()
        )),
    }
}

/// Strips `made`; its debug information goes into a file beside `placed` that gdb(1) finds by its
/// name. Returns the path of the stripped file.
fn stripped(made: &Path, placed: &Path) -> Result<PathBuf, String> {
    let with = |ending: &str| {
        let mut name = made.as_os_str().to_os_string();
        name.push(ending);
        PathBuf::from(name)
    };
    let (slim, mut debug) = (with(".slim"), placed.as_os_str().to_os_string());
    debug.push(".debug");
    let mut keep = Command::new("objcopy");
    keep.arg("--only-keep-debug").arg(made).arg(&debug);
    quietly(&mut keep, "objcopy --only-keep-debug")?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&debug);
    let mut strip = Command::new("objcopy");
    strip.arg("--strip-unneeded").arg(link).arg(made).arg(&slim);
    quietly(&mut strip, "objcopy --strip-unneeded")?;
    Ok(slim)
}

/// Strips a program that is used where it was built.
fn strip_in_place(program: &Path) -> Result<(), String> {
    let mut debug = program.as_os_str().to_os_string();
    debug.push(".debug");
    if !newer(program, Path::new(&debug)) {
        return Ok(());
    }
    let slim = stripped(program, program)?;
    let unusable = |error| format!("cannot place {}: {error}", program.display());
    fs::rename(slim, program).map_err(unusable)?;
    // Makes the debug file newer than the program, until the program is built again.
    let debug = fs::File::options().append(true).open(debug);
    debug.and_then(|debug| debug.set_modified(SystemTime::now())).map_err(unusable)
}

/// Returns whether `one` is newer than `other`, or one of them is missing.
fn newer(one: &Path, other: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified());
    match (time(one), time(other)) {
        (Ok(one), Ok(other)) => one > other,
        _ => true,
    }
}
