//! Writes the manual of the C library: a page in section 3 for each call of a header, and the
//! header's overview in section 7: megapipe(7), xio(7), mtcp(7). `make -C crates/capi` compiles
//! this file by itself, without cargo.
//!
//! usage: manual-pages HEADERS DIRECTORY VERSION

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// A header of the library.
struct Source {
    /// The name in `#include`, without `.h`; also that of its overview.
    name: &'static str,
    /// A description in a few words.
    about: &'static str,
    /// How the names of its calls begin.
    calls: &'static [&'static str],
    /// The manual pages to which its overview refers.
    related: &'static str,
}

const SOURCES: [Source; 3] = [
    Source {
        name: "megapipe",
        about: "channels for scalable network I/O",
        calls: &["mp_"],
        related: ".BR io_uring (7),\n.BR epoll (7),\n.BR xio (7)",
    },
    Source {
        name: "xio",
        about: "flows that change their transport while they live",
        calls: &["xio_", "xpoll"],
        related: ".BR megapipe (7),\n.BR poll (2)",
    },
    Source {
        name: "mtcp",
        about: "TCP in user space",
        calls: &["mtcp_"],
        related: ".BR megapipe (7),\n.BR socket (7),\n.BR tcp (7),\n.BR epoll (7)",
    },
];

/// The date in the pages; a release changes it.
const DATE: &str = "2026-11-26";

impl Source {
    fn declares(&self, name: &str) -> bool {
        self.calls.iter().any(|start| name.starts_with(start))
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [headers, directory, version] = &arguments[..] else {
        eprintln!("usage: manual-pages HEADERS DIRECTORY VERSION");
        return ExitCode::from(2);
    };
    for source in &SOURCES {
        if let Err(error) = write(source, Path::new(headers), Path::new(directory), version) {
            eprintln!("manual-pages: the manual of {}.h: {error}", source.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Writes the pages of a header below a directory.
fn write(
    source: &'static Source,
    headers: &Path,
    directory: &Path,
    version: &str,
) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(headers.join(source.name).with_extension("h"))?;
    let header = Header::parse(source, &text, version).ok_or("it does not begin with a comment")?;
    let [calls, overviews] = ["man3", "man7"].map(|section| directory.join(section));
    fs::create_dir_all(&calls)?;
    fs::create_dir_all(&overviews)?;
    let overview = header.overview().ok_or("its first comment does not say \"Made by\"")?;
    fs::write(overviews.join(source.name).with_extension("7"), overview)?;
    for item in &header.items {
        if let Some(call) = &item.call {
            fs::write(calls.join(call).with_extension("3"), header.page(item, call))?;
        }
    }
    Ok(())
}

/// A declaration of the header with its comment.
struct Item {
    /// The name of a call; `None` for types and constants.
    call: Option<String>,
    comment: Vec<String>,
    declaration: Vec<String>,
}

/// The declarations of a header in their order, and the comment at its top.
struct Header<'a> {
    source: &'static Source,
    /// The version of the library.
    version: &'a str,
    top: Vec<String>,
    items: Vec<Item>,
}

impl Header<'_> {
    /// Returns `None` if the text does not begin with a comment.
    fn parse<'a>(source: &'static Source, text: &str, version: &'a str) -> Option<Header<'a>> {
        let mut lines = text.lines().peekable();
        let top = comment(&mut lines)?;
        let mut items = Vec::new();
        while let Some(line) = lines.peek() {
            if !line.starts_with("/*") {
                lines.next();
                continue;
            }
            let comment = comment(&mut lines)?;
            let of_item = lines.by_ref().take_while(|line| !line.is_empty());
            let declaration: Vec<String> = of_item.map(str::to_owned).collect();
            let call = call_of(&declaration).filter(|name| source.declares(name));
            items.push(Item { call, comment, declaration });
        }
        Some(Header { source, version, top, items })
    }

    /// Returns the overview page; `None` if the header does not say how it was made.
    fn overview(&self) -> Option<String> {
        let Source { name, about, related, .. } = self.source;
        let mut page = self.title(&name.to_uppercase(), 7);
        let _ = writeln!(page, ".SH NAME\n{name} \\- {about}");
        let _ = writeln!(page, ".SH SYNOPSIS\n.nf\n.B #include <{name}.h>\n");
        page += ".B cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs megapipe)\n.fi\n";
        page += ".SH DESCRIPTION\n";
        // The first two paragraphs describe the file.
        let second = self.top.iter().position(|line| line.starts_with("Made by"))?;
        let length = self.top[second..].iter().position(String::is_empty)?;
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
        Some(page)
    }

    /// Returns the page of a call.
    fn page(&self, item: &Item, call: &str) -> String {
        let overview = self.source.name;
        let mut page = self.title(&call.to_uppercase(), 3);
        let _ = writeln!(page, ".SH NAME\n{call} \\- {}", escape(&item.summary()));
        let _ = writeln!(page, ".SH SYNOPSIS\n.nf\n.B #include <{overview}.h>\n");
        for line in &item.declaration {
            let _ = writeln!(page, ".B \"{}\"", escape(line));
        }
        page += ".fi\n.SH DESCRIPTION\n";
        let starts =
            |word: &'static str| item.comment.iter().position(move |line| line.starts_with(word));
        let length = |start: usize| {
            item.comment[start..].iter().position(String::is_empty).unwrap_or(usize::MAX)
        };
        let part =
            |start: usize| start..start.saturating_add(length(start)).min(item.comment.len());
        let (returns, errors) = (starts("Returns ").map(part), starts("Errors:").map(part));
        let own = |at: &usize| {
            ![&returns, &errors]
                .iter()
                .any(|part| part.as_ref().is_some_and(|part| part.contains(at)))
        };
        let described = (0..item.comment.len()).filter(own);
        text(&mut page, &described.map(|at| item.comment[at].clone()).collect::<Vec<_>>());
        let status = item.declaration[0].starts_with("int ");
        if let Some(part) = returns {
            page += ".SH RETURN VALUE\n";
            text(&mut page, &item.comment[part]);
        } else if status {
            page += ".SH RETURN VALUE\n0; or \\-1, and\n.I errno\nsays why.\n";
        }
        let _ = writeln!(page, ".SH ERRORS\nThose that\n.BR {overview} (7)\nnames for every call.");
        if let Some(part) = errors {
            page += "Besides:\n";
            text(&mut page, &item.comment[part.start + 1..part.end]);
        }
        let _ = writeln!(page, ".SH SEE ALSO\n.BR {overview} (7){}", item.related(call));
        page
    }

    fn title(&self, name: &str, section: u8) -> String {
        let Header { source: Source { name: header, .. }, version, .. } = self;
        format!(
            ".\\\" Made of {header}.h by man/pages.rs.\n\
             .TH {name} {section} \"{DATE}\" \"MegaPipe {version}\" \"MegaPipe\"\n"
        )
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

    /// Returns the other calls that the text names.
    fn related(&self, own: &str) -> String {
        let text = self.comment.join(" ");
        let mut names: Vec<&str> = text
            .split(|c: char| !(c.is_ascii_alphanumeric() || "_()".contains(c)))
            .filter_map(|word| word.strip_suffix("()"))
            .filter(|name| SOURCES.iter().any(|source| source.declares(name)) && *name != own)
            .collect();
        names.sort_unstable();
        names.dedup();
        names.iter().fold(String::new(), |all, name| all + &format!(",\n.BR {name} (3)"))
    }
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
