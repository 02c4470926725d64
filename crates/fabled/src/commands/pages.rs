//! Shell completions and manual pages, made of the definition of the command line.

use std::io;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{CommandError, print};

/// Print a shell's completions
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell
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

/// Prints the manual page, which has those of all commands in it.
///
/// # Errors
/// [`CommandError::Output`].
pub fn manual(command: Command) -> Result<(), CommandError> {
    let page = rendered(command).map_err(CommandError::Output)?;
    print(&String::from_utf8_lossy(&page)).map(drop)
}

fn rendered(command: Command) -> io::Result<Vec<u8>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    Man::new(command.clone()).manual("fable").render(&mut page)?;
    for part in command.get_subcommands() {
        let man = Man::new(part.clone());
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
    }
    Ok(page)
}
