//! Reads the files of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The files of a crate: paths within it, and texts.
pub(crate) type CrateFiles<'a> = BTreeMap<&'a str, &'a str>;

/// Returns the text files of the repository by their path, without what cargo builds.
pub(crate) fn files() -> &'static BTreeMap<String, String> {
    static FILES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut files = BTreeMap::new();
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), "", &mut files);
        files
    })
}

fn read(root: &Path, below: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(root.join(below)).unwrap().map(Result::unwrap) {
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        // cargo marks its target directories with this file, wherever they are.
        if kind.is_dir() && path != ".git" && !entry.path().join("CACHEDIR.TAG").exists() {
            read(root, &format!("{path}/"), files);
        } else if kind.is_file() && is_text(&path) {
            files.insert(path, fs::read_to_string(entry.path()).expect("UTF-8"));
        }
    }
}

fn is_text(path: &str) -> bool {
    let suffix = path.rsplit_once('.').map_or("", |(_, suffix)| suffix);
    ["rs", "c", "cpp", "h", "hpp", "sh", "md", "toml"].contains(&suffix)
}

/// Returns the files of each crate by the crate's directory.
pub(crate) fn crates() -> BTreeMap<&'static str, CrateFiles<'static>> {
    let mut crates = BTreeMap::<&str, CrateFiles<'_>>::new();
    let manifests = files().keys().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    for directory in manifests {
        let below = |(path, text): (&'static String, &'static String)| {
            Some((path.strip_prefix(directory)?.strip_prefix('/')?, text.as_str()))
        };
        crates.insert(directory, files().iter().filter_map(below).collect());
    }
    crates
}
