//! Tests the manual pages of `iobench` with the programs that read them.

use std::fs;
use std::process::Command;

use systemtests_bench::{run, scratch_file, stdout};

#[test]
fn the_pages_format_without_a_warning() {
    let directory = scratch_file().with_extension("man");
    run(&["man", "--out", directory.to_str().unwrap()]);
    for entry in fs::read_dir(&directory).unwrap() {
        let page = entry.unwrap().path();
        let lint = Command::new("mandoc")
            .args(["-Tlint", "-W", "warning"])
            .arg(&page)
            .output()
            .expect("mandoc is installed (cargo xtask setup)");
        assert!(lint.status.success(), "{}", stdout(&lint));
        let formatted = Command::new("groff")
            .args(["-man", "-Tascii", "-ww", "-P-cbou"])
            .arg(&page)
            .output()
            .expect("groff is installed (cargo xtask setup)");
        assert!(formatted.status.success());
        let complaints = String::from_utf8_lossy(&formatted.stderr);
        assert!(complaints.is_empty(), "{complaints}");
        let text = stdout(&formatted);
        for told in ["NAME\n", "EXIT STATUS\n", "With --strict", "MEGAPIPE_DRIVER\n"] {
            assert!(text.contains(told), "{text}");
        }
    }
    fs::remove_dir_all(&directory).unwrap();
}
