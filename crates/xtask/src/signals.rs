//! Signals as programs expect them. A shell without job control starts what runs in the background
//! with SIGINT and SIGQUIT ignored, and so does nohup(1) with SIGHUP; every program below inherits
//! that, and a test that interrupts one would wait for ever.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// By number (signal(7)): those that the tests send, and none that somebody means to be ignored
/// when he starts a run that shall outlive its terminal.
const EXPECTED: [(u32, &str); 5] =
    [(2, "INT"), (3, "QUIT"), (10, "USR1"), (12, "USR2"), (15, "TERM")];

/// Starts this program anew with the default actions, if any of them is ignored. The standard
/// library cannot change an action, so coreutils' env(1) does it.
pub(crate) fn restore() -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("cannot read which signals are ignored: {error}"))?;
    let names = ignored(&status);
    if names.is_empty() {
        return Ok(());
    }
    let program = env::current_exe().map_err(|error| format!("where is xtask? {error}"))?;
    let mut command = Command::new("env");
    command.arg(format!("--default-signal={}", names.join(",")));
    let error = command.arg(program).args(env::args_os().skip(1)).exec();
    Err(format!("SIG{} is ignored, and env(1) cannot be run to change that: {error}", names[0]))
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
        // What a background job of a script has: HUP, INT, QUIT, and PIPE from Rust itself.
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
