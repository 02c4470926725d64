//! Restores default signal actions. A shell without job control starts background processes with
//! SIGINT and SIGQUIT ignored, and nohup(1) ignores SIGHUP; every child inherits that, and a test
//! that sends such a signal would wait forever.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The signals that tests send, by number (signal(7)). It has none that a user ignores on purpose,
/// for a run that should survive its terminal.
const EXPECTED: [(u32, &str); 5] =
    [(2, "INT"), (3, "QUIT"), (10, "USR1"), (12, "USR2"), (15, "TERM")];

/// Executes this program again with default actions, if any of the signals is ignored. The standard
/// library cannot change an action, so env(1) of coreutils does.
pub(crate) fn restore() -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("cannot read which signals are ignored: {error}; mount /proc"))?;
    let names = ignored(&status);
    if names.is_empty() {
        return Ok(());
    }
    let program = env::current_exe()
        .map_err(|error| format!("cannot find the program file of xtask: {error}; mount /proc"))?;
    let mut command = Command::new("env");
    command.arg(format!("--default-signal={}", names.join(",")));
    let error = command.arg(program).args(env::args_os().skip(1)).exec();
    Err(format!(
        "SIG{} is ignored, and env(1), which would change that, cannot run: {error}; install \
         coreutils",
        names[0]
    ))
}

fn ignored(status: &str) -> Vec<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = |(number, _): &&(u32, &str)| mask >> (number - 1) & 1 == 1;
    EXPECTED.iter().filter(is_ignored).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        // The state in a background job of a script: HUP, INT, QUIT, and PIPE from Rust itself.
        let status = "Name:\txtask\nSigBlk:\t0000000000000002\nSigIgn:\t0000000080001007\n";
        assert_eq!(ignored(status), ["INT", "QUIT"]);
        assert!(ignored("SigIgn:\t0000000000001000\n").is_empty());
    }

    #[test]
    fn a_program_below_gets_the_default_actions_back() {
        let script = "trap '' INT QUIT; exec env --default-signal=INT,QUIT cat /proc/self/status";
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let status = String::from_utf8(output.stdout).unwrap();
        assert!(status.contains("SigIgn:") && ignored(&status).is_empty(), "{status}");
    }
}
