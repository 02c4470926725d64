//! Renders manual pages.

use std::path::{Path, PathBuf};
use std::{fs, io, iter};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use sys::output_file::OutputFile;

use crate::print;

/// The date in the pages; a release changes it.
const DATE: &str = "2026-11-26";

/// A term and the text that explains it.
pub type Entry<'a> = (&'a str, &'a str);

/// A section that every page of a program has, such as EXIT STATUS, with its entries.
pub type Section<'a> = (&'a str, &'a [Entry<'a>]);

/// Print the program's manual page, or write a page for each command
#[derive(Debug, Default, Args)]
pub struct ManArgs {
    /// Directory for the program's page and one for each command
    #[arg(long, value_name = "DIRECTORY")]
    pub out: Option<PathBuf>,
}

/// Why pages were not printed or written.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// Standard output cannot be written to.
    #[error("cannot write to standard output: {0}; check the disk or pipe that it goes to")]
    Output(#[source] io::Error),
    /// A file or directory cannot be written.
    #[error("cannot write {}: {source}; choose a directory that can be written", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Prints the program's manual page, or writes the pages of all its commands.
///
/// # Errors
/// [`PageError`] if an output cannot be written.
pub fn manual(
    command: Command,
    sections: &[Section<'_>],
    arguments: &ManArgs,
) -> Result<(), PageError> {
    let mut command = command.disable_help_subcommand(true);
    // Makes subcommands inherit global options and get their full names.
    command.build();
    let program = command.get_name().to_owned();
    match &arguments.out {
        None => rendered(&program, &command, sections)
            .and_then(|page| print(&page).map(drop))
            .map_err(PageError::Output),
        Some(directory) => write_all(&program, &command, sections, directory),
    }
}

fn write_all(
    program: &str,
    command: &Command,
    sections: &[Section<'_>],
    directory: &Path,
) -> Result<(), PageError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| PageError::File { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    // Commands with commands of their own are one level deep.
    let pages =
        command.get_subcommands().flat_map(|page| iter::once(page).chain(page.get_subcommands()));
    for page in iter::once(command).chain(pages.filter(|page| !page.is_hide_set())) {
        let name = page.get_display_name().unwrap_or(program);
        let path = directory.join(format!("{name}.1"));
        let text = rendered(program, page, sections).map_err(failed(&path))?;
        let page = OutputFile::prepare(&path).and_then(|file| file.write(&text));
        page.map_err(failed(&path))?;
    }
    Ok(())
}

/// Returns the manual page of one command.
fn rendered(program: &str, command: &Command, sections: &[Section<'_>]) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let extra = command.get_after_help().map(ToString::to_string);
    // The help's last part is for a terminal; the page has sections for the same content.
    let man = Man::new(command.clone().after_help("")).manual(program).date(DATE);
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if let Some(extra) = extra {
        examples_section(&mut rest, &extra);
    }
    for (head, entries) in sections {
        rest.control("SH", [*head]);
        for (name, text) in *entries {
            rest.control("TP", []).text([bold(*name)]).text([roman(*text)]);
        }
    }
    rest.to_writer(&mut page)?;
    // Line breaks beside an empty line have no effect; mandoc(1) warns of them.
    Ok(String::from_utf8_lossy(&page).replace("\n.br\n\n.br\n", "\n.sp\n").into_bytes())
}

/// Adds a section with the examples verbatim, and the text that follows them as paragraphs.
fn examples_section(page: &mut Roff, help: &str) {
    let mut paragraphs = help.split("\n\n");
    let examples = paragraphs.next().unwrap_or_default();
    page.control("SH", ["EXAMPLES"]);
    verbatim(page, examples.lines().skip_while(|line| *line == "Examples:").map(str::trim_start));
    // The exit status has a section of its own.
    for paragraph in paragraphs.filter(|text| !text.starts_with("Exit status")) {
        // A table is indented.
        let (text, table) = paragraph.split_at(paragraph.find("\n  ").unwrap_or(paragraph.len()));
        page.control("PP", []).text([roman(text)]);
        if !table.is_empty() {
            verbatim(page, table.lines().skip(1));
        }
    }
}

fn verbatim<'a>(page: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    page.control("nf", []);
    for line in lines {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}
