//! Implements the command line of user-level TCP: checks settings, runs programs, and shows the
//! state of running stacks.

mod reset_peers;
mod run;

use clap::{CommandFactory, Parser, Subcommand};
use cli::PageError;
use mtcp::config::{Config, ENVIRONMENT};
use mtcp::stat::AskError;
use mtcp::{requirements, stat};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use sys::output::STDERR;

/// Runs programs on TCP in user space, checks its configuration, and prints its statistics.
#[derive(Parser)]
#[command(name = "mtcp", version = env!("MEGAPIPE_VERSION"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks a configuration file, and prints its settings or what this machine lacks for them.
    Check {
        /// Configuration file, such as mtcp.toml [default: $MTCP_CONFIG].
        config: Option<PathBuf>,
    },
    /// Waits for the end of a program and resets its connections if it was killed; started by
    /// the library of `mtcp run`.
    #[command(hide = true)]
    ResetPeers,
    Completions(cli::CompletionsArgs),
    Man(cli::ManArgs),
    /// Runs an unmodified program whose TCP connections use the stack.
    Run(run::Options),
    /// Prints connections by state, counters and drops of running stacks.
    Stat {
        /// Print one JSON document per process and line instead of text.
        #[arg(long)]
        json: bool,
        /// List each connection.
        #[arg(long)]
        connections: bool,
        /// Interval of repeated output, in seconds, such as 5; from the second output on, counters
        /// are those of the last interval [default: print once].
        #[arg(long, value_name = "SECONDS")]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        watch: Option<u64>,
        /// Statistics socket of one process: a path, or an abstract name such as @mtcp/4711/0
        /// [default: all processes of this network namespace].
        #[arg(long, value_name = "SOCKET")]
        socket: Option<String>,
        /// Also ask processes of other users than this one and root; their answers may be false.
        #[arg(long)]
        foreign: bool,
    },
}

const MANUAL: [cli::Section<'_>; 1] = [(
    "EXIT STATUS",
    &[
        ("0", "Done; of check: the configuration is right, and this machine has what it needs."),
        ("1", "An error, which is told on standard error, or something that check found."),
        ("2", "The command line is wrong."),
        ("126", "Of run: the program cannot be executed, or the library does not support it."),
        ("127", "Of run: there is no such program. Otherwise run ends as the program does."),
    ],
)];

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let cli: Cli = match cli::parse_commands() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let outcome = match cli.command {
        Command::Check { config } => check(config),
        Command::Run(options) => match run::run(&options) {
            Ok(never) => match never {},
            Err(error) => {
                STDERR.line(format_args!("mtcp: {error}"));
                return ExitCode::from(error.exit_code());
            }
        },
        Command::Completions(arguments) => {
            cli::completions(Cli::command(), arguments.shell).map_err(Into::into)
        }
        Command::Man(arguments) => {
            cli::manual(Cli::command(), &MANUAL, &arguments).map_err(Into::into)
        }
        Command::ResetPeers => reset_peers::run().map_err(Into::into),
        Command::Stat { json, connections, watch, socket, foreign } => {
            let ask = if foreign { stat::ask_anyone } else { stat::ask };
            show(json, watch, socket.as_deref(), |name| ask(name, connections))
        }
    };
    cli::status("mtcp", outcome)
}

fn check(path: Option<PathBuf>) -> Outcome {
    let config = match &path {
        Some(path) => Config::load(path)?,
        None => Config::from_environment()?,
    };
    let named = path.or_else(|| sys::environment::variable(ENVIRONMENT).map(PathBuf::from));
    let unmet = requirements::unmet(&config);
    if !unmet.is_empty() {
        let problems: String = unmet.iter().map(|unmet| format!("\n  {unmet}")).collect();
        let file = named.unwrap_or_default();
        return Err(format!(
            "{}: this machine does not meet the configuration; correct each line:{problems}",
            file.display()
        )
        .into());
    }
    let mut text = format!("{}: good\n", named.unwrap_or_default().display());
    writeln!(text, "device    {:?} {}", config.device.kind, config.device.interface)?;
    for (address, length) in &config.addresses {
        writeln!(text, "address   {address}/{length} ({:?})", config.ownership)?;
    }
    for route in &config.routes {
        let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        writeln!(text, "route     {}/{}{via}", route.prefix, route.length)?;
    }
    writeln!(text, "engines   {} ({:?})", config.engine.cores, config.engine.mode)?;
    Ok(print(&text).map(drop)?)
}

/// Writes to standard output. Returns false if its reader has gone.
fn print(text: &str) -> Result<bool, PageError> {
    cli::print(text.as_bytes()).map_err(PageError::Output)
}

fn show(
    json: bool,
    watch: Option<u64>,
    socket: Option<&str>,
    ask: impl Fn(&str) -> Result<stat::Report, AskError>,
) -> Outcome {
    let mut earlier: Vec<(String, stat::Report)> = Vec::new();
    loop {
        let names = match socket {
            Some(name) => vec![name.to_owned()],
            None => stat::processes()?,
        };
        if names.is_empty() && watch.is_none() {
            return Err(
                "no process with user-level TCP in this network namespace; start one with `mtcp \
                 run`, or enter its namespace (`ip netns exec`)"
                    .into(),
            );
        }
        let mut now = Vec::new();
        let mut skipped = Vec::new();
        for name in names {
            match ask(&name) {
                Ok(report) => now.push((name, report)),
                Err(AskError::Foreign { name, user }) if socket.is_none() => {
                    skipped.push((name, user));
                }
                // With several processes, one may have ended just now.
                Err(error) if socket.is_none() => STDERR.line(format_args!("mtcp: {error}")),
                Err(error) => return Err(error.into()),
            }
        }
        report_skipped(&skipped);
        for (name, report) in &now {
            let before = earlier.iter().find(|(other, _)| other == name);
            let shown = match before {
                Some((_, before)) => stat::difference(before, report),
                None => report.clone(),
            };
            let text = if json { stat::json(&shown)? + "\n" } else { stat::table(&shown) };
            if !print(&text)? {
                return Ok(());
            }
        }
        earlier = now;
        match watch {
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
            None => return Ok(()),
        }
    }
}

/// Reports the sockets of other users, in one line: a user can bind any number of them.
fn report_skipped(skipped: &[(String, u32)]) {
    let Some((name, user)) = skipped.first() else { return };
    STDERR.line(format_args!(
        "mtcp: skipped {} sockets of other users (the first: {name} of user {user}), whose answers \
         may be false; run `mtcp stat` as their user, or add --foreign",
        skipped.len()
    ));
}
