//! One run of a suite or a program: what is started, where, and with which limits.

use std::io;
use std::time::Duration;

use super::confined::{Limits, Subject};
use super::journal::{Cases, Outcome};
use super::list::{Program, Suite, is_quick};
use super::pins;
use super::way::{Ends, Launcher, Way};
use crate::operations::Extent;

/// Debian's, whose tests are in a package of their own; the path may have others.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// All servers listen here; each has a network of its own.
const PORT: &str = "8080";

/// A suite or a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Suite(&'static Suite),
    Program(&'static Program),
}

/// What a run gave.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) cases: Cases,
    /// Ends of connections that went through the library's way.
    pub(crate) upgraded: u64,
}

impl Job {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Job::Suite(suite) => suite.name,
            Job::Program(program) => program.name,
        }
    }

    /// Whether it makes connections that must be upgraded where both ends can be.
    pub(crate) fn connects(self) -> bool {
        match self {
            Job::Suite(suite) => suite.connects,
            Job::Program(program) => program.connects,
        }
    }

    /// Whether this form runs it at all.
    pub(crate) fn is_in(self, extent: Extent, way: Way) -> bool {
        extent == Extent::Full || is_quick(self.name(), way)
    }

    /// Parts of the names of the cases that this form runs; none for all.
    pub(crate) fn chosen(self, extent: Extent) -> Vec<String> {
        let parts = match self {
            Job::Suite(suite) => extent.pick(suite.quick, suite.full),
            Job::Program(_) => &[],
        };
        parts.iter().map(ToString::to_string).collect()
    }

    /// Runs the chosen cases; `plain` has those that have run without the library, if any have.
    pub(crate) fn run(
        self,
        launcher: &Launcher,
        ends: Ends,
        extent: Extent,
        only: &[String],
        plain: Option<&Cases>,
    ) -> io::Result<Run> {
        let directory = tempfile::tempdir()?;
        // Servers that give root's rights up have to find their files.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open)?;
        let at = directory.path();
        let under = if ends == Ends::Neither { Vec::new() } else { launcher.words(at)? };
        let (words, environment) = match self {
            Job::Suite(suite) => (python(suite, &under, at), Vec::new()),
            Job::Program(program) => shell(program, launcher, &under, ends, extent, at),
        };
        let network = self.network(launcher.way, ends);
        // Where a case hangs plainly, there is nothing to compare it with.
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

    /// The shell's words that set a namespace up.
    fn network(self, way: Way, ends: Ends) -> String {
        match self {
            Job::Suite(suite) if !suite.needs_loopback => {
                format!("{} && {}", way.network(), way.localhost(ends))
            }
            _ => way.network().to_string(),
        }
    }
}

/// A case under the library gets several times what it took without, so that what hangs is found
/// early and what is slow still passes.
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

/// The words and the environment of a program's script.
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
        ("ADDRESS", launcher.way.address(ends).to_string()),
        ("PORT", PORT.to_string()),
        ("QUICK", extent.pick("1", "").to_string()),
        ("JOURNAL", word(Subject::journal(at))),
        ("ONLY", word(Subject::only(at))),
        ("DONE", word(Subject::done(at))),
    ];
    (words, environment)
}
