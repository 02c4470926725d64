//! The daemon that keeps names and flows.

use std::error::Error;
use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use fabled::daemon::{Daemon, Options, Signals};
use fabled::options::Cli;
use fabled::policy;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.print_policy {
        // A reader that has gone away is no error.
        let _ = stdout().write_all(policy::DEFAULT.as_bytes());
        return ExitCode::SUCCESS;
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(cli.log_level))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    match serve(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fabled: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(cli: Cli) -> Result<(), Box<dyn Error>> {
    let signals = Signals::catch()?;
    let policy = cli.read_policy()?;
    let cluster = cli.cluster()?;
    let socket = cli.socket_path();
    let read_policy = Box::new(move || cli.read_policy());
    let mut daemon = Daemon::start(Options { signals, socket, policy, read_policy, cluster })?;
    // For those who wait for it; that nobody does is no error.
    let _ = writeln!(stdout(), "listening on {}", daemon.path().display());
    Ok(daemon.run()?)
}
