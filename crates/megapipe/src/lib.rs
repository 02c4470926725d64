//! Network and file I/O through a channel: one object per thread that takes requests and returns
//! completions, over io_uring or epoll.
//!
//! Sockets, pipes, disk files, [`Signals`], [`Timer`]s and wake-ups ([`wake_pair`]) can be
//! registered with a [`Channel`] ([`Source`]); each gets a [`Handle`] and keeps a cookie of the
//! application. Each request is one method that returns at once. [`Channel::dispatch`] returns its
//! result as an [`Event`] of the same name.
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
//! # Modules
//!
//! - `channel`: [`Channel`], the methods that register, submit requests and dispatch completions.
//! - `engine`: handles, requests and their order, without the type of the cookies.
//! - `driver`: the trait between engine and system, and the drivers `uring` and `epoll`.
//! - `partition`: one listening TCP socket for several channels or processes.
//! - [`probe`]: tries which features the kernel offers, for reports to people.
//! - [`fork`]: detects forked children.
//! - [`driver_api`]: drivers of other crates, such as TCP in user space.
//! - `source`, `signals`, `listen`: what can be registered, and how listeners are opened.
//! - `completion`, `message`, `buffer`, `pool`, `raw`: results of requests, and their memory.
//! - `config`, `counters`, `cpuset`, `error`, `address`: settings, counters and plain types.
//! - `control`, `slab`, `sys`: ancillary data of messages, tables with generations, system calls.
//!
//! # Who owns a buffer
//!
//! The application hands a buffer over with the request and gets it back with the completion;
//! meanwhile the kernel may use it. That is why buffers are owned values ([`Buffer`], `Vec<u8>`)
//! and not references. A receive needs no buffer of the application: its event has a [`Lease`] of a
//! buffer that belongs to the channel. A refused request returns its buffer, too ([`Rejected`]).
//!
//! # Errors
//!
//! A call that returns an [`Error`] has submitted nothing. A request that was submitted has exactly
//! one last completion (`more` is false), whose event has the kernel's `errno` if it failed. The
//! exception: unregistering the handle withdraws all its pending requests.
//!
//! # Drivers
//!
//! The channel works over io_uring or over epoll, with the same meaning. [`Channel::driver`]
//! reports which one and why, and [`probe`] what the kernel offers. Where drivers differ, the
//! documentation of the method says so. Drivers of other crates, such as TCP in user space, can be
//! [installed](driver_api::install) over them. Then the configuration or the environment variable
//! `MEGAPIPE_DRIVER` chooses a driver by name, and the application does not change.
//!
//! The ideas and names are those of Sangjin Han's report *A Programming Interface for Scalable
//! Network Socket I/O* (UCB/EECS-2016-125), chapters 3 and 4.

// A library returns errors; only its user decides to end the process.
#![warn(clippy::exit)]

mod address;
mod buffer;
mod channel;
mod completion;
mod config;
mod control;
mod counters;
mod cpuset;
mod driver;
pub mod driver_api;
mod engine;
mod error;
pub mod fork;
mod listen;
mod message;
mod partition;
mod pool;
pub mod probe;
mod raw;
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
pub use driver_api::UnknownDriver;
pub use error::{Error, Result, TooManyLightweight};
pub use listen::{listen, listen_with};
pub use message::{DescriptorsLost, Ecn, Message, PacketInfo};
pub use partition::{ListenerError, partition};
pub use pool::Lease;
pub use raw::{RawCommand, Transfer, Transferred};
pub use signals::Signals;
pub use source::{Kind, Socket, Source, Timer, WakeSource, Waker, wake_pair};
