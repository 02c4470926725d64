//! Generates the manual: a page in section 3 for each call of a header, and its overview in section
//! 7: megapipe(7), xio(7), mtcp(7).

use super::header::{HEADERS, Source};
use std::fmt::Write;

/// A declaration of the header with its comment.
pub(crate) struct Item {
    source: &'static Source,
    /// The name of a call; `None` for types and constants.
    pub(crate) call: Option<String>,
    comment: Vec<String>,
    declaration: Vec<String>,
}

/// The declarations of a header in their order, and the comment at its top.
pub(crate) struct Header {
    source: &'static Source,
    top: Vec<String>,
    pub(crate) items: Vec<Item>,
}

impl Header {
    pub(crate) fn parse(source: &'static Source) -> Header {
        let text = source.generate();
        let mut lines = text.lines().peekable();
        let top = comment(&mut lines).unwrap();
        let mut items = Vec::new();
        while let Some(line) = lines.peek() {
            if line.starts_with("/*") {
                let comment = comment(&mut lines).unwrap();
                let mut declaration = Vec::new();
                for line in lines.by_ref().take_while(|line| !line.is_empty()) {
                    declaration.push(line.to_owned());
                }
                let call = call_of(&declaration).filter(|name| source.declares(name));
                items.push(Item { source, call, comment, declaration });
            } else {
                lines.next();
            }
        }
        Header { source, top, items }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.source.name
    }

    /// Returns the overview page.
    pub(crate) fn overview(&self) -> String {
        let Source { name, about, related, .. } = self.source;
        let mut page = title(self.source, &name.to_uppercase(), 7);
        let _ = writeln!(page, ".SH NAME\n{name} \\- {about}");
        let _ = writeln!(page, ".SH SYNOPSIS\n.nf\n.B #include <{name}.h>\n");
        page += ".B cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs megapipe)\n.fi\n";
        page += ".SH DESCRIPTION\n";
        // The first two paragraphs describe the file.
        let second = self.top.iter().position(|line| line.starts_with("Made by")).unwrap();
        let length = self.top[second..].iter().position(String::is_empty).unwrap();
        text(&mut page, &self.top[second + length + 1..]);
        page += ".SH CALLS\n";
        for item in self.items.iter() {
            let Some(call) = &item.call else { continue };
            let _ = writeln!(page, ".TP\n.BR {call} (3)\n{}", escape(&item.summary()));
        }
        page += ".SH TYPES AND CONSTANTS\n.nf\n";
        for item in self.items.iter().filter(|item| item.call.is_none()) {
            for line in &item.comment {
                let _ = writeln!(page, "/* {} */", escape(line));
            }
            for line in &item.declaration {
                let _ = writeln!(page, "{}", escape(line));
            }
            page.push('\n');
        }
        let _ = writeln!(page, ".fi\n.SH SEE ALSO\n{related}");
        page
    }
}

/// Takes a comment and returns its lines; `None` if there is none.
fn comment<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Option<Vec<String>> {
    let first = lines.next()?.strip_prefix("/*")?;
    if let Some(only) = first.strip_suffix("*/") {
        return Some(vec![only.trim().to_owned()]);
    }
    let rest = lines.take_while(|line| line.trim() != "*/");
    let bare = |line: &str| line.trim_start().trim_start_matches('*').to_owned();
    Some(rest.map(|line| bare(line).strip_prefix(' ').unwrap_or_default().to_owned()).collect())
}

/// Returns the name of the declared function.
fn call_of(declaration: &[String]) -> Option<String> {
    let (head, _) = declaration.first()?.split_once('(')?;
    head.rsplit([' ', '*']).next().map(str::to_owned)
}

impl Item {
    /// Returns the first sentence, for the page's NAME.
    fn summary(&self) -> String {
        let text = self.comment.join(" ");
        let end = text.find(". ").map_or(text.len(), |end| end);
        let mut sentence = text[..end].trim_end_matches('.').to_owned();
        while let Some(start) = [" (report", " (paper"].iter().find_map(|of| sentence.find(of))
            && let Some(length) = sentence[start..].find(')')
        {
            sentence.replace_range(start..=start + length, "");
        }
        let mut letters = sentence.chars();
        letters.next().map_or(String::new(), |first| {
            first.to_lowercase().collect::<String>() + letters.as_str()
        })
    }

    /// Returns the page of a call.
    pub(crate) fn page(&self) -> String {
        let Some(call) = &self.call else { return String::new() };
        let overview = self.source.name;
        let mut page = title(self.source, &call.to_uppercase(), 3);
        let _ = writeln!(page, ".SH NAME\n{call} \\- {}", escape(&self.summary()));
        let _ = writeln!(page, ".SH SYNOPSIS\n.nf\n.B #include <{overview}.h>\n");
        for line in &self.declaration {
            let _ = writeln!(page, ".B \"{}\"", escape(line));
        }
        page += ".fi\n.SH DESCRIPTION\n";
        let starts =
            |word: &'static str| self.comment.iter().position(move |line| line.starts_with(word));
        let length = |start: usize| {
            self.comment[start..].iter().position(String::is_empty).unwrap_or(usize::MAX)
        };
        let part =
            |start: usize| start..start.saturating_add(length(start)).min(self.comment.len());
        let (returns, errors) = (starts("Returns ").map(part), starts("Errors:").map(part));
        let own = |at: &usize| {
            ![&returns, &errors]
                .iter()
                .any(|part| part.as_ref().is_some_and(|part| part.contains(at)))
        };
        let described = (0..self.comment.len()).filter(own);
        text(&mut page, &described.map(|at| self.comment[at].clone()).collect::<Vec<_>>());
        let status = self.declaration[0].starts_with("int ");
        if let Some(part) = returns {
            page += ".SH RETURN VALUE\n";
            text(&mut page, &self.comment[part]);
        } else if status {
            page += ".SH RETURN VALUE\n0; or \\-1, and\n.I errno\nsays why.\n";
        }
        let _ = writeln!(page, ".SH ERRORS\nThose that\n.BR {overview} (7)\nnames for every call.");
        if let Some(part) = errors {
            page += "Besides:\n";
            text(&mut page, &self.comment[part.start + 1..part.end]);
        }
        let _ = writeln!(page, ".SH SEE ALSO\n.BR {overview} (7){}", self.related(call));
        page
    }

    /// Returns the other calls that the text names.
    fn related(&self, own: &str) -> String {
        let text = self.comment.join(" ");
        let mut names: Vec<&str> = text
            .split(|c: char| !(c.is_ascii_alphanumeric() || "_()".contains(c)))
            .filter_map(|word| word.strip_suffix("()"))
            .filter(|name| HEADERS.iter().any(|source| source.declares(name)) && *name != own)
            .collect();
        names.sort_unstable();
        names.dedup();
        names.iter().fold(String::new(), |all, name| all + &format!(",\n.BR {name} (3)"))
    }
}

/// The date in the pages; a release changes it.
const DATE: &str = "2026-11-26";

fn title(source: &Source, name: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        ".\\\" Made of {}.h by `cargo xtask header`.\n\
         .TH {name} {section} \"{DATE}\" \"MegaPipe {version}\" \"MegaPipe\"\n",
        source.name
    )
}

/// Formats paragraphs. An indented line is a term and its explanation, with two spaces between
/// them. A line after an empty line that is indented by four spaces belongs to a program.
fn text(page: &mut String, lines: &[String]) {
    let mut paragraph = false;
    let mut program = false;
    for line in lines {
        let indented = line.starts_with("    ");
        if program && (indented || line.is_empty()) {
            let _ = writeln!(page, "{}", escape(line.get(4..).unwrap_or_default()));
            continue;
        }
        if paragraph && indented && !program {
            let _ = writeln!(page, ".PP\n.nf\n.RS\n{}", escape(&line[4..]));
            program = true;
            continue;
        }
        if program {
            page.push_str(".RE\n.fi\n");
            program = false;
        }
        let term = line.strip_prefix("  ").filter(|line| !line.starts_with(' '));
        match term.and_then(|line| line.split_once("  ")) {
            _ if line.is_empty() => {
                paragraph = true;
                continue;
            }
            Some((term, explanation)) => {
                let _ = writeln!(page, ".TP\n.B {}\n{}", escape(term), escape(explanation.trim()));
            }
            None => {
                // A line at the margin does not belong to the explanation above it.
                if paragraph && !page.ends_with("DESCRIPTION\n") {
                    page.push_str(".PP\n");
                }
                let _ = writeln!(page, "{}", escape(line.trim()));
            }
        }
        paragraph = term.is_some() && lines.last() != Some(line);
        // A continued explanation is indented further.
        paragraph &= lines
            .iter()
            .skip_while(|other| !std::ptr::eq(*other, line))
            .nth(1)
            .is_some_and(|next| !next.starts_with(' '));
    }
}

fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
