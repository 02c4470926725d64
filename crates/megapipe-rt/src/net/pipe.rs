//! Pipes, FIFOs and terminals.

use super::connection::Connection;
use super::family::Pipe;
use super::halves::{ReadHalf, WriteHalf};
use crate::core::current;
use megapipe::Kind;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// The reading end of a pipe, or any descriptor from which a stream of bytes is read; from
/// [`pipe`], [`PipeReader::from_descriptor`] or [`PipeReader::stdin`].
///
/// While it exists, `O_NONBLOCK` is set for the descriptor and its duplicates, in other processes,
/// too.
pub type PipeReader = ReadHalf<Pipe>;

/// The writing end of a pipe, or any descriptor to which a stream of bytes is written; from
/// [`pipe`], [`PipeWriter::from_descriptor`], [`PipeWriter::stdout`] or [`PipeWriter::stderr`].
///
/// Dropping it ends the pipe, after what was written. If no reader is left, writing fails with
/// `EPIPE`, without a `SIGPIPE`. While it exists, `O_NONBLOCK` is set as for a [`PipeReader`]:
/// `println!` of the standard library may then fail on a full pipe.
pub type PipeWriter = WriteHalf<Pipe>;

/// Creates a pipe, see pipe(2).
///
/// ```
/// let runtime = megapipe_rt::Runtime::builder().cores(1).build()?;
/// runtime.block_on(async {
///     let (mut reader, mut writer) = megapipe_rt::pipe()?;
///     writer.write("hello").await?;
///     drop(writer);
///     assert_eq!(&*reader.read().await?.expect("the message"), b"hello");
///     assert!(reader.read().await?.is_none());
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    Ok((PipeReader::from_descriptor(reader)?, PipeWriter::from_descriptor(writer)?))
}

impl ReadHalf<Pipe> {
    /// Takes over the reading end of a pipe, such as a `ChildStdout`, a FIFO, a terminal or a
    /// connected socket. Fails for a disk file: use [`File`](crate::File).
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_descriptor(descriptor: impl Into<OwnedFd>) -> io::Result<PipeReader> {
        Ok(ReadHalf::new(connect(descriptor.into())?))
    }

    /// Reads from a duplicate of the standard input. Fails if that is a disk file.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn stdin() -> io::Result<PipeReader> {
        PipeReader::from_descriptor(io::stdin().as_fd().try_clone_to_owned()?)
    }
}

impl WriteHalf<Pipe> {
    /// Takes over the writing end of a pipe, such as a `ChildStdin`, a FIFO, a terminal or a
    /// connected socket. Fails for a disk file: use [`File`](crate::File).
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_descriptor(descriptor: impl Into<OwnedFd>) -> io::Result<PipeWriter> {
        Ok(WriteHalf::new(connect(descriptor.into())?))
    }

    /// Writes to a duplicate of the standard output. Fails if that is a disk file.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn stdout() -> io::Result<PipeWriter> {
        PipeWriter::from_descriptor(io::stdout().as_fd().try_clone_to_owned()?)
    }

    /// Writes to a duplicate of the standard error output. Fails if that is a disk file.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn stderr() -> io::Result<PipeWriter> {
        PipeWriter::from_descriptor(io::stderr().as_fd().try_clone_to_owned()?)
    }
}

fn connect(descriptor: OwnedFd) -> io::Result<Rc<Connection>> {
    let connection = Connection::of_pipe(current("a pipe"), descriptor)?;
    match connection.with(|channel, handle| channel.kind(handle))? {
        Kind::Pipe | Kind::Stream => Ok(Rc::new(connection)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the descriptor is not a pipe, a terminal or a stream socket: use File for disk files",
        )),
    }
}
