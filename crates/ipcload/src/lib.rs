//! The load of `iobench ipc`: the benchmarks of section 2 of the FABLE paper between two pinned
//! processes, the same for every transport and every library that they are compared with.
//!
//! Whoever wants to be measured implements [`End`] and calls [`run_first`] in a program that
//! understands the options of [`Load`]. That process makes the path, starts a second one of the
//! same program with `--join`, and prints a [`Line`] when messages flow and another at the end.
//! What happens meanwhile to the CPUs is for the program that started it to see.
//!
//! The first process sends and receives in turn (ping-pong), or only receives (one way); it reads
//! the clock, counts, and checks. The second answers, or writes.

mod affinity;
mod clock;
mod end;
mod error;
mod first;
mod load;
mod message;
mod partner;
mod report;
mod second;
mod tally;

pub use affinity::pin_to;
pub use clock::{cost_ns, now_ns};
pub use end::{End, Invitation, PATIENCE};
pub use error::{Error, Result};
pub use first::run_first;
pub use load::{CpuPair, Load, Pattern};
pub use message::{Checker, fill};
pub use partner::{interrupt_calls_when_stopping, is_stopping};
pub use report::{Line, SliceReport};
pub use second::run_second;
