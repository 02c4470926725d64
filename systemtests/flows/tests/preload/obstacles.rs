//! Tests that programs which the library does not support are named and run without it.

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
