//! What a process tells about its stacks to whoever asks: `mtcp stat`, or a program that reads the
//! same JSON.
//!
//! A thread listens on a UNIX socket. It never touches a stack: it leaves a wish on the `Board`
//! of each engine, which answers in its next turn, so an engine that nobody asks loses one load a
//! turn.

mod ask;
mod server;
mod text;

pub use self::ask::{AskError, ask, processes};
pub use self::server::StatError;
pub use self::text::{difference, table};
pub use crate::engine::{ConnectionLine, CoreReport};

pub(crate) use self::server::Server;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Its number.
    pub process: u32,
    /// Its program's name.
    pub program: String,
    /// Its engines; those that did not answer in time are missing.
    pub cores: Vec<CoreReport>,
    /// Engines that did not answer: in the mode `complete` they do only while their owner calls.
    pub silent: Vec<u16>,
}

/// The beginning of abstract names, as processes without a configured path have them.
const ABSTRACT_PREFIX: &str = "mtcp/";
/// The longest question.
const QUESTION_BYTES: u64 = 64;
/// How long the engines have to answer, all of them together: an answer takes no time, but any
/// thread may have to wait for a CPU. Whoever asks waits as long for an engine that nobody turns.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// How long either side waits for the other besides.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(all(test, not(loom)))]
mod tests;
