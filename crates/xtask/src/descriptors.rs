//! Raises the limit of descriptors: a shell gives a program 1,024 unless it asks for more, and some
//! tests need more.

use std::fs;
use std::process::{Command, Stdio};

/// Raises the soft limit of this program, and of the programs that it starts, to the hard limit.
/// The standard library cannot do that, so prlimit(1) of util-linux does.
pub(crate) fn raise() -> Result<(), String> {
    let limits = fs::read_to_string("/proc/self/limits")
        .map_err(|error| format!("cannot read the limits of this program: {error}; mount /proc"))?;
    let Some(hard) = hard_above_soft(&limits) else { return Ok(()) };
    let mut command = Command::new("prlimit");
    command.arg("--pid").arg(std::process::id().to_string());
    command.arg(format!("--nofile={hard}:{hard}")).stdout(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "prlimit(1) cannot raise the limit of descriptors: {status}; raise `ulimit -Hn`"
        )),
        Err(error) => {
            Err(format!("cannot run prlimit(1): {error}; install the package util-linux"))
        }
    }
}

fn hard_above_soft(limits: &str) -> Option<&str> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut words = line.split_whitespace();
    let (soft, hard) = (words.next()?, words.next()?);
    (soft != hard).then_some(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_is_read_if_it_is_higher() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  20000  files\n";
        assert_eq!(hard_above_soft(limits), Some("20000"));
        assert_eq!(hard_above_soft("Max open files   20000   20000   files\n"), None);
    }

    #[test]
    fn this_program_gets_what_it_may_have() {
        raise().unwrap();
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        assert_eq!(hard_above_soft(&limits), None, "{limits}");
    }
}
