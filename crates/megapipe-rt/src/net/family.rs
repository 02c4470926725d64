//! Names the families of streams, as type parameters of [`Stream`](crate::Stream) and its halves.

/// TCP, see [`TcpStream`](crate::TcpStream).
#[derive(Clone, Copy, Debug)]
pub enum Tcp {}

/// UNIX sockets, see [`UnixStream`](crate::UnixStream).
#[derive(Clone, Copy, Debug)]
pub enum Unix {}

/// Pipes, see [`PipeReader`](crate::PipeReader) and [`PipeWriter`](crate::PipeWriter).
#[derive(Clone, Copy, Debug)]
pub enum Pipe {}
