//! Manual pages and shell completions, which the project's programs generate from the definitions
//! of their command lines; and the output of commands, which fail if it cannot be written.
//!
//! Programs with commands have the commands `man` and `completions` ([`ManArgs`],
//! [`CompletionsArgs`]); programs without have the options `--man` and `--completions`
//! ([`parse`]). `version.rs` is the build script of all these programs: it sets
//! `MEGAPIPE_VERSION`, which contains the commit.

#![forbid(unsafe_code)]

mod manual;

use std::fmt::Display;
use std::io::{self, Write, stdout};
use std::process::ExitCode;

use clap::{Arg, ArgAction, Args, Command, CommandFactory, FromArgMatches, Parser, value_parser};
pub use clap_complete::Shell;
use sys::output::STDERR;

pub use manual::{Entry, ManArgs, PageError, Section, manual};

/// Print the completion script of a shell
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell, such as bash
    pub shell: Shell,
}

/// Prints the completion script of a shell.
///
/// # Errors
/// [`PageError::Output`].
pub fn completions(mut command: Command, shell: Shell) -> Result<(), PageError> {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    print(&script).map(drop).map_err(PageError::Output)
}

/// Parses the command line of a program without commands, with the options `--man` and
/// `--completions` added.
///
/// # Errors
/// The exit status of the program after a wrong command line, or if the help, the version, the page
/// or the script was asked for.
pub fn parse<T: CommandFactory + FromArgMatches>(sections: &[Section<'_>]) -> Result<T, ExitCode> {
    let man = Arg::new("man").long("man").action(ArgAction::SetTrue).exclusive(true);
    let shell = Arg::new("completions").long("completions").value_name("SHELL").exclusive(true);
    let command = T::command().arg(man.help("Print the manual page, and exit")).arg(
        shell
            .value_parser(value_parser!(Shell))
            .help("Print the completion script of a shell, such as bash, and exit"),
    );
    let matches = command.clone().try_get_matches().map_err(|error| answer::<T>(&error))?;
    let printed = if matches.get_flag("man") {
        manual(command, sections, &ManArgs::default())
    } else if let Some(shell) = matches.get_one::<Shell>("completions") {
        completions(command, *shell)
    } else {
        return T::from_arg_matches(&matches).map_err(|error| answer::<T>(&error));
    };
    Err(status(T::command().get_name(), printed))
}

/// Parses the command line of a program with commands.
///
/// # Errors
/// The exit status of the program after a wrong command line, or if the help or the version was
/// asked for.
pub fn parse_commands<T: Parser>() -> Result<T, ExitCode> {
    T::try_parse().map_err(|error| answer::<T>(&error))
}

/// Prints what clap answers instead of arguments: an error, the help, or the version.
fn answer<T: CommandFactory>(answer: &clap::Error) -> ExitCode {
    let printed = answer.print().and_then(|()| stdout().flush());
    if answer.use_stderr() {
        return ExitCode::from(answer.exit_code() as u8);
    }
    status(T::command().get_name(), unless_closed(printed).map(drop).map_err(PageError::Output))
}

/// Returns the exit status of a program after its work. Standard error has the error.
pub fn status<E: Display>(program: &str, outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            STDERR.line(format_args!("{program}: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes the result of a command to standard output. Returns false if its reader has closed it,
/// as `head` does when it has enough.
///
/// # Errors
/// Standard output cannot be written to: the command must fail.
pub fn print(text: &[u8]) -> io::Result<bool> {
    let mut stdout = stdout().lock();
    unless_closed(stdout.write_all(text).and_then(|()| stdout.flush()))
}

fn unless_closed(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}
