//! Fails each system call of whole programs in turn, kills them at each, and checks that nothing
//! leaks, nothing hangs, and the program's message names the cause.
//!
//! A filter of seccomp(2) sends the calls of a program to the harness before the kernel executes
//! them. The first run of a scenario counts them; each further run fails one of them, or kills the
//! process there. See `docs/design/testing.md`.
//!
//! # Modules
//!
//! - `calls`: which calls fail, and with which errnos.
//! - `notify`, `tracer`: receive the calls of a program, count them, and carry out a plan.
//! - `room`: a worker's namespaces; what is left in them.
//! - `scenario`: the programs of channel, flow, preload, mtcp and fabled.
//! - `run`: runs a scenario once, and judges how its programs ended.
//! - `sweep`: runs a scenario once for each fault.
//! - `campaign`: divides the faults among workers, and sums up.
//! - [`refusal`]: refuses one optional call of a program throughout, as sandboxes do.

mod calls;
mod campaign;
mod notify;
pub mod refusal;
mod room;
mod run;
mod scenario;
mod sweep;
mod tracer;

pub use campaign::{Options, run, work};
pub use sweep::Share;
