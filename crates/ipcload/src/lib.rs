//! The load of `iobench ipc`: ping-pong and one-way benchmarks between two pinned processes, the
//! same for every transport and library under comparison (section 2 of the FABLE paper).
//!
//! A measured transport implements [`End`] and calls [`run_measuring_process`] in a program that
//! understands the options of [`Load`]. That process makes the path, starts a second process of the
//! same program with `--join`, and prints a [`Line`] when messages flow and another at the end. The
//! program that started it samples the CPUs meanwhile.
//!
//! The first process sends and receives alternately (ping-pong), or only receives (one-way); it
//! reads the clock, counts, and checks. The second answers, or writes.
//!
//! # Modules
//!
//! - `load`: the options of a measurement. `end`: the trait of a measured transport.
//! - `measuring_process`, `partner_process`: the two processes. `partner`: the partner process as
//!   the measuring process manages it.
//! - `message`: contents of messages, and their check.
//! - `tally`, `report`, `clock`: counts and latencies by slice, lines of JSON, the clock.
//! - `filler`: responses of iobench's servers, whichever program they are in. `error`: errors.

mod clock;
mod end;
mod error;
mod filler;
mod load;
mod measuring_process;
mod message;
mod partner;
mod partner_process;
mod report;
mod tally;

pub use clock::cost_ns;
pub use end::{End, Invitation, TIME_LIMIT};
pub use error::{Error, Result};
pub use filler::{FILLER_HEAD, filler};
pub use load::{CpuPair, Load, Pattern};
pub use measuring_process::run_measuring_process;
pub use message::{Checker, fill};
pub use partner::{interrupt_calls_when_stopping, is_stopping};
pub use partner_process::run_partner_process;
pub use report::{Line, SliceReport};
