//! `fabled`, the daemon that registers names and chooses the transports of flows.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use fabled::cluster;
use fabled::daemon::{Daemon, Options, Signals};
use fabled::options::Cli;
use fabled::policy;
use fabled::sandbox;
use sys::output::STDOUT;

const MANUAL: [cli::Section<'_>; 1] = [(
    "EXIT STATUS",
    &[
        ("0", "Ended by SIGTERM or SIGINT, or what was asked for is printed or made."),
        ("1", "It could not start, or cannot go on; standard error has the reason."),
        ("2", "The command line is wrong."),
    ],
)];

fn main() -> ExitCode {
    let cli: Cli = match cli::parse(&MANUAL) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if cli.print_policy {
        let printed = cli::print(policy::DEFAULT.as_bytes());
        return cli::status("fabled", printed.map(drop).map_err(cli::PageError::Output));
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
    cli::status("fabled", serve(cli))
}

fn make_secret(path: &Path) -> ExitCode {
    let path_text = path.display();
    let made = cluster::make_secret(path).map_err(|error| {
        format!(
            "cannot make a secret in {path_text}: {error}; name a new file in a directory that \
             this user can write to"
        )
    });
    cli::status("fabled", made)
}

fn serve(cli: Cli) -> Result<(), Box<dyn Error>> {
    sys::random::check_tables().map_err(|error| {
        format!("cannot draw random numbers: {error}; permit getrandom(2) in the sandbox")
    })?;
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
    STDOUT.line(format_args!("listening on {}", daemon.path().display()));
    Ok(daemon.run()?)
}
