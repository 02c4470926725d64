//! Probes which features the kernel offers a channel, by trying each of them.
//!
//! A kernel version is not enough: distributions backport features, containers forbid system calls,
//! sysctls switch io_uring off. So [`probe`] sets up a ring as the io_uring driver does, which
//! tries every request that the driver submits. It tries the features that need no ring with real
//! sockets and files. It reports for each feature whether it [works](Status::Works), what it is
//! used for and what replaces it otherwise. It judges the [limits](Limit) of the process and the
//! system for a server with [`CONNECTIONS`] connections.
//!
//! Each channel makes the same attempts on its own ring when it is created, see
//! [`DriverReport::replaced`](crate::DriverReport::replaced). The probe reports them to people:
//! `iobench doctor` prints it.

mod advice;
mod limits;
mod system;

use crate::driver::uring::features::{Feature, Lacks, Without};
use crate::driver::uring::{FailedCall, survey};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

pub(crate) use advice::locked_memory_limit;
pub use advice::ring_error_advice;
pub use limits::CONNECTIONS;

/// The name of the first finding: whether there is a ring at all.
pub const RING: &str = "ring (SINGLE_ISSUER, DEFER_TASKRUN)";

/// Time limit of the probe; no further attempt starts after it. On a kernel that answers, the whole
/// probe takes some milliseconds.
const BUDGET: Duration = Duration::from_millis(1000);

/// The result of the attempt to use a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The attempt succeeded and had the expected effect.
    Works,
    /// The attempt failed: what was tried and the kernel's error.
    Missing(String),
    /// The attempt could not be made.
    NotTried(String),
}

/// One feature of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The feature, in a few words.
    pub name: &'static str,
    /// Whether it works.
    pub status: Status,
    /// What the drivers use it for.
    pub used_for: &'static str,
    /// Whether the io_uring driver refuses to start without it.
    pub required: bool,
    /// What to do, and what the driver does without it; `None` if it works.
    pub remedy: Option<String>,
}

impl Finding {
    /// Returns whether the feature works.
    pub fn works(&self) -> bool {
        self.status == Status::Works
    }
}

/// One limit of the process or the system, judged for a server with [`CONNECTIONS`] connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit, by the name of its sysctl or resource.
    pub name: &'static str,
    /// Its value as text.
    pub value: String,
    /// Whether that is enough; `None` if the value could not be read.
    pub suffices: Option<bool>,
    /// What it bounds.
    pub used_for: &'static str,
    /// The command that raises it, unless it is enough.
    pub remedy: Option<String>,
}

/// The reason why io_uring is unavailable.
#[derive(Debug, thiserror::Error)]
#[error("{cause}; {remedy}")]
pub struct RingError {
    /// The system call that failed.
    pub call: &'static str,
    /// The cause, such as "io_uring is disabled: sysctl kernel.io_uring_disabled is 2".
    pub cause: String,
    /// The remedy.
    pub remedy: &'static str,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl From<FailedCall> for RingError {
    /// Determines the cause; see [`ring_error_advice`].
    fn from(FailedCall { call, source }: FailedCall) -> RingError {
        let (cause, remedy) = ring_error_advice(call, &source);
        RingError { call, cause, remedy, source }
    }
}

/// The results of the probe.
#[derive(Debug)]
pub struct Probe {
    /// Whether the kernel creates a ring as the io_uring driver needs it, or the reason why not.
    pub ring: Result<(), RingError>,
    /// The features.
    pub findings: Vec<Finding>,
    /// The limits.
    pub limits: Vec<Limit>,
}

impl Probe {
    /// Returns whether the named feature works.
    pub fn works(&self, name: &str) -> bool {
        self.findings.iter().any(|finding| finding.name == name && finding.works())
    }

    /// Iterates over the features that the io_uring driver requires and that do not work.
    pub fn missing_required(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.required && !finding.works())
    }
}

/// Tries all features, in the calling thread.
///
/// Takes some tens of milliseconds, at most little more than a second. It opens sockets on the
/// loopback address and closes them again. A seccomp filter that kills instead of refusing also
/// kills the caller of this function.
///
/// ```
/// use megapipe::probe::{Status, probe};
/// for finding in probe().findings {
///     if let Status::Missing(attempt) = &finding.status {
///         println!("{}: {attempt} ({})", finding.name, finding.remedy.unwrap_or_default());
///     }
/// }
/// ```
pub fn probe() -> Probe {
    let deadline = Instant::now() + BUDGET;
    // The features that need no ring come first, because they never wait long.
    let without_ring: Vec<Finding> = system::FEATURES
        .iter()
        .map(|feature| feature.finding(deadline, |attempt| attempt()))
        .collect();
    let survey =
        retry_on_enomem(survey, |failed| is_no_memory(&failed.source)).map_err(RingError::from);
    let mut findings = vec![ring_finding(&survey)];
    findings.extend(Feature::ALL.iter().map(|feature| feature_finding(*feature, &survey)));
    findings.extend(without_ring);
    Probe { ring: survey.map(drop), findings, limits: limits::limits() }
}

fn feature_finding(feature: Feature, survey: &Result<Lacks, RingError>) -> Finding {
    let status = match survey {
        Err(_) => Status::NotTried("there is no ring to try it on".into()),
        Ok(lacks) => lacks.of(feature).map_or(Status::Works, |lack| {
            Status::Missing(match lack.errno {
                0 => "the kernel does not offer it".into(),
                errno => format!("the kernel answers: {}", io::Error::from_raw_os_error(errno)),
            })
        }),
    };
    let instead = match feature.without() {
        Without::Epoll => "the channel uses the epoll driver",
        Without::Replaced(by) => by,
    };
    let remedy = matches!(status, Status::Missing(_))
        .then(|| format!("Linux {} or later; without it, {instead}", feature.since()));
    Finding {
        name: feature.name(),
        status,
        used_for: feature.used_for(),
        required: feature.without() == Without::Epoll,
        remedy,
    }
}

fn ring_finding(ring: &Result<Lacks, RingError>) -> Finding {
    let (status, remedy) = match ring {
        Ok(_) => (Status::Works, None),
        Err(error) => (
            Status::Missing(format!("{}: {}; {}", error.call, error.source, error.cause)),
            Some(error.remedy.to_owned()),
        ),
    };
    let used_for = "the io_uring driver as a whole";
    Finding { name: RING, status, used_for, required: true, remedy }
}

/// A feature that needs no ring, and how to try it.
struct Attempted<Attempt> {
    name: &'static str,
    used_for: &'static str,
    /// The remedy.
    remedy: &'static str,
    attempt: Attempt,
}

impl<Attempt: Copy> Attempted<Attempt> {
    fn finding(&self, deadline: Instant, run: impl Fn(Attempt) -> Result<(), Failure>) -> Finding {
        let status = if Instant::now() >= deadline {
            Status::NotTried("the time for the probe was up".into())
        } else {
            let exhausted = |failure: &Failure| matches!(failure, Failure::NoMemory(_));
            match retry_on_enomem(|| run(self.attempt), exhausted) {
                Ok(()) => Status::Works,
                Err(Failure::Missing(what)) => Status::Missing(what),
                Err(Failure::Obstacle(what) | Failure::NoMemory(what)) => Status::NotTried(what),
            }
        };
        let remedy = matches!(status, Status::Missing(_)).then(|| self.remedy.to_owned());
        Finding { name: self.name, status, used_for: self.used_for, required: false, remedy }
    }
}

/// The reason why an attempt did not succeed.
#[derive(Debug)]
enum Failure {
    /// The kernel lacks the feature.
    Missing(String),
    /// The attempt could not be made.
    Obstacle(String),
    /// There was no memory for the attempt, which may be transient; see [`retry_on_enomem`].
    NoMemory(String),
}

/// Retries for a while when memory is short.
///
/// The kernel destroys a closed ring in the background, some tens of milliseconds later, and counts
/// its memory against `RLIMIT_MEMLOCK` until then.
pub(crate) fn retry_on_enomem<T, E>(
    attempt: impl Fn() -> Result<T, E>,
    is_no_memory: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut pauses = [10, 20, 40, 80].into_iter().map(Duration::from_millis);
    loop {
        match (attempt(), pauses.next()) {
            (Err(error), Some(pause)) if is_no_memory(&error) => std::thread::sleep(pause),
            (result, _) => return result,
        }
    }
}

fn is_no_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}

/// Returns a function for `map_err`: the kernel refused the step that makes up the feature, unless
/// it only lacked memory or descriptors.
fn missing(step: &str) -> impl Fn(io::Error) -> Failure {
    move |error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => obstacle(step)(error),
        _ if is_no_memory(&error) => obstacle(step)(error),
        _ => Failure::Missing(format!("{step}: {error}")),
    }
}

/// Returns a function for `map_err`: a preparation failed, which shows nothing about the feature.
fn obstacle(step: &str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let text = format!("{step}: {error}");
        if is_no_memory(&error) { Failure::NoMemory(text) } else { Failure::Obstacle(text) }
    }
}

/// Fails if the kernel accepted a request, but its effect differs from the expected one.
fn require(holds: bool, otherwise: impl fmt::Display) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Missing(otherwise.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_names_of_the_report_are_unique_and_the_ring_comes_first() {
        let probe = probe();
        assert_eq!(probe.findings[0].name, RING);
        let mut names: Vec<_> = probe.findings.iter().map(|found| found.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), probe.findings.len());
    }

    #[test]
    fn a_missing_feature_says_what_stands_in_its_place() {
        let mut lacks = Lacks::default();
        lacks.add(Feature::SetOption, libc::EOPNOTSUPP);
        lacks.add(Feature::ReceiveMany, libc::EINVAL);
        let lacks = Ok(lacks);
        let finding = feature_finding(Feature::SetOption, &lacks);
        assert!(!finding.required);
        assert_eq!(
            finding.remedy.as_deref(),
            Some("Linux 6.7 or later; without it, lightweight sockets are descriptors")
        );
        let finding = feature_finding(Feature::ReceiveMany, &lacks);
        assert!(finding.required && !finding.works(), "{finding:?}");
        assert!(feature_finding(Feature::Send, &lacks).works());
    }

    #[test]
    fn a_feature_is_not_tried_when_the_time_is_up_and_has_a_remedy_only_when_missing() {
        let feature = Attempted { name: "n", used_for: "u", remedy: "r", attempt: () };
        let later = Instant::now() + Duration::from_secs(60);
        let late = feature.finding(Instant::now(), |()| panic!("tried"));
        assert!(matches!(late.status, Status::NotTried(_)) && late.remedy.is_none());
        let works = feature.finding(later, |()| Ok(()));
        assert!(works.works() && works.remedy.is_none());
        let failed = feature.finding(later, |()| {
            Err(missing("opening")(io::Error::from_raw_os_error(libc::EINVAL)))
        });
        assert_eq!(failed.remedy.as_deref(), Some("r"));
        let Status::Missing(what) = failed.status else { panic!("{:?}", failed.status) };
        assert!(what.starts_with("opening: Invalid argument"), "{what}");
        let exhausted = feature.finding(later, |()| {
            Err(missing("opening")(io::Error::from_raw_os_error(libc::EMFILE)))
        });
        assert!(matches!(exhausted.status, Status::NotTried(_)), "{:?}", exhausted.status);
    }
}
