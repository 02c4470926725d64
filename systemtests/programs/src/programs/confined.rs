//! Runs a command in its own namespaces. The command journals its cases; a case that hangs is
//! killed and left out of the next start.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::journal::{Cases, Journal, Outcome};
use testkit::is_root;

/// Set-up of the namespaces: loopback is up, shared memory is private, and all processes end with
/// the first one.
const SETUP: &str = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && eval \"$NETWORK\" || \
     { echo \"cannot set the namespace up\" >&2; exit 1; }; \"$@\"";

/// How often the journal is checked for new lines.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes at the end of the output that are shown.
const TAIL_BYTES: u64 = 400;

/// Time limits of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest time between two lines of the journal.
    pub(crate) step: Duration,
    /// Longest time of all cases.
    pub(crate) whole: Duration,
}

/// A command that journals its cases.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) words: &'a [String],
    pub(crate) environment: &'a [(&'a str, String)],
    /// Shell commands that are run in the network namespace first.
    pub(crate) network: &'a str,
    /// An empty directory, in which it runs.
    pub(crate) directory: &'a Path,
    /// Parts of names, one of which a case must contain; none for all cases.
    pub(crate) only: &'a [String],
    /// Names of cases that are left out.
    pub(crate) left_out: &'a [String],
}

impl Subject<'_> {
    /// Returns the path of the journal in the directory.
    pub(crate) fn journal(directory: &Path) -> PathBuf {
        directory.join("journal")
    }

    /// Returns the path of the file with `only`.
    pub(crate) fn only(directory: &Path) -> PathBuf {
        directory.join("only")
    }

    /// Returns the path of the file with the names of cases to leave out.
    pub(crate) fn done(directory: &Path) -> PathBuf {
        directory.join("done")
    }

    /// Runs all cases, with as many starts as necessary. `limits` gets the case's name.
    pub(crate) fn run(&self, limits: impl Fn(&str) -> Limits) -> io::Result<Cases> {
        let mut cases = Cases::new();
        fs::write(Subject::only(self.directory), self.only.join("\n") + "\n")?;
        let start = Instant::now();
        loop {
            let done = cases.keys().chain(self.left_out);
            let done: String = done.map(|name| format!("{name}\n")).collect();
            fs::write(Subject::done(self.directory), done)?;
            let before = cases.len();
            let journal = self.start_once(start, &limits)?;
            let is_done = journal.is_done;
            for (name, end) in journal.cases {
                cases.entry(name).or_insert(end);
            }
            // The last start has ended properly, or has brought nothing new, or no further start is
            // possible.
            let is_over = start.elapsed() > limits("").whole;
            if is_done || is_over || cases.len() == before {
                return Ok(cases);
            }
        }
    }

    /// Starts the command once; `start` is the time of the first start, from which the limit of the
    /// whole counts.
    fn start_once(&self, start: Instant, limits: &impl Fn(&str) -> Limits) -> io::Result<Journal> {
        let path = Subject::journal(self.directory);
        fs::write(&path, "")?;
        let log = self.directory.join("log");
        let output = File::create(&log)?;
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut running = Namespace(command.spawn()?);
        let (mut file, mut text) = (File::open(&path)?, String::new());
        let now = || start.elapsed().as_secs_f64();
        let mut journal = Journal::new(now());
        loop {
            let ended = running.0.try_wait()?;
            file.read_to_string(&mut text)?;
            while let Some(at) = text.find('\n') {
                let line: String = text.drain(..=at).collect();
                journal.read(line.trim_end(), now());
            }
            if let Some(status) = ended {
                if !journal.is_done {
                    let detail = format!("{status}: {}", tail(&log));
                    journal.cut_off(Outcome::Died, &detail, now());
                }
                return Ok(journal);
            }
            let (name, waited) = journal.waiting(now());
            let limits = limits(&name);
            if waited > limits.step.as_secs_f64() || start.elapsed() > limits.whole {
                let detail = format!("no end within {waited:.0} s");
                journal.cut_off(Outcome::Hung, &detail, now());
                return Ok(journal);
            }
            thread::sleep(LOOK);
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.args(["sh", "-c", SETUP, "sh"]).args(self.words);
        command.env("NETWORK", self.network).env("TMPDIR", self.directory);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Tests of signals and terminals must not reach the terminal of the user.
        command.current_dir(self.directory).process_group(0);
        // SAFETY: prctl is a system call that takes numbers only, and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // If this process is killed, the namespace must end, too.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
        command
    }
}

/// Processes that are killed when this is dropped.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        // The kernel kills the namespace's first process with unshare(1), and all others with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the end of a file, in one line.
fn tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<&str>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cases: the second hangs, and the third ends its process.
    const SCRIPT: &str = "for case in a b c d; do
        grep -qx $case done && continue
        printf 'start\\t%s\\n' $case >> journal
        case $case in b) sleep 600 ;; c) echo the end; kill -9 $$ ;; esac
        printf 'end\\t%s\\tok\\n' $case >> journal
    done; echo done >> journal";

    #[test]
    fn what_hangs_or_dies_is_left_out_of_a_fresh_start() {
        if !super::super::namespaces_permitted() {
            let test = "what_hangs_or_dies_is_left_out_of_a_fresh_start";
            return testkit::skip(test, "namespaces are not permitted");
        }
        let directory = tempfile::tempdir().unwrap();
        let words = ["sh", "-c", SCRIPT].map(String::from);
        let subject = Subject {
            words: &words,
            environment: &[],
            network: "true",
            directory: directory.path(),
            only: &[],
            left_out: &["x".to_string()],
        };
        let limits = |case: &str| {
            let step = Duration::from_millis(if case == "b" { 300 } else { 60_000 });
            Limits { step, whole: Duration::from_secs(600) }
        };
        let cases = subject.run(limits).unwrap();
        let outcomes: Vec<(&str, Outcome)> =
            cases.iter().map(|(name, end)| (name.as_str(), end.outcome)).collect();
        let (ok, hung, died) = (Outcome::Ok, Outcome::Hung, Outcome::Died);
        assert_eq!(outcomes, [("a", ok), ("b", hung), ("c", died), ("d", ok)]);
        assert!(cases["c"].detail.contains("the end"), "{:?}", cases["c"]);
        let done = fs::read_to_string(Subject::done(directory.path())).unwrap();
        assert_eq!(done, "a\nb\nc\nx\n");
    }
}
