//! The runs that fail today, with the fault behind them. A run that is listed and passes fails the
//! test, so that the list shrinks with the faults.

use crate::layer::Call::{self, Dup, Flags, Fstat, Getsockopt, IoUringEnter, PthreadCreate};
use crate::layer::Fault;
use libc::{EACCES, EAGAIN, EBUSY, EINTR, EIO, EMFILE, ENOBUFS, ENOMEM};
use megapipe::DriverChoice::{self, Epoll, Uring};
use std::ops::RangeInclusive;

/// A fault and the runs that it makes fail.
pub(crate) struct Known {
    /// What is wrong, and where.
    pub(crate) fault: &'static str,
    runs: &'static [Runs],
}

/// Runs of one scenario.
struct Runs {
    driver: DriverChoice,
    scenario: &'static str,
    call: Call,
    /// The errnos, and how many calls fail with them in a row.
    errnos: &'static [(i32, u32)],
    /// Which of the calls is the first to fail.
    nth: &'static [RangeInclusive<u32>],
}

const fn run(
    driver: DriverChoice,
    scenario: &'static str,
    call: Call,
    errnos: &'static [(i32, u32)],
    nth: &'static [RangeInclusive<u32>],
) -> Runs {
    Runs { driver, scenario, call, errnos, nth }
}

impl Known {
    pub(crate) fn covers(&self, driver: DriverChoice, scenario: &str, fault: Fault) -> bool {
        self.runs.iter().any(|runs| {
            runs.driver == driver
                && runs.scenario == scenario
                && runs.call == fault.call
                && runs.errnos.contains(&(fault.errno, fault.times))
                && runs.nth.iter().any(|range| range.contains(&fault.nth))
        })
    }
}

/// How many runs of a scenario are listed.
pub(crate) fn listed(driver: DriverChoice, scenario: &str) -> usize {
    let runs = KNOWN.iter().flat_map(|known| known.runs);
    let runs = runs.filter(|runs| runs.driver == driver && runs.scenario == scenario);
    runs.map(|runs| {
        let nth: usize = runs.nth.iter().map(|range| range.clone().count()).sum();
        runs.errnos.len() * nth
    })
    .sum()
}

/// The scenarios of the list.
pub(crate) fn scenarios() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|known| known.runs).map(|runs| runs.scenario)
}

const DISPATCH: &str = "driver/uring/ring.rs, `enter`: EAGAIN and ENOMEM of io_uring_enter become \
                        an error of `dispatch`";
const RUN: &str = "driver/uring/mod.rs, `run`: a failed io_uring_enter ends a synchronous request \
                   whose entry stays in the queue: the kernel reads and writes freed memory and \
                   frames of calls that have returned, sets options to what it finds there, and \
                   opens descriptors that have no owner";
const DETACH: &str = "driver/uring/mod.rs, `detach`: the descriptor is given back although its \
                      cancellation was not handed over; once it is closed, the cancellation finds \
                      nothing, and the request and the connection never end";
const LEAK: &str = "driver/uring/mod.rs, `shut_down`: gives up at the first failed \
                    io_uring_enter; two in a row leak the ring with all connections";
const WORKERS: &str = "io_uring: what the kernel leaves to a worker thread completes with \
                       ECANCELED if it cannot create one";
const SPIN: &str = "driver/epoll/file.rs: a job for which no thread can be created has the outcome \
                    EAGAIN, which the engine takes for \"try again\", at once and for ever";
const ADOPT: &str = "engine/share.rs, `adopt`: a queue that cannot be attached is dropped with a \
                     warning, although the channel has its CPUs: nobody accepts their connections";
const COOKIE: &str = "partition/socket.rs, `cookie`: a failed getsockopt is reported as a socket \
                      of another kind";

pub(crate) const KNOWN: &[Known] = &[
    Known {
        fault: DISPATCH,
        runs: &[
            run(Uring, "backpressure", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1)], &[2..=3]),
            run(Uring, "backpressure", IoUringEnter, &[(ENOMEM, 4)], &[1..=3]),
            run(Uring, "buffers", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)], &[1..=6]),
            run(Uring, "cancel", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1)], &[3..=4, 6..=7]),
            run(Uring, "cancel", IoUringEnter, &[(ENOMEM, 4)], &[1..=7]),
            run(Uring, "connect", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)], &[1..=5]),
            run(Uring, "crowd", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1)], &[2..=2, 15..=26]),
            run(Uring, "crowd", IoUringEnter, &[(ENOMEM, 4)], &[1..=2, 12..=26]),
            run(
                Uring,
                "datagrams",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)],
                &[1..=10],
            ),
            run(
                Uring,
                "drop_busy",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)],
                &[1..=1],
            ),
            run(
                Uring,
                "echo_descriptors",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1)],
                &[1..=18, 20..=20],
            ),
            run(Uring, "echo_descriptors", IoUringEnter, &[(ENOMEM, 4)], &[1..=20]),
            run(
                Uring,
                "echo_lightweight",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1)],
                &[1..=18, 20..=20],
            ),
            run(Uring, "echo_lightweight", IoUringEnter, &[(ENOMEM, 4)], &[1..=20]),
            run(Uring, "file", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)], &[1..=8]),
            run(
                Uring,
                "options",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1)],
                &[1..=2, 9..=9, 11..=14, 16..=16],
            ),
            run(Uring, "options", IoUringEnter, &[(ENOMEM, 4)], &[1..=2, 9..=9, 11..=16]),
            run(
                Uring,
                "partition",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1)],
                &[2..=3, 8..=9, 15..=16, 18..=18],
            ),
            run(Uring, "partition", IoUringEnter, &[(ENOMEM, 4)], &[1..=3, 8..=18]),
            run(Uring, "pipe", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)], &[1..=10]),
            run(Uring, "polls", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1)], &[2..=2, 4..=6]),
            run(Uring, "polls", IoUringEnter, &[(ENOMEM, 4)], &[1..=6]),
            run(Uring, "set_up", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)], &[1..=2]),
            run(Uring, "timers", IoUringEnter, &[(EAGAIN, 1), (ENOMEM, 1), (ENOMEM, 4)], &[1..=16]),
            run(
                Uring,
                "unregister",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1)],
                &[3..=8, 11..=16, 19..=25, 27..=32],
            ),
            run(Uring, "unregister", IoUringEnter, &[(ENOMEM, 4)], &[1..=32]),
        ],
    },
    Known {
        fault: RUN,
        runs: &[
            run(
                Uring,
                "options",
                IoUringEnter,
                &[(EAGAIN, 1), (ENOMEM, 1), (EIO, 1)],
                &[3..=7, 10..=10],
            ),
            run(Uring, "options", IoUringEnter, &[(ENOMEM, 4)], &[3..=8, 10..=10]),
        ],
    },
    Known {
        fault: DETACH,
        runs: &[
            run(
                Uring,
                "datagrams",
                IoUringEnter,
                &[(EINTR, 1), (EAGAIN, 1), (EBUSY, 1), (ENOMEM, 1), (ENOMEM, 4), (EIO, 1)],
                &[11..=11],
            ),
            run(
                Uring,
                "unregister",
                IoUringEnter,
                &[(EINTR, 1), (EAGAIN, 1), (EBUSY, 1), (ENOMEM, 1), (EIO, 1)],
                &[18..=18],
            ),
        ],
    },
    Known {
        fault: LEAK,
        runs: &[
            run(Uring, "drop_busy", IoUringEnter, &[(ENOMEM, 4)], &[6..=7]),
            run(Uring, "partition", IoUringEnter, &[(ENOMEM, 4)], &[6..=7, 19..=20]),
        ],
    },
    Known {
        fault: WORKERS,
        runs: &[
            run(
                Uring,
                "disconnect_without_threads",
                PthreadCreate,
                &[(EAGAIN, u32::MAX)],
                &[1..=1],
            ),
            run(Uring, "file_without_threads", PthreadCreate, &[(EAGAIN, u32::MAX)], &[1..=1]),
        ],
    },
    Known {
        fault: SPIN,
        runs: &[run(Epoll, "file_without_threads", PthreadCreate, &[(EAGAIN, u32::MAX)], &[1..=1])],
    },
    Known {
        fault: ADOPT,
        runs: &[
            run(Epoll, "partition", Dup, &[(EMFILE, 1), (ENOMEM, 1)], &[6..=6]),
            run(Epoll, "partition", Flags, &[(EACCES, 1)], &[9..=9]),
            run(Epoll, "partition", Fstat, &[(EIO, 1)], &[9..=9]),
            run(Uring, "partition", Dup, &[(EMFILE, 1), (ENOMEM, 1)], &[6..=6]),
        ],
    },
    Known {
        fault: COOKIE,
        runs: &[
            run(Epoll, "partition", Getsockopt, &[(ENOBUFS, 1)], &[1..=3, 96..=98]),
            run(Uring, "partition", Getsockopt, &[(ENOBUFS, 1)], &[1..=3, 96..=98]),
        ],
    },
];
