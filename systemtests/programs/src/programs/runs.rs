//! Runs a suite or a program once: its command, its namespaces, and its limits.

use std::io;
use std::time::Duration;

use super::confined::{Limits, Subject};
use super::journal::{Cases, Outcome};
use super::list::{Program, Suite, is_quick};
use super::pins;
use super::preload_command::{Ends, Launcher, PreloadCommand};
use crate::operations::Extent;

/// Debian's Python, whose tests are in a separate package; the PATH may have others.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// The port of all servers; each has a network of its own.
const PORT: &str = "8080";

/// A suite or a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Suite(&'static Suite),
    Program(&'static Program),
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) cases: Cases,
    /// Ends of connections that used the library's transport.
    pub(crate) upgraded: u64,
}

impl Job {
    /// Returns the name of the suite or program.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Job::Suite(suite) => suite.name,
            Job::Program(program) => program.name,
        }
    }

    /// Returns whether it makes connections that must be upgraded if both ends can be.
    pub(crate) fn connects(self) -> bool {
        match self {
            Job::Suite(suite) => suite.connects,
            Job::Program(program) => program.connects,
        }
    }

    /// Returns whether this form runs it.
    pub(crate) fn is_in(self, extent: Extent, preload_command: PreloadCommand) -> bool {
        extent == Extent::Full || is_quick(self.name(), preload_command)
    }

    /// Parts of the names of the cases that this form runs; empty for all.
    pub(crate) fn chosen(self, extent: Extent) -> Vec<String> {
        let parts = match self {
            Job::Suite(suite) => extent.pick(suite.quick, suite.full),
            Job::Program(_) => &[],
        };
        parts.iter().map(ToString::to_string).collect()
    }

    /// Runs the chosen cases; `plain` has the results without the library, if there are any.
    pub(crate) fn run(
        self,
        launcher: &Launcher,
        ends: Ends,
        extent: Extent,
        only: &[String],
        plain: Option<&Cases>,
    ) -> io::Result<Run> {
        let directory = tempfile::tempdir()?;
        // Servers that drop root's privileges must be able to read their files.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open)?;
        let at = directory.path();
        let under = if ends == Ends::Neither { Vec::new() } else { launcher.words(at)? };
        let (words, environment) = match self {
            Job::Suite(suite) => (python(suite, &under, at), Vec::new()),
            Job::Program(program) => shell(program, launcher, &under, ends, extent, at),
        };
        let network = self.network(launcher.preload_command, ends);
        // A case that hangs plainly has no result to compare with.
        let hung = plain.into_iter().flatten().filter(|(_, end)| end.outcome == Outcome::Hung);
        let mut left_out: Vec<String> = hung.map(|(name, _)| name.clone()).collect();
        if let Job::Suite(suite) = self {
            left_out.extend(suite.left_out.iter().map(ToString::to_string));
        }
        let subject = Subject {
            words: &words,
            environment: &environment,
            network: &network,
            directory: at,
            only,
            left_out: &left_out,
        };
        let cases = subject.run(|case| limits(case, plain))?;
        Ok(Run { cases, upgraded: Launcher::upgraded(at) })
    }

    /// Returns the shell commands that set a namespace up.
    fn network(self, preload_command: PreloadCommand, ends: Ends) -> String {
        match self {
            Job::Suite(suite) if !suite.needs_loopback => {
                format!("{} && {}", preload_command.network(), preload_command.localhost(ends))
            }
            _ => preload_command.network().to_string(),
        }
    }
}

/// Time limits of a case. Under the library it gets several times its plain duration, so that a
/// case that hangs is found early and a slow one still passes.
fn limits(case: &str, plain: Option<&Cases>) -> Limits {
    const MAX: Duration = Duration::from_secs(90);
    const MORE: Duration = Duration::from_secs(15);
    const WHOLE: Duration = Duration::from_secs(20 * 60);
    let seconds = plain.map(|plain| plain.get(case).map_or(5.0, |end| end.seconds));
    let step =
        seconds.map_or(MAX, |seconds| MAX.min(MORE + Duration::from_secs_f64(8.0 * seconds)));
    Limits { step, whole: WHOLE }
}

fn python(suite: &Suite, under: &[String], at: &std::path::Path) -> Vec<String> {
    let runner = pins::directory().join("cases.py");
    let files = [runner, Subject::journal(at), Subject::only(at), Subject::done(at)];
    let [runner, journal, only, done] = files.map(|file| file.display().to_string());
    let module = format!("test.{}", suite.name);
    let words = [PYTHON.to_string(), runner, module, journal, only, done];
    under.iter().cloned().chain(words).collect()
}

/// Returns the words and the environment of a program's script.
fn shell(
    program: &Program,
    launcher: &Launcher,
    under: &[String],
    ends: Ends,
    extent: Extent,
    at: &std::path::Path,
) -> (Vec<String>, Vec<(&'static str, String)>) {
    let scripts = pins::directory();
    let word = |path: std::path::PathBuf| path.display().to_string();
    let words = vec!["sh".to_string(), word(scripts.join("common.sh"))];
    let prefix = |is_under: bool| if is_under { under.join(" ") } else { String::new() };
    let environment = vec![
        ("PROGRAM", program.name.to_string()),
        ("SCRIPTS", word(scripts)),
        ("SERVER", prefix(ends.server())),
        ("CLIENT", prefix(ends.client())),
        ("ADDRESS", launcher.preload_command.address(ends).to_string()),
        ("PORT", PORT.to_string()),
        ("QUICK", extent.pick("1", "").to_string()),
        ("JOURNAL", word(Subject::journal(at))),
        ("ONLY", word(Subject::only(at))),
        ("DONE", word(Subject::done(at))),
    ];
    (words, environment)
}
