//! Implements TCP in user space. The design follows mTCP (Jeong et al., NSDI 2014): packet devices,
//! one engine per core, sockets with readiness events. A driver for the channel of `megapipe` uses
//! the same stacks.
//!
//! An echo server, here with its client in the same process: each thread has a [`Context`], whose
//! calls are those of POSIX.
//!
//! ```
//! use mtcp::{Config, Context, EpollControl::Add, EpollEvent, Events, Family, Mtcp};
//!
//! fn serve(mtcp: &mut Context) -> std::io::Result<()> {
//!     let listener = mtcp.socket(Family::V4)?;
//!     mtcp.bind(listener, "10.0.0.1:7".parse().unwrap())?;
//!     mtcp.listen(listener, 1024)?;
//!     let epoll = mtcp.epoll_create()?;
//!     mtcp.epoll_ctl(epoll, listener, Add(EpollEvent::of(listener, Events::IN)))?;
//!     let (mut events, mut room) = ([EpollEvent::default(); 64], [0; 4096]);
//!     loop {
//!         let count = mtcp.epoll_wait(epoll, &mut events, None)?;
//!         for event in &events[..count] {
//!             let socket = event.descriptor();
//!             if socket == listener {
//!                 let new = mtcp.accept(listener)?;
//!                 mtcp.epoll_ctl(epoll, new, Add(EpollEvent::of(new, Events::IN)))?;
//!                 continue;
//!             }
//!             match mtcp.read(socket, &mut room) {
//!                 Ok(0) | Err(_) => mtcp.close(socket)?,
//!                 Ok(bytes) => drop(mtcp.write(socket, &room[..bytes])?),
//!             }
//! #           if matches!(mtcp.getpeername(socket), Err(_)) { return Ok(()) }
//!         }
//!     }
//! }
//!
//! let at = |address: &str| Config {
//!     addresses: vec![(address.parse().unwrap(), 24)],
//!     ..Config::default()
//! };
//! let (server, client) = Mtcp::pair(at("10.0.0.1"), at("10.0.0.2"), Default::default())?;
//! let thread = std::thread::spawn(move || serve(&mut server.context(0).unwrap()));
//!
//! let mut mtcp = client.context(0)?;
//! let socket = mtcp.socket(Family::V4)?;
//! mtcp.connect(socket, "10.0.0.1:7".parse()?)?;
//! mtcp.write(socket, b"hello")?;
//! let mut answer = [0; 5];
//! mtcp.recv(socket, &mut answer, mtcp::Flags::WAIT_ALL)?;
//! assert_eq!(&answer, b"hello");
//! mtcp.close(socket)?;
//! # while !thread.is_finished() && mtcp.turn().is_ok() {}
//! # thread.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On a network, [`Mtcp::start`] replaces `pair`, and [`Config::from_environment`] reads the file
//! with the device and the addresses; `docs/mtcp.toml` shows all settings.
//!
//! # Modules
//!
//! - [`device`]: AF_XDP, AF_PACKET, TAP and memory behind one trait.
//! - [`network`]: neighbours, routes, and IP packets through a device.
//! - `engine`: [`Engine`], a stack for each core, the loop that runs it, and a thread for it.
//! - `socket`: [`Context`], the sockets of a core, with epoll.
//! - [`driver`]: the stack as a driver of `megapipe`'s channel.
//! - `start`: [`Mtcp`], the stacks of a process. [`config`]: their settings.
//! - [`requirements`]: what a machine lacks for a configuration.
//! - [`stat`]: reports of running stacks, for `mtcp stat`.
//! - [`peer_reset`], `shared_connections`: resets the connections of a program that was killed.
//! - `spsc`, `system`: rings between two threads, system calls.
//! - `sandbox`: what the stack's own threads may do.
//!
//! A connection belongs to the core that a hash of its addresses selects, wherever its packets
//! arrive. Each core therefore has listeners of its own, and no event of a connection touches
//! another core.

pub mod config;
pub mod device;
pub mod driver;
pub mod network;
pub mod peer_reset;
pub mod requirements;
pub mod stat;

mod engine;
#[cfg(test)]
mod error_tests;
mod sandbox;
mod shared_connections;
mod socket;
mod spsc;
mod start;
mod system;

pub use self::config::{Config, ConfigError};
pub use self::engine::{Engine, EngineCounters, EngineFailure};
pub use self::socket::{
    Context, Descriptor, EpollControl, EpollEvent, Events, Family, Flags, Linger, PipeWriter,
    SIOCATMARK, copied_options,
};
pub use self::start::{Mtcp, StartError};
pub use self::system::pin;
