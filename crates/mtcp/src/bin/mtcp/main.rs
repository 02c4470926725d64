//! The command line of user-level TCP: checks settings, runs programs, shows what running stacks
//! do.

mod reset_peers;
mod run;

use clap::{Parser, Subcommand};
use mtcp::config::{Config, ENVIRONMENT};
use mtcp::{requirements, stat};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// User-level TCP: checks settings, runs unmodified programs, shows what running stacks do.
#[derive(Parser)]
#[command(name = "mtcp", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Reads a configuration and says what it means, or what this machine lacks for it.
    Check {
        /// The file; without one, the file that MTCP_CONFIG names.
        config: Option<PathBuf>,
    },
    /// Waits for the end of a program and resets its connections if it was killed; started by
    /// the library of `mtcp run`.
    #[command(hide = true)]
    ResetPeers,
    /// Runs an unmodified program whose TCP goes through the stack.
    Run(run::Options),
    /// Shows connections by state, counters and drops of running stacks.
    Stat {
        /// One JSON document a line instead of text.
        #[arg(long)]
        json: bool,
        /// Lists each connection.
        #[arg(long)]
        connections: bool,
        /// Repeats; from the second time on, counters are those of the time in between.
        #[arg(long, value_name = "SECONDS")]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        watch: Option<u64>,
        /// The socket of a process: a path, or an abstract name with @ before it. Without one, all
        /// processes of this network namespace.
        #[arg(long)]
        socket: Option<String>,
    },
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Check { config } => check(config),
        Command::Run(options) => match run::run(&options) {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("mtcp: {error}");
                return ExitCode::from(error.exit_code());
            }
        },
        Command::ResetPeers => reset_peers::run().map_err(Into::into),
        Command::Stat { json, connections, watch, socket } => {
            show(json, connections, watch, socket.as_deref())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mtcp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(path: Option<PathBuf>) -> Outcome {
    let config = match &path {
        Some(path) => Config::load(path)?,
        None => Config::from_environment()?,
    };
    let named = path.or_else(|| std::env::var_os(ENVIRONMENT).map(PathBuf::from));
    let unmet = requirements::unmet(&config);
    if !unmet.is_empty() {
        let problems: String = unmet.iter().map(|unmet| format!("\n  {unmet}")).collect();
        let file = named.unwrap_or_default();
        return Err(format!("{}: cannot be used here:{problems}", file.display()).into());
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: good", named.unwrap_or_default().display())?;
    writeln!(out, "device    {:?} {}", config.device.kind, config.device.interface)?;
    for (address, length) in &config.addresses {
        writeln!(out, "address   {address}/{length} ({:?})", config.ownership)?;
    }
    for route in &config.routes {
        let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        writeln!(out, "route     {}/{}{via}", route.prefix, route.length)?;
    }
    writeln!(out, "engines   {} ({:?})", config.engine.cores, config.engine.mode)?;
    Ok(())
}

fn show(json: bool, connections: bool, watch: Option<u64>, socket: Option<&str>) -> Outcome {
    let mut earlier: Vec<(String, stat::Report)> = Vec::new();
    loop {
        let names = match socket {
            Some(name) => vec![name.to_owned()],
            None => stat::processes()?,
        };
        if names.is_empty() && watch.is_none() {
            return Err("no process with user-level TCP in this network namespace".into());
        }
        let mut now = Vec::new();
        for name in names {
            match stat::ask(&name, connections) {
                Ok(report) => now.push((name, report)),
                // One of several may have ended just now.
                Err(error) if socket.is_none() => eprintln!("mtcp: {error}"),
                Err(error) => return Err(error.into()),
            }
        }
        let mut out = std::io::stdout().lock();
        for (name, report) in &now {
            let before = earlier.iter().find(|(other, _)| other == name);
            let shown = match before {
                Some((_, before)) => stat::difference(before, report),
                None => report.clone(),
            };
            let text =
                if json { serde_json::to_string(&shown)? + "\n" } else { stat::table(&shown) };
            // Whoever reads may have seen enough.
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
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
