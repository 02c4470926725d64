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
pub mod stack;
pub mod time;
pub mod wire;

mod memory;
mod tcp;

pub use self::sequence::Sequence;
pub use self::stack::{
    Checksum, Config, ConnectionInfo, Counters, Error, Keepalive, ListenOptions, Manner, Options,
    Packet, PartialChecksum, Readiness, Secret, Shutdown, Sink, SinkCapabilities, SocketId, Stack,
    Steering, SynCookies, Urgent,
};
pub use self::tcp::{Congestion, State};
pub use self::time::Instant;
