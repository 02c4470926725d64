//! A thread-per-core async runtime on the channel ([`megapipe`]), over each of its drivers.
//!
//! Each core is a thread with a channel, its tasks and its timers. Tasks stay on their core, so
//! futures and sockets need not be `Send`, and nothing on the way of a message is shared.
//!
//! An echo server with a thread on each CPU:
//!
//! ```no_run
//! use megapipe_rt::{Bound, Runtime, spawn_local};
//!
//! # fn main() -> std::io::Result<()> {
//! let port = Bound::tcp("127.0.0.1:7000")?;
//! Runtime::new()?.run(move || {
//!     let port = port.clone();
//!     async move {
//!         let mut listener = port.listen()?;
//!         loop {
//!             let mut stream = listener.accept().await?;
//!             spawn_local(async move {
//!                 while let Some(message) = stream.read().await? {
//!                     stream.write(message).await?;
//!                 }
//!                 stream.shutdown().await
//!             });
//!         }
//!     }
//! })
//! # }
//! ```
//!
//! # Cancellation
//!
//! Every future of this crate may be dropped at any time. What arrived waits for the next call, a
//! write is submitted whole or not at all, and the memory of a request belongs to the channel until
//! its end. See [`Stream`].
//!
//! # Back-pressure
//!
//! A writer waits while a connection's output reaches its high-water mark (64 KiB), and a
//! connection stops receiving while 64 KiB wait for a task that does not read. If tasks keep more
//! than half of a core's receive buffers, further input is copied out of them, so no connection
//! waits for another one's task.
//!
//! # Features
//!
//! None is on by default. `hyper` adds hyper's runtime traits, `http` a server for HTTP/1 and
//! HTTP/2 that runs axum, `quinn` the runtime of quinn (QUIC), `tokio-io` and `futures-io` the
//! traits of these crates for streams, `macros` the attribute `#[megapipe_rt::main]`, `metrics`
//! counts for Prometheus, `tracing` spans of tasks and connections.
//!
//! # What a server's tasks do
//!
//! [`Handle::dump`] lists all tasks with what each waits for; [`Builder::dump_signal`] makes a
//! signal write that list.
//!
//! # Modules
//!
//! - [`Runtime`], [`Builder`], [`Handle`]: cores, and how tasks get there.
//! - `core`: one core's loop. `inbox`: messages of other threads. `wheel`: the timing wheel.
//! - `dump`, `record`: [`Handle::dump`], and what the cores record for it.
//! - `task`, `spawn`: tasks, wakers and [`JoinHandle`]. `blocking`: threads for
//!   [`spawn_blocking`].
//! - `net`: [`Bound`], [`TcpListener`], [`TcpStream`], [`BoundUnix`], [`UnixListener`],
//!   [`UnixStream`], [`UdpSocket`], [`UnixDatagram`], [`pipe()`],
//!   [`copy_bidirectional`].
//! - `file`: [`File`]. `signal`: [`Signal`], [`ctrl_c`].
//! - `group`: [`TaskGroup`], tasks that end together.
//! - `time`: [`sleep()`], [`timeout`], [`interval`].
//! - `shutdown`: [`shutdown_requested`].
//! - `traits`, `http`, `metrics`, `counts`, `spans`: by features, see above.

// A library returns errors; only its user decides to end the process.
#![warn(clippy::exit)]

mod blocking;
mod core;
#[cfg(feature = "metrics")]
mod counts;
mod dump;
mod file;
mod group;
mod handle;
#[cfg(feature = "http")]
pub mod http;
mod inbox;
#[cfg(feature = "metrics")]
pub mod metrics;
mod net;
mod record;
mod runtime;
mod shutdown;
mod signal;
#[cfg(feature = "tracing")]
mod spans;
#[cfg(not(feature = "tracing"))]
#[path = "no_spans.rs"]
mod spans;
mod spawn;
mod task;
mod time;
mod traits;
mod wheel;

pub use dump::{Dump, SilentCore};
pub use file::File;
pub use group::TaskGroup;
pub use handle::Handle;
pub use megapipe::{Buffer, Message, SignalInfo};
#[cfg(feature = "macros")]
pub use megapipe_rt_macros::main;
pub use net::{
    Bound, BoundUdp, BoundUnix, Credentials, Datagram, DatagramSocket, FamilyAddress, Listener,
    Pipe, PipeReader, PipeWriter, ReadHalf, Received, Stream, Tcp, TcpListener, TcpStream,
    UdpSocket, Unix, UnixDatagram, UnixListener, UnixStream, WriteHalf, copy, copy_bidirectional,
    is_shutdown, pipe,
};
pub use record::{TaskInfo, TaskState, WaitsFor};
pub use runtime::{Builder, EnterGuard, Runtime};
pub use shutdown::{ShutdownRequested, shutdown_requested};
pub use signal::{Signal, ctrl_c};
pub use spawn::{
    YieldNow, core_index, lookup_host, spawn_blocking, spawn_local, spawn_on, yield_now,
};
pub use task::{AbortHandle, JoinError, JoinHandle, Panic};
pub use time::{Elapsed, Interval, Sleep, interval, sleep, sleep_until, timeout};
#[cfg(feature = "hyper")]
pub use traits::hyper;
#[cfg(feature = "quinn")]
pub use traits::quinn;
