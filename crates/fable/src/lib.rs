//! Named flows that pick the best transport and change it while they live: FABLE, after the paper
//! of that name (numbers of sections in these pages are its).
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
//! The application never brings memory of its own: [`Flow::write`] hands out room for a message,
//! wherever the transport wants it, and waits there if the peer does not keep up; `commit` sends
//! it. [`Flow::read`] hands out a message where it lies; `release`, or dropping it, returns the
//! memory. A buffer is used once: after `commit` or `release` it is gone, and the compiler knows.
//!
//! **Names** are URIs. `fable://service` and `fable://service/instance` belong to the name daemon,
//! `fabled`, which knows who may connect, finds the other end on this host or another one, and
//! chooses the transport: shared memory between processes that share a host, TCP or TLS between
//! those that do not. `tcp://host:port` and `unix:///path` (as above; `unix://@name` is an abstract
//! one) are plain sockets for programs that know nothing of us, need no daemon, and carry bytes
//! without boundaries: a buffer is whatever has arrived.
//!
//! **Transports change** under a living flow (section 3.1.4): the new path is made first, then each
//! end goes over to it; nothing is lost, repeated or overtaken. Who cares takes a [`FlowEvent`] or
//! looks at the epoch of a buffer. The daemon moves flows by its policy, an operator by
//! `fable move`, an application by [`Flow::move_to`].
//!
//! **Trust** decides about copies (section 3.1.2): only if both ends trust each other
//! ([`EndpointOptions::trust`]) is a message read in the memory that its sender could still write.
//!
//! **Waiting for many** is [`xpoll()`]'s affair, or a [`megapipe::Channel`]'s, in which flows lie
//! beside sockets, files and timers ([`Flow::watch`]); both go by [`Flow::descriptor`], which any
//! event loop can take.
//!
//! **When something dies:** what a dead peer had committed is still read, then comes
//! [`Error::PeerDied`]. A flow does not notice that the daemon is gone; the library comes back to
//! the next daemon with all names and flows. A child of `fork` gets [`Error::Forked`] and makes
//! endpoints of its own.
//!
//! A flow belongs to one thread and costs no system call or lock per message on shared memory. What
//! may wait or take long (control, opening paths, the daemon) is done by a thread of the library's
//! own, the agent, which blocks all signals.
//!
//! # What else there is
//!
//! [`transport`] has the transports without names and flows, to measure or to embed them;
//! [`packet`], [`protocol`] and [`page`] are what processes and daemon speak.

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
mod identity;
mod kind;
mod memory;
mod name;
pub mod orders;
pub mod packet;
pub mod page;
mod poll;
pub mod protocol;
mod random;
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

/// The examples of the README are compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
