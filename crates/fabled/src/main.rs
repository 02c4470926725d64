//! `fabled`, the daemon that registers names and chooses the transports of flows.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use fabled::cluster;
use fabled::daemon::{Daemon, Options, Signals};
use fabled::options::Cli;
use fabled::policy;
use fabled::sandbox;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.print_policy {
        // A closed standard output is no error.
        let _ = stdout().write_all(policy::DEFAULT.as_bytes());
        return ExitCode::SUCCESS;
    }
    if let Some(path) = &cli.make_secret {
        return make_secret(path);
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::from(cli.log_level))
        .with_writer(fabled::log_quota::Writer)
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

fn make_secret(path: &Path) -> ExitCode {
    match cluster::make_secret(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let path = path.display();
            eprintln!(
                "fabled: cannot make a secret in {path}: {error}; name a new file in a directory \
                 that this user can write to"
            );
            ExitCode::FAILURE
        }
    }
}

fn serve(cli: Cli) -> Result<(), Box<dyn Error>> {
    let signals = Signals::catch().map_err(|error| {
        format!("cannot wait for signals: {error}; raise the limit on open files (ulimit -n)")
    })?;
    let policy = cli.read_policy()?;
    let cluster = cli.cluster()?;
    // It has read what only root may read, and bound the address of --listen.
    cli.become_user()?;
    let socket = cli.socket_path();
    let (in_zone, has_filter) = (cli.listen.is_some(), !cli.no_seccomp);
    let read_policy = Box::new(move || cli.read_policy());
    let mut daemon = Daemon::start(Options { signals, socket, policy, read_policy, cluster })?;
    sandbox::drop_capabilities(daemon.path())?;
    if has_filter {
        sandbox::enter(in_zone)?;
    }
    // For programs that wait for the line; a closed standard output is no error.
    let _ = writeln!(stdout(), "listening on {}", daemon.path().display());
    Ok(daemon.run()?)
}
