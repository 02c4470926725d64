//! Selects the machine's entry for the archive of Debian, and changes its suite.

use std::path::Path;

use crate::apt::SourceFile;
use crate::apt::entries::{self, Entry};

/// Suites of Debian, by name and by rank. Derived distributions have others.
const SUITES: [&str; 11] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

/// Returns the machine's entry for Debian with this suite. `origins` are the addresses that a
/// package of every Debian system comes from; empty if apt does not know.
pub(super) fn files_of(
    apt: &Path,
    suite: &str,
    origins: &[String],
) -> Result<Vec<SourceFile>, String> {
    let mut entry = best(entries::read(apt), origins).ok_or_else(|| {
        format!(
            "{} names no archive of Debian, which is where the kernels come from; give \
             directories with a kernel (vmlinuz) and its modules instead: --kernel DIR",
            apt.display()
        )
    })?;
    entry.addresses.truncate(1);
    entry.suites = vec![suite.to_string()];
    entry.components = vec!["main".to_string()];
    Ok(entries::files([entry].into_iter()))
}

/// Checks that the machine has an entry for the archive.
pub(super) fn is_named(apt: &Path) -> Result<(), String> {
    files_of(apt, SUITES[0], &[]).map(drop)
}

/// Returns the entry of Debian's own archive. Other vendors name their suites as Debian does, so
/// the origin of packages decides, then Debian's key, then the usual name of the directory.
fn best(entries: Vec<Entry>, origins: &[String]) -> Option<Entry> {
    let is_of_debian = |entry: &Entry| {
        entry.suites.iter().any(|suite| SUITES.contains(&suite.as_str()))
            && entry.components.iter().any(|component| component == "main")
    };
    let merit = |entry: &Entry| {
        let is_origin = !origins.is_empty() && entry.is_from(origins);
        let has_key = entry.rest.contains("debian-archive");
        let is_usual = |address: &String| address.trim_end_matches('/').ends_with("/debian");
        (is_origin, has_key, entry.addresses.iter().any(is_usual))
    };
    let candidates = entries.into_iter().filter(is_of_debian);
    let candidates = candidates.filter(|entry| merit(entry) != (false, false, false));
    // The first of several equally good entries.
    candidates.min_by_key(|entry| std::cmp::Reverse(merit(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const DEBIAN: &str = "Types: deb\n# http://snapshot/debian\nURIs: http://a/debian\n\
                          Suites: bookworm bookworm-updates\nComponents: main contrib\n\
                          Signed-By:\n -----BEGIN\n .\n key\n\n\
                          Types: deb\nURIs: http://a/debian-security\n\
                          Suites: bookworm-security\nComponents: main\n";

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let apt = tempfile::tempdir().unwrap();
        fs::create_dir(apt.path().join("sources.list.d")).unwrap();
        for (name, text) in files {
            fs::write(apt.path().join(name), text).unwrap();
        }
        apt
    }

    /// Returns the one file that is written.
    fn written(apt: &tempfile::TempDir, suite: &str, origins: &[&str]) -> String {
        let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
        let files = files_of(apt.path(), suite, &origins).unwrap();
        assert_eq!(files.len(), 1);
        files[0].1.clone()
    }

    #[test]
    fn a_stanza_keeps_its_key_and_gets_the_suite() {
        let apt = machine(&[("sources.list.d/debian.sources", DEBIAN)]);
        assert_eq!(
            written(&apt, "sid", &[]),
            "Types: deb\nURIs: http://a/debian\nSuites: sid\nComponents: main\n\
             Signed-By:\n -----BEGIN\n .\n key\n\n"
        );
    }

    #[test]
    fn a_line_keeps_its_options_and_other_lines_are_left_out() {
        let text = "# deb http://x/debian bookworm main\ndeb-src http://x/debian bookworm main\n\
                    deb http://x/debian bookworm-security main\n\
                    deb http://vendor/debian bookworm extras\n\
                    deb [arch=amd64 signed-by=/k] http://b/debian/ stable main # main archive\n";
        let apt = machine(&[("sources.list", text)]);
        assert_eq!(
            written(&apt, "trixie", &[]),
            "deb [arch=amd64 signed-by=/k] http://b/debian/ trixie main\n"
        );
    }

    #[test]
    fn the_archive_that_packages_come_from_is_preferred_to_other_vendors() {
        let vendor = "deb http://vendor/debian bookworm main\n";
        let own = "deb http://mirror/packages/ bookworm main\n";
        let apt = machine(&[("sources.list", own), ("sources.list.d/a.list", vendor)]);
        let chosen = |origins: &[&str]| written(&apt, "sid", origins);
        assert_eq!(chosen(&["http://mirror/packages"]), "deb http://mirror/packages/ sid main\n");
        assert_eq!(chosen(&[]), "deb http://vendor/debian sid main\n");
    }

    #[test]
    fn where_no_entry_is_of_debian_the_remedy_is_named() {
        let ubuntu = "Types: deb\nURIs: http://archive/ubuntu\nSuites: noble noble-updates\n\
                      Components: main\n\nEnabled: no\nTypes: deb\nURIs: http://a/debian\n\
                      Suites: sid\nComponents: main\n";
        let apt = machine(&[("sources.list.d/ubuntu.sources", ubuntu)]);
        let error = is_named(apt.path()).unwrap_err();
        assert!(
            error.contains("no archive of Debian") && error.contains("--kernel DIR"),
            "{error}"
        );
        assert!(is_named(machine(&[("sources.list.d/d.sources", DEBIAN)]).path()).is_ok());
    }
}
