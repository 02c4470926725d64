//! Runs a program with a time limit, and collects all its output.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two checks whether the program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long the output of a killed program may stay open, because other processes may have it.
const LINGER: Duration = Duration::from_secs(5);

/// The output and the exit status of a program.
#[derive(Debug)]
pub(crate) struct Output {
    /// `None` if the program had to be killed.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs a program without input, and kills it after the time limit.
pub(crate) fn output(command: &mut Command, time_limit: Duration) -> io::Result<Output> {
    let deadline = Instant::now() + time_limit;
    output_until(command, || Instant::now() >= deadline)
}

/// Runs a program as `output` does, with a function that decides when the time is over.
fn output_until(command: &mut Command, is_over: impl Fn() -> bool) -> io::Result<Output> {
    let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn()?;
    let stdout = child.stdout.take().map(listen);
    let stderr = child.stderr.take().map(listen);
    let status = wait(&mut child, is_over)?;
    let until = status.is_none().then(|| Instant::now() + LINGER);
    let [stdout, stderr] = [stdout, stderr].map(|pipe| pipe.map_or(Vec::new(), |p| all(&p, until)));
    Ok(Output { status, stdout, stderr })
}

fn wait(child: &mut Child, is_over: impl Fn() -> bool) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if is_over() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

/// Reads a pipe on a thread of its own, so that the other pipe can be read meanwhile.
fn listen(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut room = [0; 8192];
        while let Ok(bytes @ 1..) = pipe.read(&mut room) {
            if sender.send(room[..bytes].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Reads until the end of the pipe, or until the time `until`.
fn all(pipe: &Receiver<Vec<u8>>, until: Option<Instant>) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let piece = match until {
            None => pipe.recv().ok(),
            Some(until) => pipe.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
        };
        match piece {
            Some(piece) => bytes.extend(piece),
            None => return bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_kept_whole() {
        let mut talker = Command::new("sh");
        talker.args(["-c", "seq 1 20000; seq 1 20000 >&2; exit 3"]);
        let said = output(&mut talker, Duration::from_secs(600)).unwrap();
        assert_eq!(said.status.and_then(|status| status.code()), Some(3));
        assert_eq!(said.stdout, said.stderr);
        assert!(said.stdout.ends_with(b"\n20000\n"));
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_heard() {
        let directory = tempfile::tempdir().unwrap();
        let spoken = directory.path().join("spoken");
        // The other child keeps the pipes open after the end of the first, and longer than the test
        // waits.
        let mut hanging = Command::new("sh");
        hanging.args(["-c", "echo here; : >\"$0\"; sleep 8 & exec sleep 600"]).arg(&spoken);
        let said = output_until(&mut hanging, || spoken.exists()).unwrap();
        assert!(said.status.is_none());
        assert_eq!(said.stdout, b"here\n");
    }
}
