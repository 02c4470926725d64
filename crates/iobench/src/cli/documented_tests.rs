//! Tests that the program accepts every command that the documentation and the help show.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::Cli;

/// Text that ends a command in a shell line, or in a help line that explains it.
const ENDS: &[&str] = &[" #", " | ", " || ", " && ", " >", "  "];

/// README, ARCHITECTURE.md, and everything in docs and docs/tutorials.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    for directory in ["docs", "docs/tutorials"] {
        let pages = fs::read_dir(root.join(directory)).expect("a directory");
        files.extend(pages.map(|entry| entry.expect("an entry").path()));
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    files
}

/// The help of every command.
fn helps() -> Vec<String> {
    let mut cli = Cli::command();
    cli.build();
    let mut commands = vec![cli];
    let mut helps = Vec::new();
    while let Some(mut command) = commands.pop() {
        helps.push(command.render_long_help().to_string());
        commands.extend(command.get_subcommands().cloned());
    }
    helps
}

/// Commands in backticks, and lines that begin with one.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let spans = text.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "));
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("$ ").to_owned());
    let is_command = |text: &String| text.starts_with("iobench ");
    let end = |text: &str| ENDS.iter().filter_map(|end| text.find(end)).min();
    let cut = |text: String| text[..end(&text).unwrap_or(text.len())].trim().to_owned();
    lines.chain(spans).filter(is_command).map(cut).collect()
}

#[test]
fn every_command_of_the_documentation_and_the_help_is_understood() {
    let document = |path: PathBuf| {
        (path.display().to_string(), fs::read_to_string(&path).expect("a document"))
    };
    let help = |text: String| (text.lines().next().unwrap_or_default().to_owned(), text);
    let texts = documents().into_iter().map(document).chain(helps().into_iter().map(help));
    let (mut count, mut refused) = (0, Vec::new());
    for (place, text) in texts {
        for command in commands(&text) {
            count += 1;
            let words = shell_words::split(&command.replace('…', "127.0.0.1:1")).expect("words");
            match Cli::try_parse_from(words).map_err(|error| error.kind()) {
                Ok(_) | Err(ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {}
                // A command's name in prose.
                Err(ErrorKind::MissingRequiredArgument) if command.split(' ').count() == 2 => {}
                Err(kind) => refused.push(format!("{place}: {kind:?}: {command}")),
            }
        }
    }
    assert!(refused.is_empty(), "refused:\n{}", refused.join("\n"));
    assert!(count > 80, "only {count} commands were found");
}
