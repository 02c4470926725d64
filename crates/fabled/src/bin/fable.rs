//! `fable`: lists names and flows, moves flows to other transports, and runs programs over shared
//! memory.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fabled::commands::{self, CommandError, Connection};
use fabled::run;
use sys::output::STDERR;

/// List names and flows, move flows to other transports, and run programs over shared memory.
#[derive(Debug, Parser)]
#[command(name = "fable", version = env!("MEGAPIPE_VERSION"))]
struct Cli {
    /// Path of the daemon's socket [default: $FABLE_SOCKET, else /run/fable/fabled.sock, else
    /// $XDG_RUNTIME_DIR/fable/fabled.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program whose TCP connections on this host use shared memory
    Run(run::Options),
    #[command(flatten)]
    Ask(Question),
}

/// The commands that query a daemon, or print completions and manual pages.
#[derive(Debug, Subcommand)]
enum Question {
    Ls(commands::LsArguments),
    Top(commands::TopArguments),
    Stat(commands::StatArguments),
    Move(commands::MoveArguments),
    Why(commands::WhyArguments),
    Protect(commands::ProtectArguments),
    Events(commands::EventsArguments),
    Completions(cli::CompletionsArgs),
    Man(cli::ManArgs),
}

const MANUAL: [cli::Section<'_>; 1] = [(
    "EXIT STATUS",
    &[
        ("0", "Done; of move: the flow has moved."),
        ("1", "An error, which is told on standard error; of move also: the move failed."),
        ("2", "The command line is wrong."),
        ("126", "Of run: the program could not be started."),
        ("127", "Of run: there is no such program. Otherwise run ends as the program does."),
    ],
)];

/// The exit status of shells for a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// The exit status of shells for a command that does not exist.
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let cli: Cli = match cli::parse_commands() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match &cli.command {
        Command::Run(options) => match run::run(options) {
            Ok(never) => match never {},
            Err(error) => {
                let code = if error.is_not_found() { NOT_FOUND } else { CANNOT_EXECUTE };
                STDERR.line(format_args!("fable: {error}"));
                ExitCode::from(code)
            }
        },
        Command::Ask(question) => cli::status("fable", ask(question, cli.socket)),
    }
}

fn ask(question: &Question, socket: Option<PathBuf>) -> Result<(), CommandError> {
    let open = || Connection::open(socket);
    match question {
        Question::Ls(arguments) => commands::ls(&mut open()?, arguments),
        Question::Top(arguments) => commands::top(&mut open()?, arguments),
        Question::Stat(arguments) => commands::stat(&mut open()?, arguments),
        Question::Move(arguments) => commands::move_flow(&mut open()?, arguments),
        Question::Why(arguments) => commands::why(&mut open()?, arguments),
        Question::Protect(arguments) => commands::protect(&mut open()?, arguments),
        Question::Events(arguments) => commands::events(&mut open()?, arguments),
        Question::Completions(arguments) => Ok(cli::completions(Cli::command(), arguments.shell)?),
        Question::Man(arguments) => Ok(cli::manual(Cli::command(), &MANUAL, arguments)?),
    }
}
