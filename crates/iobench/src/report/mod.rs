//! `iobench report`: writes one page about one run or several. The page needs no network, no fonts,
//! and, for reading, no script.

mod axis;
mod charts;
pub(crate) mod input;
pub(crate) mod number;
mod plot;
pub(crate) mod point;
mod remarks;
pub(crate) mod section;
mod table;
mod verdict;

use minijinja::value::Serde;
use serde::Serialize;

use crate::cli::saved::ReportArgs;
use crate::engine::environment::Environment;
use crate::engine::whole_file::WholeFile;
use crate::error::{Error, Result};
use crate::output;
use crate::report::charts::Chart;
use crate::report::input::Saved;
use crate::report::remarks::{Remark, Remarks};
use crate::report::section::Section;
use crate::report::table::Table;
use crate::report::verdict::Verdict;
use crate::results::{Clock, Document};

/// Most files: more cannot be compared by eye.
const MOST_FILES: usize = 16;

/// Reads the files and writes the page.
pub(crate) fn run(arguments: &ReportArgs) -> Result<()> {
    if arguments.files.len() > MOST_FILES {
        return Err(Error::setup(
            format!("{} files exceed the limit of a page", arguments.files.len()),
            format!("give at most {MOST_FILES}"),
        ));
    }
    let file = WholeFile::prepare(&arguments.output)?;
    file.check_is_no_input(&arguments.files)?;
    let files = arguments.files.iter().map(|file| input::read(file));
    let page = render(&Section::all(files.collect::<Result<_>>()?))?;
    let is_printed = file.is_standard_output();
    file.write_bytes(page.as_bytes())?;
    if !is_printed {
        let shown = arguments.output.display();
        output::note(&format!("wrote {shown}; open it in any browser"));
    }
    Ok(())
}

/// The data of the page template.
#[derive(Serialize)]
struct Page<'a> {
    title: &'a str,
    style: &'static str,
    script: &'static str,
    version: &'static str,
    sections: Vec<Experiment<'a>>,
}

/// The data of a section of the page template.
#[derive(Serialize)]
struct Experiment<'a> {
    id: &'a str,
    title: &'a str,
    baseline: &'a str,
    service_time: &'static str,
    verdict: Verdict,
    /// Remarks about several rows.
    remarks: Vec<Remark>,
    /// Whether any row is not valid.
    doubtful: bool,
    servers: Vec<Server<'a>>,
    table: Table,
    charts: Vec<Chart>,
    files: Vec<Source<'a>>,
}

/// A server in the legend.
#[derive(Serialize)]
struct Server<'a> {
    series: usize,
    colour: usize,
    shape: usize,
    name: &'a str,
}

/// A file from which the section was made.
#[derive(Serialize)]
struct Source<'a> {
    label: &'a str,
    source: Option<&'a str>,
    scale: &'a str,
    clock: Option<String>,
    elapsed_s: String,
    experiment: &'a str,
    environment: Vec<(String, String)>,
    command: String,
    json: String,
}

/// Renders the page.
/// Returns the page.
pub(crate) fn render(sections: &[Section]) -> Result<String> {
    let page = Page {
        title: sections.first().map_or("no results", |section| &section.title),
        style: include_str!("page.css"),
        script: include_str!("page.js"),
        version: env!("MEGAPIPE_VERSION"),
        sections: sections.iter().map(Experiment::of).collect::<Result<_>>()?,
    };
    render_templates(&page)
        .map_err(|error| Error::setup(format!("cannot make the page: {error:#}"), "report a bug"))
}

fn render_templates(page: &Page<'_>) -> std::result::Result<String, minijinja::Error> {
    let mut templates = minijinja::Environment::new();
    templates.add_template("page.html", include_str!("page.html"))?;
    templates.add_template("section.html", include_str!("section.html"))?;
    templates.get_template("page.html")?.render(Serde(page))
}

impl<'a> Experiment<'a> {
    fn of(section: &'a Section) -> Result<Experiment<'a>> {
        let server = |(series, name): (usize, &'a String)| Server {
            series,
            colour: plot::colour(series),
            shape: plot::shape(series),
            name,
        };
        let remarks = Remarks::of(section);
        Ok(Experiment {
            id: &section.id,
            title: &section.title,
            baseline: &section.baseline,
            service_time: section.service_time(),
            verdict: Verdict::of(section, &remarks),
            remarks: remarks.common.clone(),
            doubtful: section.rows.iter().any(|row| !row.valid),
            servers: section.servers.iter().enumerate().map(server).collect(),
            table: Table::of(section, remarks),
            charts: charts::all(section)?,
            files: section.files.iter().map(Source::of).collect(),
        })
    }
}

impl<'a> Source<'a> {
    fn of(file: &'a Saved) -> Source<'a> {
        let Document { experiment, environment, elapsed_s, clock, .. } = &file.document;
        Source {
            label: &file.label,
            source: experiment.source.as_deref(),
            scale: &experiment.scale,
            clock: clock.as_ref().map(Clock::describe),
            elapsed_s: number::plain(*elapsed_s),
            experiment: &experiment.file,
            environment: facts(environment),
            command: command(environment),
            json: in_script(&file.text),
        }
    }
}

/// Returns every field of the environment but the command, with its name in the file.
fn facts(environment: &Environment) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(environment) else {
        return Vec::new();
    };
    fields
        .into_iter()
        .filter(|(name, value)| name != "command" && !value.is_null())
        .map(|(name, value)| (name.replace('_', " "), plain_text(&value)))
        .collect()
}

fn plain_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(parts) => {
            parts.iter().map(plain_text).collect::<Vec<_>>().join(", ")
        }
        serde_json::Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| format!("{}: {}", name.replace('_', " "), plain_text(value)))
            .collect::<Vec<_>>()
            .join("; "),
        other => other.to_string(),
    }
}

/// Returns the command line, quoted for a shell.
fn command(environment: &Environment) -> String {
    let value = serde_json::to_value(environment).unwrap_or_default();
    let words = value["command"].as_array().cloned().unwrap_or_default();
    words.iter().map(|word| quoted(&plain_text(word))).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=/.,:@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// JSON that cannot end its script element: a `<` occurs in strings only, where it is written as an
/// escape.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_typed_again() {
        let words = ["iobench", "--peer", "mine=./a b", "it's", ""];
        let quoted = words.map(quoted).join(" ");
        assert_eq!(quoted, r"iobench --peer 'mine=./a b' 'it'\''s' ''");
    }

    #[test]
    fn embedded_data_cannot_leave_its_element() {
        let json = r#"{"server":"</script><!--<script>"}"#;
        let embedded = in_script(json);
        assert!(!embedded.contains('<'));
        let read: serde_json::Value = serde_json::from_str(&embedded).unwrap();
        assert_eq!(read["server"], "</script><!--<script>");
    }
}
