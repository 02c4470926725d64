//! `fable`: look at flows, move them, and run programs over them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fabled::commands::{self, CommandError, Connection};

/// Look at the names and flows of this host, and move flows from one transport to another.
#[derive(Debug, Parser)]
#[command(name = "fable", version)]
struct Cli {
    /// The daemon's socket [default: $FABLE_SOCKET, else /run/fable/fabled.sock, else
    /// $XDG_RUNTIME_DIR/fable/fabled.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(commands::LsArguments),
    Top(commands::TopArguments),
    Move(commands::MoveArguments),
    Why(commands::WhyArguments),
    Protect(commands::ProtectArguments),
    Events(commands::EventsArguments),
    Completions(commands::CompletionsArguments),
    /// Print the manual page
    Man,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fable: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<(), CommandError> {
    let open = || Connection::open(cli.socket);
    match &cli.command {
        Command::Ls(arguments) => commands::ls(&mut open()?, arguments),
        Command::Top(arguments) => commands::top(&mut open()?, arguments),
        Command::Move(arguments) => commands::move_flow(&mut open()?, arguments),
        Command::Why(arguments) => commands::why(&mut open()?, arguments),
        Command::Protect(arguments) => commands::protect(&mut open()?, arguments),
        Command::Events(arguments) => commands::events(&mut open()?, arguments),
        Command::Completions(arguments) => commands::completions(Cli::command(), arguments),
        Command::Man => commands::manual(Cli::command()),
    }
}
