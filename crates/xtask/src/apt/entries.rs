//! Reads and writes apt's entries for archives, in both formats.

use std::fs;
use std::path::Path;

use super::SourceFile;

/// The directory of apt's sources.
pub(crate) const MACHINE_APT: &str = "/etc/apt";

/// The fields of a stanza that have members of their own in [`Entry`].
const OWN_FIELDS: [&str; 5] = ["types", "uris", "suites", "components", "enabled"];

/// Names of the written files, by format.
const LIST: &str = "machine.list";
const STANZAS: &str = "machine.sources";

/// An entry for packages, or one derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    kind: &'static str,
    pub(crate) addresses: Vec<String>,
    pub(crate) suites: Vec<String>,
    pub(crate) components: Vec<String>,
    /// The rest of the entry in its format: options in brackets, or fields of a stanza.
    pub(crate) rest: String,
    is_stanza: bool,
}

/// Returns the entries for packages in this directory of apt.
pub(crate) fn read(apt: &Path) -> Vec<Entry> {
    let mut paths = vec![apt.join("sources.list")];
    if let Ok(parts) = fs::read_dir(apt.join("sources.list.d")) {
        paths.extend(parts.flatten().map(|entry| entry.path()));
    }
    paths.sort();
    let mut entries = Vec::new();
    for path in paths {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("list") => entries.extend(text.lines().filter_map(line)),
            Some("sources") => entries.extend(stanzas(&text)),
            _ => {}
        }
    }
    entries
}

/// Returns the files with these entries, without empty ones.
pub(crate) fn files(entries: impl Iterator<Item = Entry>) -> Vec<SourceFile> {
    let (stanzas, lines): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.is_stanza);
    let file = |(name, entries): (&str, Vec<Entry>)| {
        let text: String = entries.iter().map(Entry::text).collect();
        (!text.is_empty()).then(|| (name.to_string(), text))
    };
    [(LIST, lines), (STANZAS, stanzas)].into_iter().filter_map(file).collect()
}

/// Parses `deb [options] address suite components`, the one-line format.
fn line(line: &str) -> Option<Entry> {
    let rest = line.trim().strip_prefix("deb ")?;
    let rest = rest.split('#').next().unwrap_or_default().trim();
    let (options, place) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((options, place)) => (format!("[{options}] "), place),
        None => (String::new(), rest),
    };
    let mut words = place.split_whitespace().map(String::from);
    Some(Entry {
        kind: "deb",
        addresses: vec![words.next()?],
        suites: vec![words.next()?],
        components: words.collect(),
        rest: options,
        is_stanza: false,
    })
}

/// Parses paragraphs of fields, as in `debian.sources`.
fn stanzas(text: &str) -> Vec<Entry> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let paragraphs = lines.split(|line| line.trim().is_empty());
    paragraphs.filter_map(stanza).collect()
}

fn stanza(lines: &[&str]) -> Option<Entry> {
    // A line that begins with a space belongs to the field above it, such as a key.
    let fields: Vec<&[&str]> = lines.chunk_by(|_, next| next.starts_with(' ')).collect();
    let name = |field: &[&str]| field[0].split(':').next().map(str::to_ascii_lowercase);
    let words = |wanted: &str| -> Vec<String> {
        let field = fields.iter().find(|field| name(field).as_deref() == Some(wanted));
        let text = field.map(|field| field.join(" ")).unwrap_or_default();
        let value = text.split_once(':').map_or("", |(_, value)| value);
        value.split_whitespace().map(String::from).collect()
    };
    let is_off = words("enabled").iter().any(|word| word.eq_ignore_ascii_case("no"));
    if is_off || !words("types").iter().any(|kind| kind == "deb") {
        return None;
    }
    let is_kept = |field: &&&[&str]| !name(field).is_some_and(|n| OWN_FIELDS.contains(&n.as_str()));
    let rest = fields.iter().filter(is_kept).flat_map(|field| field.iter());
    Some(Entry {
        kind: "deb",
        addresses: Some(words("uris")).filter(|addresses| !addresses.is_empty())?,
        suites: words("suites"),
        components: words("components"),
        rest: rest.map(|line| format!("{line}\n")).collect(),
        is_stanza: true,
    })
}

impl Entry {
    /// Returns whether packages come from one of the origins; empty origins mean all.
    pub(crate) fn is_from(&self, origins: &[String]) -> bool {
        let bare = |address: &String| address.trim_end_matches('/').to_string();
        let is_origin = |address| origins.iter().any(|origin| bare(origin) == bare(address));
        origins.is_empty() || self.addresses.iter().any(is_origin)
    }

    /// Returns the entry of the same archive for packages (`deb`) or for sources (`deb-src`).
    pub(crate) fn with_kind(self, kind: &'static str) -> Entry {
        Entry { kind, ..self }
    }

    fn text(&self) -> String {
        let Entry { kind, rest, .. } = self;
        let [addresses, suites, components] =
            [&self.addresses, &self.suites, &self.components].map(|words| words.join(" "));
        if !self.is_stanza {
            return format!("{kind} {rest}{addresses} {suites} {components}")
                .trim_end()
                .to_string()
                + "\n";
        }
        let mut text = format!("Types: {kind}\nURIs: {addresses}\nSuites: {suites}\n");
        if !components.is_empty() {
            text.push_str(&format!("Components: {components}\n"));
        }
        text + rest + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the entries for sources that follow from a file with packages from these origins.
    fn sources(name: &str, text: &str, origins: &[&str]) -> Vec<SourceFile> {
        let apt = tempfile::tempdir().unwrap();
        fs::create_dir(apt.path().join("sources.list.d")).unwrap();
        fs::write(apt.path().join("sources.list.d").join(name), text).unwrap();
        let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
        let entries = read(apt.path()).into_iter().filter(|entry| entry.is_from(&origins));
        files(entries.map(|entry| entry.with_kind("deb-src")))
    }

    #[test]
    fn one_line_entries_become_sources_with_their_options() {
        let text = "# deb http://a x main\ndeb-src http://a x main\ndeb http://a/ x main # why\n\
                    deb [signed-by=/k arch=amd64] http://b y z\ndeb http://c ./\n";
        let all = "deb-src http://a/ x main\ndeb-src [signed-by=/k arch=amd64] http://b y z\n\
                   deb-src http://c ./\n";
        assert_eq!(sources("a.list", text, &[]), [(LIST.to_string(), all.to_string())]);
        let one = "deb-src http://a/ x main\n".to_string();
        assert_eq!(sources("a.list", text, &["http://a"]), [(LIST.to_string(), one)]);
        assert!(sources("a.save", text, &[]).is_empty());
    }

    #[test]
    fn stanzas_become_sources_and_foreign_or_disabled_ones_are_left_out() {
        let text = "Types: deb deb-src\n# why\nURIs: http://a\nSuites:\n x\n y\nSigned-By: /k\n\n\
                    Types: deb\nURIs: http://b\nSuites: y\nComponents: main\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://a\n";
        let derived = "Types: deb-src\nURIs: http://a\nSuites: x y\nSigned-By: /k\n\n";
        let file = (STANZAS.to_string(), derived.to_string());
        assert_eq!(sources("a.sources", text, &["http://a/"]), [file]);
        assert_eq!(sources("a.sources", text, &[])[0].1.matches("deb-src").count(), 2);
    }
}
