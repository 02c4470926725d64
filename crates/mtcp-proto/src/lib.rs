//! TCP/IP without I/O: the caller passes packets, time and random numbers in, and takes packets
//! and events out.
//!
//! A [`Stack`] serves one core. Its caller passes it the received packets ([`Stack::input`]), takes
//! the packets to send from it ([`Stack::output`]) and calls it at its [`Stack::deadline`]. Between
//! these calls applications listen, connect, send and receive, and take readiness events from
//! [`Stack::next_event`]. The stack never sleeps, reads no clock, draws no random number of its own
//! and allocates nothing for a connection that has no data. Every run can therefore be repeated
//! from a seed.
//!
//! # Modules
//!
//! - `stack`: [`Stack`]: demultiplexing, listeners, SYN cookies, TIME_WAIT, order of transmission.
//! - `tcp`: one connection, with one file for each mechanism of an RFC.
//! - [`wire`]: Ethernet, ARP, IP, ICMP, neighbour discovery and TCP headers.
//! - [`neighbour`]: ARP and neighbour discovery.
//! - `memory`: rings, buffer pool, slab, flow table and timer wheel, all bounded.
//! - `config`, `counters`, `error`: settings, counts and errors.
//! - `socket`, `packet`, `flow`: identifiers and readiness, packets and [`Sink`], address pairs.
//! - [`sequence`], [`time`]: sequence numbers that wrap, and the caller's clock.
//!
//! The design follows mTCP (Jeong et al., NSDI 2014): one stack per core, nothing shared, packets
//! in batches.

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
pub use self::error::{Error, OutOfRange};
pub use self::packet::{Checksum, Packet, PartialChecksum, Sink, SinkCapabilities};
pub use self::sequence::Sequence;
pub use self::socket::{ConnectionInfo, Readiness, SendFlags, Shutdown, SocketId, State, Urgent};
pub use self::stack::Stack;
pub use self::time::Instant;
