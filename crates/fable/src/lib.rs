//! Named message connections ("flows") that choose the best transport and change it while they are
//! open: shared memory between processes of one host, TCP or TLS between hosts.
//!
//! After *The Case for Reconfigurable I/O Channels* (FABLE); section numbers in these pages are the
//! paper's.
//!
//! # A tour
//!
//! An [`Endpoint`] has a name and makes flows. One end listens, another connects to the name, and
//! each gets a [`Flow`]:
//!
//! ```
//! use fable::Endpoint;
//!
//! let kv = Endpoint::register("unix://@fable-tour")?;
//! let listener = kv.listen()?;
//! let server = std::thread::spawn(move || {
//!     let flow = listener.accept()?;
//!     while let Some(request) = flow.read()? {
//!         let mut reply = flow.write(request.len())?;
//!         reply.copy_from_slice(&request);
//!         reply.commit()?;
//!     }
//!     flow.finish()
//! });
//!
//! let flow = Endpoint::anonymous().connect("unix://@fable-tour")?;
//! let mut request = flow.write(5)?;
//! request.copy_from_slice(b"hello");
//! request.commit()?;
//! let answer = flow.read()?.unwrap();
//! assert_eq!(&answer[..], b"hello");
//! answer.release();
//! flow.finish()?;
//! assert!(flow.read()?.is_none());
//! server.join().unwrap()?;
//! # Ok::<(), fable::Error>(())
//! ```
//!
//! # Modules
//!
//! - `endpoint`, `name`: [`Endpoint`]s, listeners, and the URIs that name them.
//! - [`flow`]: [`Flow`], its buffers, and its reconfiguration from one transport to the next.
//! - [`transport`]: the transports without names and flows, to measure or to embed them.
//! - `kind`: the names of the transports. `identity`: flows, their ends, trust and access.
//! - `control`: how the two ends of a flow agree on its transport.
//! - [`orders`]: the orders of daemons, operators and applications about a flow, merged.
//! - `agent`: the thread of the library, which opens paths and serves control links.
//! - `daemon`, [`protocol`], [`packet`], [`page`]: the connection to the name daemon, its messages,
//!   packets with descriptors, and the counters of a flow in shared memory.
//! - `xpoll`, `channel`: wait for several flows, alone or in a [`megapipe::Channel`].
//! - `memory`, `event`, `poll`, `socket`, `clock`, `fork`: system calls that several
//!   modules make.
//! - `error`: the errors of flows and transports.
//!
//! # Use
//!
//! The library allocates all message memory. [`Flow::write`] returns a buffer where the transport
//! needs it, and waits for room if the peer does not keep up; `commit` sends it. [`Flow::read`]
//! returns a message where it lies; `release`, or dropping it, returns the memory. A buffer is used
//! once: `commit` and `release` consume it, so a later use does not compile.
//!
//! **Names** are URIs. `fable://service` and `fable://service/instance` are registered with the
//! name daemon, `fabled`. It decides who may connect, finds the other end on this host or another
//! one, and chooses the transport: shared memory between processes of one host, TCP or TLS between
//! hosts. `tcp://host:port` and `unix:///path` (as above; `unix://@name` is an abstract one) are
//! plain sockets for foreign programs. They need no daemon, and carry bytes without boundaries: a
//! buffer is whatever has arrived.
//!
//! **Transports change** under an open flow (section 3.1.4): the new path is opened first, then
//! each end continues on it; nothing is lost, repeated or reordered. [`FlowEvent`] and the epoch of
//! a buffer inform the application. The daemon moves flows by its policy, an operator by `fable
//! move`, an application by [`Flow::move_to`].
//!
//! **Trust** decides about copies (section 3.1.2): only if both ends trust each other
//! ([`EndpointOptions::trust`]) is a message read in memory that its sender can still write.
//!
//! **Waiting for many** flows: with [`xpoll()`], or with a [`megapipe::Channel`] together with
//! sockets, files and timers ([`Flow::watch`]). Both use [`Flow::descriptor`], which works in any
//! event loop.
//!
//! **After a death:** messages that a dead peer had committed are still read, then a read fails
//! with [`Error::PeerDied`]. The death of the daemon does not affect a flow; the library reconnects
//! to the next daemon with all names and flows. A child of `fork` gets [`Error::Forked`] and makes
//! endpoints of its own.
//!
//! A flow belongs to one thread and costs no system call or lock per message on shared memory. Work
//! that may block or take long (control links, opening paths, the daemon) runs on the agent, one
//! thread of the library, which blocks all signals.

// Unit and integration tests share helpers, which name the crate.
#[cfg(test)]
extern crate self as fable;

mod agent;
mod channel;
mod clock;
mod control;
mod daemon;
mod endpoint;
mod error;
mod event;
pub mod flow;
mod fork;
#[doc(hidden)]
pub mod fuzzing;
mod identity;
mod kind;
mod memory;
mod name;
pub mod orders;
pub mod packet;
pub mod page;
mod poll;
pub mod protocol;
mod socket;
pub mod transport;
mod xpoll;

pub use daemon::socket_path;
pub use endpoint::{Endpoint, EndpointOptions, Listener};
pub use error::{Error, Result, TransportError, TransportResult};
pub use flow::{Flow, FlowEvent, ReadBuffer, WriteBuffer};
pub use identity::{Access, FlowId, Peer, Role, Trust};
pub use kind::{Form, Kind, UnknownKind};
pub use name::{BadName, Name};
pub use xpoll::{Interest, Ready, xpoll};

/// The examples of pages in `docs` are compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/channel.md")]
#[doc = include_str!("../../../docs/flows.md")]
struct Readme;
