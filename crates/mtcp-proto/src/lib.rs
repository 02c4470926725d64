//! TCP/IP without I/O: packets go in, packets come out, and time and randomness are arguments.
//!
//! A [`Stack`] serves one core. Whoever drives it hands it the packets that came
//! ([`Stack::input`]), asks it for the packets that are due ([`Stack::output`]) and wakes it at its
//! [`Stack::deadline`]. Between these calls applications listen, connect, send and receive; what
//! they wait for comes out of [`Stack::next_event`]. The stack never sleeps, reads no clock, draws
//! no random number of its own and allocates nothing for a connection that has no data, so every
//! run of it can be repeated from a seed.
//!
//! After mTCP (Jeong et al., NSDI 2014): one stack per core, nothing shared, batches all the way.

#![forbid(unsafe_code)]

pub mod neighbour;
pub mod sequence;
pub mod time;
pub mod wire;

mod config;
mod counters;
mod error;
mod flow;
mod memory;
mod packet;
mod socket;
mod stack;
mod tcp;

pub use self::config::{
    Config, Congestion, Keepalive, ListenOptions, Options, Secret, Steering, SynCookies,
};
pub use self::counters::Counters;
pub use self::error::Error;
pub use self::packet::{Checksum, Packet, PartialChecksum, Sink, SinkCapabilities};
pub use self::sequence::Sequence;
pub use self::socket::{ConnectionInfo, Manner, Readiness, Shutdown, SocketId, State, Urgent};
pub use self::stack::Stack;
pub use self::time::Instant;
