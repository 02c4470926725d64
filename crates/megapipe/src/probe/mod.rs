//! What the kernel offers a channel, feature by feature, found by trying.
//!
//! A version number says little: distributions carry features back, containers forbid system calls,
//! sysctls switch io_uring off. So [`probe`] does on a scratch ring, with real sockets, pipes and
//! files, what the drivers do, and reports for each feature whether it [works](Status::Works), what
//! it is used for and what would help if it does not. The [limits](Limit) of the process and the
//! system are judged for a server with [`CONNECTIONS`] connections.
//!
//! A channel does not need the whole probe to start: it creates its ring and, if that fails, asks
//! [`ring_error_advice`] for the cause. The probe is for people: `iobench doctor` prints it.

mod advice;
mod features;
mod limits;
mod ring;
mod sockets;
mod system;

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

pub use advice::ring_error_advice;
pub use limits::CONNECTIONS;

/// The features without which the io_uring driver does not start, by [`Finding::name`].
///
/// Without any of the others it takes a slower way.
pub const REQUIRED: &[&str] =
    &[features::RING, features::CANCEL_ANY, sockets::ACCEPT, sockets::RECEIVE];

/// How long the probe goes on; attempts that have not begun by then are not made. On a kernel that
/// answers, the whole probe takes some tens of milliseconds.
const BUDGET: Duration = Duration::from_millis(1000);

/// What came of the attempt to use a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The attempt succeeded and did what the feature promises.
    Works,
    /// The attempt failed: what was tried and what the kernel said.
    Missing(String),
    /// Something else stood in the way of an attempt.
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
    /// What would help, unless it works.
    pub remedy: Option<String>,
}

impl Finding {
    /// Whether it works.
    pub fn works(&self) -> bool {
        self.status == Status::Works
    }

    /// Whether the io_uring driver does not start without it.
    pub fn is_required(&self) -> bool {
        REQUIRED.contains(&self.name)
    }
}

/// One limit of the process or the system, judged for a server with [`CONNECTIONS`] connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit, by the name of its sysctl or resource.
    pub name: &'static str,
    /// Its value, in words.
    pub value: String,
    /// Whether that is enough; `None` if the value could not be read.
    pub suffices: Option<bool>,
    /// What it bounds.
    pub used_for: &'static str,
    /// The command that raises it, unless it is enough.
    pub remedy: Option<String>,
}

/// Why the kernel gives no ring.
#[derive(Debug, thiserror::Error)]
#[error("{cause}; {remedy}")]
pub struct RingError {
    /// The cause, such as "io_uring is disabled: sysctl kernel.io_uring_disabled is 2".
    pub cause: String,
    /// What to do about it.
    pub remedy: &'static str,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

impl From<io::Error> for RingError {
    /// Looks for the cause of a failed io_uring_setup(2); see [`ring_error_advice`].
    fn from(source: io::Error) -> RingError {
        let (cause, remedy) = ring_error_advice(&source);
        RingError { cause, remedy, source }
    }
}

/// All that was found out.
#[derive(Debug)]
pub struct Probe {
    /// Whether the kernel gives a ring as the io_uring driver wants it, and if not, why.
    pub ring: Result<(), RingError>,
    /// The features.
    pub findings: Vec<Finding>,
    /// The limits.
    pub limits: Vec<Limit>,
}

impl Probe {
    /// Whether the named feature works.
    pub fn works(&self, name: &str) -> bool {
        self.findings.iter().any(|finding| finding.name == name && finding.works())
    }

    /// The features that the io_uring driver requires and that do not work.
    pub fn missing_required(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_required() && !finding.works())
    }
}

/// Tries everything, in the calling thread.
///
/// Takes some tens of milliseconds, at worst little more than a second. It opens sockets on the
/// loopback address and leaves nothing behind. A seccomp filter that kills instead of refusing
/// kills here as well.
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
    // First those that need no ring and never wait long.
    let without_ring: Vec<Finding> = system::FEATURES
        .iter()
        .map(|feature| feature.finding(deadline, |attempt| attempt()))
        .collect();
    let ring = patiently(ring::Scratch::new, is_no_memory);
    let ring = ring.map(drop).map_err(RingError::from);
    let mut findings = vec![ring_finding(&ring)];
    let with_ring = features::FEATURES.iter().chain(sockets::FEATURES);
    findings.extend(with_ring.map(|feature| {
        feature.finding(deadline, |attempt| {
            if ring.is_err() {
                return Err(Failure::Obstacle("there is no ring to try it on".into()));
            }
            attempt(&mut ring::Scratch::new().map_err(obstacle("a scratch ring"))?)
        })
    }));
    findings.extend(without_ring);
    Probe { ring, findings, limits: limits::limits() }
}

fn ring_finding(ring: &Result<(), RingError>) -> Finding {
    let (status, remedy) = match ring {
        Ok(()) => (Status::Works, None),
        Err(error) => (
            Status::Missing(format!("io_uring_setup: {}; {}", error.source, error.cause)),
            Some(error.remedy.to_owned()),
        ),
    };
    Finding { name: features::RING, status, used_for: "the io_uring driver as a whole", remedy }
}

/// A feature and how to try it.
struct Feature<Attempt> {
    name: &'static str,
    used_for: &'static str,
    /// What would make it work.
    remedy: &'static str,
    attempt: Attempt,
}

impl<Attempt: Copy> Feature<Attempt> {
    fn finding(&self, deadline: Instant, run: impl Fn(Attempt) -> Result<(), Failure>) -> Finding {
        let status = if Instant::now() >= deadline {
            Status::NotTried("the time for the probe was up".into())
        } else {
            let exhausted = |failure: &Failure| matches!(failure, Failure::NoMemory(_));
            match patiently(|| run(self.attempt), exhausted) {
                Ok(()) => Status::Works,
                Err(Failure::Missing(what)) => Status::Missing(what),
                Err(Failure::Obstacle(what) | Failure::NoMemory(what)) => Status::NotTried(what),
            }
        };
        let remedy = matches!(status, Status::Missing(_)).then(|| self.remedy.to_owned());
        Finding { name: self.name, status, used_for: self.used_for, remedy }
    }
}

/// Why an attempt did not succeed.
#[derive(Debug)]
enum Failure {
    /// The feature is not there.
    Missing(String),
    /// The attempt could not be made.
    Obstacle(String),
    /// There was no memory for the attempt, which may pass; see [`patiently`].
    NoMemory(String),
}

/// Repeats what fails for a lack of memory, for a while.
///
/// The kernel takes a closed ring apart in the background, some tens of milliseconds later, and
/// counts its memory against `RLIMIT_MEMLOCK` until then.
fn patiently<T, E>(
    attempt: impl Fn() -> Result<T, E>,
    is_no_memory: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + ring::PATIENCE;
    loop {
        match attempt() {
            Err(error) if is_no_memory(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

fn is_no_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS))
}

/// For `map_err`: the kernel refused the step that makes up the feature, unless it only lacked
/// memory or descriptors.
fn missing(step: &str) -> impl Fn(io::Error) -> Failure {
    move |error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => obstacle(step)(error),
        _ if is_no_memory(&error) => obstacle(step)(error),
        _ => Failure::Missing(format!("{step}: {error}")),
    }
}

/// For `map_err`: a preparation failed that says nothing on the feature.
fn obstacle(step: &str) -> impl Fn(io::Error) -> Failure {
    move |error| {
        let text = format!("{step}: {error}");
        if is_no_memory(&error) { Failure::NoMemory(text) } else { Failure::Obstacle(text) }
    }
}

/// The kernel accepted a request and did something else than the feature promises.
fn require(holds: bool, otherwise: impl fmt::Display) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Missing(otherwise.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// What the channel's own code calls to use each feature that is in the report.
    const USES: &[(&str, &str)] = &[
        (features::RING, "setup_defer_taskrun"),
        (features::CANCEL_ANY, "CancelBuilder::any()"),
        ("minimum wait (MIN_TIMEOUT)", "min_wait_usec"),
        ("ring without index array (NO_SQARRAY)", "setup_no_sqarray"),
        ("registered ring descriptor", "ENTER_REGISTERED_RING"),
        (sockets::ACCEPT, "opcode::AcceptMulti"),
        (sockets::RECEIVE, "opcode::RecvMulti::"),
        ("multishot recvmsg, buffer ring", "opcode::RecvMsgMulti"),
        ("direct descriptor to fd (FIXED_FD_INSTALL)", "opcode::FixedFdInstall"),
        ("getsockopt on direct descriptors", "entries::get_option"),
        ("setsockopt on direct descriptors", "opcode::SetSockOpt"),
        ("SO_REUSEPORT after listen", "libc::SO_REUSEPORT"),
        ("steering by SO_ATTACH_REUSEPORT_CBPF", "libc::SO_ATTACH_REUSEPORT_CBPF"),
        ("epoll_pwait2", "SYS_epoll_pwait2"),
        ("preadv2 with RWF_NOWAIT on files", "libc::RWF_NOWAIT"),
    ];

    /// The text of all source files below a directory.
    fn sources(directory: &Path) -> String {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: PathBuf| {
            if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() }
        };
        entries.map(text).collect()
    }

    #[test]
    fn every_feature_in_the_report_is_used_by_a_driver_or_a_partition() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let sources = sources(&own.join("driver")) + &sources(&own.join("partition"));
        let names: Vec<_> = probe().findings.iter().map(|finding| finding.name).collect();
        for name in &names {
            let used = USES.iter().find(|(used, _)| used == name);
            let (_, call) = used.unwrap_or_else(|| panic!("{name} is used by no code"));
            assert!(sources.contains(call), "{name}: no code calls {call}");
        }
        assert_eq!(names.len(), USES.len(), "{names:?}");
    }

    #[test]
    fn each_required_feature_is_in_the_report_once_and_names_are_unique() {
        let probe = probe();
        for name in REQUIRED {
            assert_eq!(probe.findings.iter().filter(|found| found.name == *name).count(), 1);
        }
        let mut names: Vec<_> = probe.findings.iter().map(|found| found.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), probe.findings.len());
    }

    #[test]
    fn a_feature_is_not_tried_when_the_time_is_up_and_has_a_remedy_only_when_missing() {
        let feature = Feature { name: "n", used_for: "u", remedy: "r", attempt: () };
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
