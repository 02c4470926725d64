//! Creates the engine of a channel, and chooses its driver.

use super::Engine;
use super::connections::Connections;
use super::deadlines::Deadlines;
use super::starved::Starved;
use crate::config::{Config, DriverChoice, DriverKind, DriverReport, Replaced};
use crate::counters::Counters;
use crate::driver::epoll::EpollDriver;
use crate::driver::uring::features::{Lack, Lacks};
use crate::driver::uring::{FailedCall, Refusal, UringDriver, locked_bytes, try_to_lock};
use crate::driver::{Driver, Pools};
use crate::driver_api::{self, Below, UnknownDriver};
use crate::error::Error;
use crate::fork::CreatorProcess;
use crate::probe::{self, retry_on_enomem};
use crate::slab::Slab;
use std::collections::VecDeque;
use std::fmt::Write;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable that chooses the driver if the configuration does not.
const VARIABLE: &str = "MEGAPIPE_DRIVER";

/// The next channel's number within the process.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

impl Engine {
    pub(crate) fn new(config: Config) -> Result<Engine, Error> {
        config.check().map_err(Error::Config)?;
        let pools = Pools::new(&config).map_err(setup_error("map the buffers"))?;
        let creator = CreatorProcess::here().map_err(setup_error(PAGE_STEP))?;
        let (driver, report) = choose(&config, &pools)?;
        tracing::debug!(driver = %report.kind, reason = report.reason, "channel created");
        Ok(Engine {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            driver: ManuallyDrop::new(driver),
            report,
            pools,
            // One for the mailbox.
            members: Slab::new(config.max_handles.saturating_add(1)),
            requests: Slab::new(config.max_requests),
            config,
            ready: VecDeque::new(),
            starved: Starved::default(),
            stalled: VecDeque::new(),
            sink: None,
            listeners: Vec::new(),
            connections: Connections::default(),
            deadlines: Deadlines::default(),
            mailbox: None,
            counters: Counters::default(),
            creator,
        })
    }
}

/// The step that needs a page for fork detection, and the remedy if it fails for another reason
/// than a lack of memory.
const PAGE_STEP: &str = "mark a page for fork detection";
const PAGE_REMEDY: &str = "permit madvise(2) with MADV_WIPEONFORK in the sandbox (Linux 4.14)";

fn setup_error(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| {
        let remedy = match source.raw_os_error() {
            Some(libc::ENOMEM) => "free memory, or raise the limit on locked memory (ulimit -l)",
            Some(libc::EMFILE) => "raise the limit on open files (ulimit -n)",
            Some(libc::ENFILE) => "raise the system's limit on open files (sysctl fs.file-max)",
            _ if step == PAGE_STEP => PAGE_REMEDY,
            Some(libc::EPERM | libc::ENOSYS) => {
                "run `iobench doctor` for the cause, or ask for the driver epoll or auto instead \
                 of uring"
            }
            _ => "run `iobench doctor`, which names what the system lacks",
        };
        Error::Setup { step, remedy, source }
    }
}

/// Creates the driver that the configuration, the environment and the kernel determine.
fn choose(config: &Config, pools: &Pools) -> Result<(Box<dyn Driver>, DriverReport), Error> {
    let (choice, chooser) = wanted(config)?;
    match choice {
        DriverChoice::Installed(name) => installed(name, chooser, config, pools),
        choice => kernel(choice, chooser, config, pools),
    }
}

/// Returns the driver that the configuration or the environment asks for, and which of them does.
fn wanted(config: &Config) -> Result<(DriverChoice, &'static str), Error> {
    Ok(match config.driver {
        DriverChoice::Auto => {
            match sys::environment::variable(VARIABLE).and_then(|name| name.into_string().ok()) {
                Some(name) => (name.parse()?, "MEGAPIPE_DRIVER asks for it"),
                None => (DriverChoice::Auto, ""),
            }
        }
        choice => (choice, "the configuration asks for it"),
    })
}

impl Config {
    /// Returns the bytes of locked memory that the ring of one channel with these settings takes,
    /// 106,496 by default. From Linux 6.14 on, the rings of all processes of a user together are
    /// limited (`RLIMIT_MEMLOCK` of the process, often 8 MiB), except in processes with
    /// `CAP_IPC_LOCK`.
    pub fn locked_bytes(&self) -> usize {
        locked_bytes(self)
    }

    /// Checks whether the locked memory for the rings of `channels` channels with these settings is
    /// free, before they are created. If not, some would get a ring and others
    /// [epoll](DriverChoice::Epoll): choose epoll for all of them, so that connections are served
    /// at the same cost. The memory is not reserved.
    ///
    /// Call it with the user and the capabilities of the threads that create the channels. Succeeds
    /// where the kernel permits no ring, and if the configuration or `MEGAPIPE_DRIVER` names a
    /// driver: channels that ask for io_uring fail to start without it. If memory is short, it
    /// tries again for 150 ms, because the kernel releases the rings of an ended process a little
    /// later.
    ///
    /// # Errors
    /// [`Error::LockedMemory`] if there is not so much; [`Error::Config`] and
    /// [`Error::UnknownDriver`] as for [`Channel::with_config`](crate::Channel::with_config).
    pub fn check_locked_memory(&self, channels: usize) -> Result<(), Error> {
        self.check().map_err(Error::Config)?;
        if wanted(self)?.0 != DriverChoice::Auto {
            return Ok(());
        }
        let lock = || try_to_lock(self, channels).map_err(FailedCall::of("io_uring_setup"));
        match retry_on_enomem(|| Ok(lock()?), lacks_memory) {
            Err(Refusal::Failed(failed)) if is_memory_short(&failed.source) => {
                Err(Error::LockedMemory {
                    channels,
                    bytes: channels * self.locked_bytes(),
                    limit: probe::locked_memory_limit(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// Builds a driver of another crate, over the kernel driver.
fn installed(
    name: &'static str,
    chooser: &str,
    config: &Config,
    pools: &Pools,
) -> Result<(Box<dyn Driver>, DriverReport), Error> {
    let (kernel, below) = kernel(DriverChoice::Auto, "", config, pools)?;
    let own = Pools::new(config).map_err(setup_error("map the buffers"))?;
    let driver = driver_api::build(name, Below { kernel, pools: own, config: config.clone() })
        .ok_or_else(|| UnknownDriver(name.to_owned()))?
        .map_err(|source| Error::Installed { name, source })?;
    let reason = format!("{chooser}, over {}: {}", below.kind, below.reason);
    let replaced = below.replaced;
    Ok((driver, DriverReport { kind: DriverKind::Installed(name), reason, replaced }))
}

fn kernel(
    choice: DriverChoice,
    chooser: &str,
    config: &Config,
    pools: &Pools,
) -> Result<(Box<dyn Driver>, DriverReport), Error> {
    let report =
        |kind, reason: &str| DriverReport { kind, reason: reason.to_owned(), replaced: Vec::new() };
    if choice == DriverChoice::Epoll {
        return Ok((epoll(config, pools)?, report(DriverKind::Epoll, chooser)));
    }
    let refusal = match retry_on_enomem(|| UringDriver::new(config, pools.clone()), lacks_memory) {
        Ok(driver) => {
            let chooser =
                if choice == DriverChoice::Auto { "the kernel gives a ring" } else { chooser };
            let report = uring_report(chooser, driver.lacks());
            return Ok((Box::new(driver), report));
        }
        Err(refusal) => refusal,
    };
    let cause = match refusal {
        Refusal::Failed(FailedCall { source, .. })
            if choice == DriverChoice::Uring || !permits_epoll(&source) =>
        {
            return Err(setup_error("create the ring")(source));
        }
        Refusal::Failed(FailedCall { call, source }) => {
            let (cause, remedy) = probe::ring_error_advice(call, &source);
            if is_memory_short(&source) {
                await_end_of_ring();
                tracing::warn!(cause, remedy, "a channel uses epoll instead of io_uring");
                format!("{cause}; {remedy}")
            } else {
                cause
            }
        }
        Refusal::Lacks(lack) if choice == DriverChoice::Uring => return Err(missing(&lack)),
        Refusal::Lacks(lack) => {
            await_end_of_ring();
            format!("the kernel lacks {lack}")
        }
    };
    let driver = epoll(config, pools)?;
    Ok((driver, report(DriverKind::Epoll, &format!("no io_uring: {cause}"))))
}

/// Describes the reason for the io_uring driver, and its replaced features.
fn uring_report(chooser: &str, lacks: &Lacks) -> DriverReport {
    let replaced = lacks.replaced().map(|(Lack { feature, .. }, by)| Replaced {
        feature: feature.name(),
        since: feature.since(),
        by,
    });
    let replaced: Vec<Replaced> = replaced.collect();
    let mut reason = chooser.to_owned();
    if replaced.is_empty() {
        reason.push_str(", with every feature that the driver uses");
    }
    for (at, replaced) in replaced.iter().enumerate() {
        let _ = write!(reason, "{} {replaced}", if at == 0 { "; replaced:" } else { ";" });
    }
    DriverReport { kind: DriverKind::Uring, reason, replaced }
}

/// Waits until the kernel has destroyed the ring that this thread has just closed. The kernel does
/// so some milliseconds later, and interrupts any call that the thread then waits in (`EINTR`). To
/// the application that would look like a signal.
fn await_end_of_ring() {
    const LONGEST_MS: libc::c_int = 100;
    // SAFETY: the call reads and writes no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, LONGEST_MS) };
}

fn missing(lack: &Lack) -> Error {
    let source = io::Error::from_raw_os_error(lack.errno);
    Error::MissingFeature { feature: lack.feature.name(), since: lack.feature.since(), source }
}

fn epoll(config: &Config, pools: &Pools) -> Result<Box<dyn Driver>, Error> {
    let driver = EpollDriver::new(config, pools.clone()).map_err(setup_error("create epoll"))?;
    Ok(Box::new(driver))
}

/// Returns whether the channel may use epoll after this error: io_uring is unavailable, or there is
/// no memory for a ring, because all rings of a user share the locked memory. Another driver must
/// not hide that other resources are short.
fn permits_epoll(error: &io::Error) -> bool {
    let unavailable = matches!(
        error.raw_os_error(),
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL | libc::EOPNOTSUPP)
    );
    unavailable || is_memory_short(error)
}

/// Returns whether there is no ring because memory is short.
fn lacks_memory(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Failed(failed) if is_memory_short(&failed.source))
}

fn is_memory_short(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_come_back_and_other_errors_do_not_wait() {
        let attempts = std::cell::Cell::new(0);
        let fail = |errno: i32| {
            Refusal::from(FailedCall::of("io_uring_setup")(io::Error::from_raw_os_error(errno)))
        };
        let twice = || {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 3 { Err(fail(libc::ENOMEM)) } else { Ok(attempts.get()) }
        };
        let result = retry_on_enomem(twice, lacks_memory);
        assert_eq!(result.unwrap(), 3);
        attempts.set(0);
        let refused = || {
            attempts.set(attempts.get() + 1);
            Err(fail(libc::EMFILE))
        };
        let result: Result<(), Refusal> = retry_on_enomem(refused, lacks_memory);
        assert!(result.is_err() && attempts.get() == 1);
    }

    #[test]
    fn a_lack_of_descriptors_is_no_reason_for_another_driver() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::EAGAIN] {
            assert!(!permits_epoll(&io::Error::from_raw_os_error(errno)));
        }
        for errno in [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EINVAL, libc::ENOMEM] {
            assert!(permits_epoll(&io::Error::from_raw_os_error(errno)));
        }
    }
}
