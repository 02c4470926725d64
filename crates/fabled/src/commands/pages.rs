//! Generates shell completions and manual pages from the definition of the command line.

use std::io;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{CommandError, print};

/// The date in the page; a release changes it.
const DATE: &str = "2026-11-26";

/// Print the completion script of a shell
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// Shell, such as bash
    pub shell: Shell,
}

/// Prints completions.
///
/// # Errors
/// [`CommandError::Output`].
pub fn completions(
    mut command: Command,
    arguments: &CompletionsArguments,
) -> Result<(), CommandError> {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    print(&String::from_utf8_lossy(&script)).map(drop)
}

/// Prints the manual page, which includes those of all commands.
///
/// # Errors
/// [`CommandError::Output`].
pub fn manual(command: Command) -> Result<(), CommandError> {
    let page = rendered(command).map_err(CommandError::Output)?;
    // Line breaks beside an empty line have no effect; mandoc(1) warns of them.
    let page = String::from_utf8_lossy(&page).replace("\n.br\n\n.br\n", "\n.sp\n");
    print(&page).map(drop)
}

fn rendered(command: Command) -> io::Result<Vec<u8>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    Man::new(command.clone()).manual("fable").date(DATE).render(&mut page)?;
    for part in command.get_subcommands() {
        let man = Man::new(part.clone());
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
