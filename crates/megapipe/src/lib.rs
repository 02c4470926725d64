//! The channel of MegaPipe.

mod address;
mod buffer;
mod channel;
mod completion;
mod config;
mod counters;
mod cpuset;
mod driver;
mod engine;
mod error;
mod fork;
mod partition;
mod pool;
pub mod probe;
mod slab;
mod source;
mod sys;

pub use address::Address;
pub use buffer::Buffer;
pub use channel::{Accept, Channel, Rejected, Repeat, Unregistered};
pub use completion::{Accepted, Completion, Datagram, Event, Handle, SignalInfo};
pub use config::{BufferClass, Config, DriverChoice, DriverKind, DriverReport, UnknownDriver};
pub use counters::Counters;
pub use cpuset::CpuSet;
pub use error::{Error, Result};
pub use partition::ListenerError;
pub use pool::Lease;
pub use source::{Kind, Signals, Socket, Source, Timer, WakeSource, Waker, wake_pair};
