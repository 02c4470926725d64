//! Generates shell completions and manual pages from the definitions of the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::Cli;
use crate::cli::saved::{CompletionsArgs, ManArgs};
use crate::error::{Context, Result};
use crate::output;

const NAME: &str = "iobench";
/// The date in the pages; a release changes it.
const DATE: &str = "2026-11-26";

const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "Everything was measured; what is not valid is marked INVALID, and nothing got worse."),
    ("1", "An error, which is told on standard error; of diff also: something got worse."),
    (
        "2",
        "With --strict: a result is not valid, and the reason stands with it. Of diff without any \
         option: a row is missing or not valid.",
    ),
    ("130", "Interrupted by Ctrl-C."),
];

const FILES: [(&str, &str); 3] = [
    (
        "*.toml",
        "Experiments: the workload, the servers, the axes of the sweep, and how long to measure.",
    ),
    ("*.json", "Results, with the environment, the experiment and raw histograms."),
    ("report.html", "The page that report writes unless told otherwise."),
];

const ENVIRONMENT: [(&str, &str); 2] = [
    (
        "MEGAPIPE_DRIVER",
        "Decides for the megapipe server which driver its channels use, uring or epoll; without it \
         the channel tries.",
    ),
    ("MEGAPIPE_APPS", "Where apps looks for the adapted programs, instead of beside iobench."),
];

/// Prints the completion script.
pub(crate) fn completions(arguments: &CompletionsArgs) {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), NAME, &mut script);
    output::print(&String::from_utf8_lossy(&script));
}

/// Prints the main manual page, or writes the pages of all commands.
pub(crate) fn run(arguments: &ManArgs) -> Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    // Makes subcommands inherit global options and get their full names.
    command.build();
    match &arguments.out {
        None => output::print(&String::from_utf8_lossy(&rendered(&command)?)),
        Some(directory) => write_all(&command, directory)?,
    }
    Ok(())
}

fn write_all(command: &Command, directory: &Path) -> Result<()> {
    const REMEDY: &str = "choose a directory that can be written";
    fs::create_dir_all(directory).context(format!("make {}", directory.display()), REMEDY)?;
    // Commands with commands of their own are one level deep.
    let pages = command
        .get_subcommands()
        .flat_map(|page| std::iter::once(page).chain(page.get_subcommands()));
    for page in std::iter::once(command).chain(pages.filter(|page| !page.is_hide_set())) {
        let name = page.get_display_name().unwrap_or(NAME);
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, rendered(page)?).context(format!("write {}", path.display()), REMEDY)?;
    }
    Ok(())
}

/// Returns the manual page of one command.
fn rendered(command: &Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    render(command, &mut page).context("make the manual page", "report this as a bug")?;
    // Line breaks beside an empty line have no effect; mandoc(1) warns of them.
    Ok(String::from_utf8_lossy(&page).replace("\n.br\n\n.br\n", "\n.sp\n").into_bytes())
}

fn render(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let examples = command.get_after_help().map(ToString::to_string);
    // The help's last part is for a terminal; the page has sections for the same content.
    let man = Man::new(command.clone().after_help("")).manual("iobench").date(DATE);
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(page)?;
    }
    let mut rest = Roff::new();
    if let Some(examples) = examples {
        examples_section(&mut rest, &examples);
    }
    section(&mut rest, "EXIT STATUS", &EXIT_STATUS);
    section(&mut rest, "FILES", &FILES);
    section(&mut rest, "ENVIRONMENT", &ENVIRONMENT);
    rest.to_writer(page)
}

/// Adds a section with the examples verbatim, and the text that follows them as paragraphs.
fn examples_section(page: &mut Roff, help: &str) {
    let mut paragraphs = help.split("\n\n");
    let examples = paragraphs.next().unwrap_or_default();
    page.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.lines().skip_while(|line| *line == "Examples:") {
        page.text([roman(line.trim_start())]);
    }
    page.control("fi", []);
    // The exit status has a section of its own.
    for paragraph in paragraphs.filter(|text| !text.starts_with("Exit status")) {
        page.control("PP", []).text([roman(paragraph)]);
    }
}

fn section(page: &mut Roff, head: &str, entries: &[(&str, &str)]) {
    page.control("SH", [head]);
    for (name, text) in entries {
        page.control("TP", []).text([bold(*name)]).text([roman(*text)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_exit_status_is_in_the_reference() {
        let codes: BTreeSet<String> = EXIT_STATUS.map(|(code, _)| code.to_owned()).into();
        let documented = testkit::documented("exit-codes.md", "iobench");
        // A second table there begins with the names of commands.
        let is_code = |name: &String| name.parse::<u8>().is_ok();
        assert_eq!(documented.into_iter().filter(is_code).collect::<BTreeSet<_>>(), codes);
    }
}
