//! Fuzzes the name daemon: the input chooses what three clients send.

#![cfg_attr(fuzzing, no_main)]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

fuzz_targets::target!(|bytes: &[u8]| {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("fuzz-daemon-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        directory
    });
    fabled::daemon::fuzzing::packets(directory, bytes);
    // Of services that have kept their owner.
    let _ = fs::remove_file(directory.join("fabled.owners"));
    let _ = fs::remove_dir(directory);
    fs::create_dir_all(directory).expect("a directory");
});
