//! Tests that programs which the library does not support are named and run without it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::Runner;
use fabled::run::{Obstacle, obstacle};

fn build(directory: &Path, name: &str, source: &str, flags: &[&str]) -> std::path::PathBuf {
    let (program, file) = (directory.join(name), directory.join(format!("{name}.c")));
    std::fs::write(&file, source).unwrap();
    systemtests_flows::compile(&file, &program, flags);
    program
}

#[test]
fn each_obstacle_is_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let main = "int main(void) { return 7; }";
    let plain = build(at, "plain", main, &[]);
    assert_eq!(obstacle(&plain), None);
    let fixed = build(at, "fixed", main, &["-static"]);
    assert_eq!(obstacle(&fixed), Some(Obstacle::Static));
    let go = "const char mark[] = \"\\377 Go buildinf:\"; int main(void) { return mark[0] == 1; }";
    assert_eq!(obstacle(&build(at, "go", go, &[])), Some(Obstacle::Go));
    let ring = "int main(void) { __asm__(\"mov $425, %eax\\n syscall\"); return 0; }";
    assert_eq!(obstacle(&build(at, "ring", ring, &[])), Some(Obstacle::IoUring));
    let script = at.join("script");
    std::fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
    assert_eq!(obstacle(&script), Some(Obstacle::Static));
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o4755)).unwrap();
    assert_eq!(obstacle(&plain), Some(Obstacle::SetUserId));
}

#[test]
fn a_static_program_runs_plainly_and_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), "fixed", "int main(void) { return 7; }", &["-static"]);
    let runner = Runner::new();
    let output = runner.command(&[]).arg(&program).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("is statically linked"), "{complaint}");
}

#[test]
fn what_follows_the_program_is_the_programs() {
    let output = Runner::new().command(&[]).args(["echo", "--bogus", "-n"]).output().unwrap();
    assert_eq!(output.stdout, b"--bogus -n\n", "options, too");
}

#[test]
fn scripts_exit_with_their_status_and_keep_other_preloaded_libraries() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/bin/sh\necho \"$LD_PRELOAD\"\nexit 9\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let other = crate::support::library().to_str().unwrap();
    let runner = Runner::new();
    let output = runner.command(&[]).env("LD_PRELOAD", other).arg(&script).output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    assert!(String::from_utf8(output.stdout).unwrap().trim().ends_with(&format!(":{other}")));
}

/// The library of somebody else, below the working directory at every relative name that is left
/// of the path when it is split.
const PLANTED: &str = "
#include <unistd.h>
__attribute__((constructor)) static void start(void) { write(1, \"planted\", 7); }
";

#[test]
fn no_library_of_the_working_directory_is_loaded_whatever_the_path_of_the_installation() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let planted = build(&root, "planted.so", PLANTED, &["-shared", "-fPIC"]);
    let library = crate::support::library();
    let file = library.file_name().unwrap();
    let runner = Runner::new();
    let run = |library: &Path, work: &Path| {
        let mut command = runner.command(&[]);
        command.env("FABLE_PRELOAD", library).current_dir(work).arg("printenv").arg("LD_PRELOAD");
        command.output().unwrap()
    };
    for byte in (1..=u8::MAX).filter(|byte| *byte != b'/') {
        let name = [&[b'a', byte][..], b"LIB"].concat();
        let (installed, work) = (root.join("installed"), root.join("work"));
        let place = installed.join(OsStr::from_bytes(&name));
        std::fs::create_dir_all(&place).unwrap();
        let copy = place.join(file);
        std::fs::copy(library, &copy).unwrap();
        std::fs::create_dir_all(work.join("LIB")).unwrap();
        std::fs::copy(&planted, work.join("LIB").join(file)).unwrap();
        let output = run(&copy, &work);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.stdout.starts_with(b"planted"), "{byte:#x}: {said}");
        match byte {
            b' ' | b':' | b'$' => {
                assert_eq!(output.status.code(), Some(126), "{byte:#x}: {said}");
                assert!(said.contains("splits LD_PRELOAD"), "{byte:#x}: {said}");
            }
            _ => {
                assert!(output.status.success(), "{byte:#x}: {said}");
                let first = [copy.as_os_str().as_bytes(), b"\n"].concat();
                assert_eq!(output.stdout, first, "{byte:#x}");
                assert!(!said.contains("cannot be preloaded"), "{byte:#x}: {said}");
            }
        }
        std::fs::remove_dir_all(&installed).unwrap();
        std::fs::remove_dir_all(&work).unwrap();
    }
}
