//! The machine's entry for the archive of Debian, with another suite: apt's sources in both their
//! formats are read, and one entry is written.

use std::fs;
use std::path::Path;

/// Suites of Debian, by name and by rank. Relatives of Debian have others.
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

/// Fields that are written anew.
const OWN_FIELDS: [&str; 5] = ["types", "uris", "suites", "components", "enabled"];

/// An entry of the machine for binary packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    address: String,
    suites: Vec<String>,
    components: Vec<String>,
    /// All else, as the format has it: options in brackets, or fields of a stanza.
    rest: String,
    is_stanza: bool,
}

/// A file for apt's directory of sources: its name and its text.
pub(super) type SourceFile = (String, String);

/// The machine's entry for Debian with this suite. `origins` are the addresses that a package of
/// every Debian system comes from; empty if apt does not know.
pub(super) fn entry_of(apt: &Path, suite: &str, origins: &[String]) -> Result<SourceFile, String> {
    let mut paths = vec![apt.join("sources.list")];
    if let Ok(parts) = fs::read_dir(apt.join("sources.list.d")) {
        paths.extend(parts.flatten().map(|entry| entry.path()));
    }
    paths.sort();
    let mut entries = Vec::new();
    for path in paths {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("list") => entries.extend(lines(&text)),
            Some("sources") => entries.extend(stanzas(&text)),
            _ => {}
        }
    }
    let best = best(entries, origins).ok_or_else(|| {
        format!(
            "{} names no archive of Debian, which is where the kernels come from; give \
             directories with a kernel (vmlinuz) and its modules instead: --kernel DIR",
            apt.display()
        )
    })?;
    Ok(best.with_suite(suite))
}

/// Whether the machine names the archive at all.
pub(super) fn is_named(apt: &Path) -> Result<(), String> {
    entry_of(apt, SUITES[0], &[]).map(drop)
}

/// The entry that is Debian's own archive. Other vendors call their suites as Debian does, so that
/// the origin of packages counts, then Debian's key, then the customary name of the directory.
fn best(entries: Vec<Entry>, origins: &[String]) -> Option<Entry> {
    let bare = |address: &str| address.trim_end_matches('/').to_string();
    let is_of_debian = |entry: &Entry| {
        entry.suites.iter().any(|suite| SUITES.contains(&suite.as_str()))
            && entry.components.iter().any(|component| component == "main")
    };
    let merit = |entry: &Entry| {
        let is_origin = origins.iter().any(|origin| bare(origin) == bare(&entry.address));
        let has_key = entry.rest.contains("debian-archive");
        (is_origin, has_key, bare(&entry.address).ends_with("/debian"))
    };
    let candidates = entries.into_iter().filter(is_of_debian);
    let candidates = candidates.filter(|entry| merit(entry) != (false, false, false));
    // Of equals the first.
    candidates.min_by_key(|entry| std::cmp::Reverse(merit(entry)))
}

/// `deb [options] address suite components` in the format of one line each.
fn lines(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
        let rest = rest.split('#').next().unwrap_or_default().trim();
        let (options, place) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((options, place)) => (format!("[{options}] "), place),
            None => (String::new(), rest),
        };
        let mut words = place.split_whitespace().map(String::from);
        let (Some(address), Some(suite)) = (words.next(), words.next()) else { continue };
        entries.push(Entry {
            address,
            suites: vec![suite],
            components: words.collect(),
            rest: options,
            is_stanza: false,
        });
    }
    entries
}

/// Paragraphs of fields, as in `debian.sources`.
fn stanzas(text: &str) -> Vec<Entry> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let paragraphs = lines.split(|line| line.trim().is_empty());
    paragraphs.filter_map(stanza).collect()
}

fn stanza(lines: &[&str]) -> Option<Entry> {
    let field = |line: &str| line.split_once(':').map(|(name, _)| name.to_ascii_lowercase());
    let words = |wanted: &str| -> Vec<String> {
        let line = lines.iter().find(|line| field(line).as_deref() == Some(wanted));
        let value = line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value);
        value.split_whitespace().map(String::from).collect()
    };
    let is_off = words("enabled").iter().any(|word| word.eq_ignore_ascii_case("no"));
    if is_off || !words("types").iter().any(|kind| kind == "deb") {
        return None;
    }
    // A line that begins with a space belongs to the field above it, such as a key.
    let (mut rest, mut is_kept) = (String::new(), false);
    for line in lines {
        if !line.starts_with(' ') {
            is_kept = !OWN_FIELDS.contains(&field(line)?.as_str());
        }
        if is_kept {
            rest.push_str(&format!("{line}\n"));
        }
    }
    Some(Entry {
        address: words("uris").first()?.clone(),
        suites: words("suites"),
        components: words("components"),
        rest,
        is_stanza: true,
    })
}

impl Entry {
    fn with_suite(&self, suite: &str) -> SourceFile {
        let Entry { address, rest, .. } = self;
        if self.is_stanza {
            let own = format!("Types: deb\nURIs: {address}\nSuites: {suite}\nComponents: main\n");
            return ("kernels.sources".to_string(), own + rest);
        }
        ("kernels.list".to_string(), format!("deb {rest}{address} {suite} main\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_stanza_keeps_its_key_and_gets_the_suite() {
        let apt = machine(&[("sources.list.d/debian.sources", DEBIAN)]);
        let (name, text) = entry_of(apt.path(), "sid", &[]).unwrap();
        assert_eq!(name, "kernels.sources");
        assert_eq!(
            text,
            "Types: deb\nURIs: http://a/debian\nSuites: sid\nComponents: main\n\
             Signed-By:\n -----BEGIN\n .\n key\n"
        );
    }

    #[test]
    fn a_line_keeps_its_options_and_other_lines_are_left_out() {
        let text = "# deb http://x/debian bookworm main\ndeb-src http://x/debian bookworm main\n\
                    deb http://x/debian bookworm-security main\n\
                    deb http://vendor/debian bookworm extras\n\
                    deb [arch=amd64 signed-by=/k] http://b/debian/ stable main # main archive\n";
        let apt = machine(&[("sources.list", text)]);
        let (name, text) = entry_of(apt.path(), "trixie", &[]).unwrap();
        assert_eq!(name, "kernels.list");
        assert_eq!(text, "deb [arch=amd64 signed-by=/k] http://b/debian/ trixie main\n");
    }

    #[test]
    fn the_archive_that_packages_come_from_is_preferred_to_other_vendors() {
        let vendor = "deb http://vendor/debian bookworm main\n";
        let own = "deb http://mirror/packages/ bookworm main\n";
        let apt = machine(&[("sources.list", own), ("sources.list.d/a.list", vendor)]);
        let chosen = |origins: &[&str]| {
            let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
            entry_of(apt.path(), "sid", &origins).unwrap().1
        };
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
