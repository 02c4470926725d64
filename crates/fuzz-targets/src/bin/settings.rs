//! Fuzzes the files of settings: those of user-level TCP, and the policy of the name daemon.

#![cfg_attr(fuzzing, no_main)]

use std::path::Path;

use fabled::policy::Policy;

fuzz_targets::target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let (Ok(text), path) = (std::str::from_utf8(bytes), Path::new("settings.toml")) else { return };
    let error = match choice % 2 {
        0 => stack::Config::parse(text, path).err().map(|error| error.to_string()),
        _ => Policy::parse(text, path).err().map(|error| error.to_string()),
    };
    assert!(error.is_none_or(|text| text.contains("settings.toml")), "an error without its file");
});
