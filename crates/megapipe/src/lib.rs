//! The channel of MegaPipe: one pipe per thread between a server and the system.
//!
//! A [`Channel`] takes requests and gives completions. What can be registered with it ([`Source`])
//! are sockets, pipes, disk files, [`Signals`], [`Timer`]s and wake-ups ([`wake_pair`]); each gets
//! a [`Handle`] and keeps a cookie of the application's. Each request is one method, files at once,
//! and completes as an [`Event`] of the same name out of [`Channel::dispatch`].
//!
//! ```
//! use megapipe::{Channel, Event, Repeat};
//! use std::os::unix::net::UnixStream;
//!
//! let mut channel = Channel::new()?;
//! let (left, right) = UnixStream::pair()?;
//! let left = channel.register(left, "left")?;
//! let right = channel.register(right, "right")?;
//! channel.receive(right, Repeat::Once)?;
//! channel.write(left, "hello")?;
//! for _ in 0..2 {
//!     let done = channel.dispatch(None)?.unwrap();
//!     match done.event {
//!         Event::Write(count, _) => assert_eq!(count?, 5),
//!         Event::Receive(message) => assert_eq!(&*message?, b"hello"),
//!         other => panic!("unexpected: {other:?}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Who owns a buffer
//!
//! The application hands a buffer over with the request and gets it back with the completion;
//! meanwhile the kernel may use it. That is why buffers are owned values ([`Buffer`], `Vec<u8>`)
//! and not references. A receive needs no buffer of the application's: it brings a [`Lease`] of
//! one that belongs to the channel. A refused request gives its buffer back, too ([`Rejected`]).
//!
//! # What can go wrong where
//!
//! A call that returns an [`Error`] has not filed anything. A request that was filed has exactly
//! one last completion (`more` is false), whose event carries the kernel's `errno` if it failed;
//! unless its handle is unregistered before, which withdraws everything that is pending for it.
//!
//! # Drivers
//!
//! The channel works over io_uring or over epoll, with the same meaning; [`Channel::driver`] tells
//! which and why, and [`probe`] what the kernel offers. Where a driver does something in its own
//! way, the documentation of the method says so. Drivers of other crates, such as TCP in user
//! space, can be [installed](road::install) over them; then the configuration or the environment
//! variable `MEGAPIPE_DRIVER` chooses among them by name, and the application stays as it is.
//!
//! The ideas and names are those of Sangjin Han's report *A Programming Interface for Scalable
//! Network Socket I/O* (UCB/EECS-2016-125), chapters 3 and 4.

mod address;
mod buffer;
mod channel;
mod completion;
mod config;
mod control;
mod counters;
mod cpuset;
mod driver;
mod engine;
mod error;
pub mod fork;
mod listen;
mod message;
mod partition;
mod pool;
pub mod probe;
mod raw;
pub mod road;
mod signals;
mod slab;
mod source;
mod sys;

pub use address::Address;
pub use buffer::Buffer;
pub use channel::{Accept, Channel, Direction, Rejected, Repeat, Unregistered};
pub use completion::{Accepted, Completion, Datagram, Event, Handle, SignalInfo};
pub use config::{BufferClass, Config, DriverChoice, DriverKind, DriverReport, Replaced};
pub use counters::Counters;
pub use cpuset::CpuSet;
pub use error::{Error, Result, TooManyLightweight};
pub use listen::{listen, listen_with};
pub use message::{DescriptorsLost, Message, PacketInfo};
pub use partition::{ListenerError, partition};
pub use pool::Lease;
pub use raw::{RawCommand, Transfer, Transferred};
pub use road::UnknownDriver;
pub use signals::Signals;
pub use source::{Kind, Socket, Source, Timer, WakeSource, Waker, wake_pair};
