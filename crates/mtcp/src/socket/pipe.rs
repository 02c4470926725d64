//! Implements pipes within the process, which can be watched like sockets. Other threads can write
//! to them to wake the context (`mtcp_pipe`).

use super::errors::from;
use super::events::Events;
use super::{Context, Descriptor, Object};
use crate::engine::Alarm;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes in a pipe, as in the kernel.
const CAPACITY_BYTES: usize = 64 * 1024;
/// A write of up to this number of bytes is complete or has no effect (`PIPE_BUF`).
const ATOMIC_BYTES: usize = 4096;

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PipeEnd {
    Read,
    Write,
}

#[derive(Debug)]
struct State {
    bytes: VecDeque<u8>,
    reader: Option<Descriptor>,
    writer: Option<Descriptor>,
    /// Number of writing ends that other threads have.
    writers_elsewhere: usize,
}

/// A pipe. Its lock is the only one in the socket layer, and sockets do not use it.
#[derive(Debug)]
pub(super) struct Pipe(Mutex<State>);

impl Pipe {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present readiness of an end.
    pub(super) fn ready(&self, end: PipeEnd) -> Events {
        let state = self.state();
        let mut events = Events::default();
        match end {
            PipeEnd::Read => {
                if !state.bytes.is_empty() {
                    events |= Events::IN;
                }
                if state.writer.is_none() && state.writers_elsewhere == 0 {
                    events |= Events::HANG_UP;
                }
            }
            PipeEnd::Write => {
                if state.bytes.len() + ATOMIC_BYTES <= CAPACITY_BYTES {
                    events |= Events::OUT;
                }
                if state.reader.is_none() {
                    events |= Events::ERROR | Events::OUT;
                }
            }
        }
        events
    }

    /// Closes an end; returns the other one if the context has it.
    pub(super) fn close(&self, end: PipeEnd) -> Option<Descriptor> {
        let mut state = self.state();
        match end {
            PipeEnd::Read => state.reader = None,
            PipeEnd::Write => state.writer = None,
        }
        match end {
            PipeEnd::Read => state.writer,
            PipeEnd::Write => state.reader,
        }
    }

    fn other(&self, end: PipeEnd) -> Option<Descriptor> {
        let state = self.state();
        match end {
            PipeEnd::Read => state.writer,
            PipeEnd::Write => state.reader,
        }
    }

    /// Reads data; `None` if there is none yet.
    fn read(&self, room: &mut [u8]) -> Option<usize> {
        let mut state = self.state();
        if state.bytes.is_empty() && (state.writer.is_some() || state.writers_elsewhere > 0) {
            return None;
        }
        let bytes = room.len().min(state.bytes.len());
        for (byte, place) in state.bytes.drain(..bytes).zip(room) {
            *place = byte;
        }
        Some(bytes)
    }

    fn write(&self, data: &[u8]) -> io::Result<Option<usize>> {
        let mut state = self.state();
        if state.reader.is_none() {
            return Err(from(libc::EPIPE));
        }
        let room = CAPACITY_BYTES - state.bytes.len();
        if room < data.len().min(ATOMIC_BYTES) {
            return Ok(None);
        }
        let bytes = data.len().min(room);
        state.bytes.extend(&data[..bytes]);
        Ok(Some(bytes))
    }
}

/// The writing end of a pipe for other threads; it writes without waiting.
#[derive(Debug)]
pub struct PipeWriter {
    pipe: Arc<Pipe>,
    alarm: Arc<Alarm>,
}

impl PipeWriter {
    /// Writes as much as fits and wakes the context that reads; a write of up to 4,096 bytes is
    /// complete or has no effect.
    ///
    /// # Errors
    /// `EAGAIN` (full), `EPIPE` (the reading end is closed).
    pub fn write(&self, data: &[u8]) -> io::Result<usize> {
        let written = self.pipe.write(data)?.ok_or_else(|| from(libc::EAGAIN))?;
        self.alarm.call();
        Ok(written)
    }
}

impl Clone for PipeWriter {
    fn clone(&self) -> PipeWriter {
        self.pipe.state().writers_elsewhere += 1;
        PipeWriter { pipe: Arc::clone(&self.pipe), alarm: Arc::clone(&self.alarm) }
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.pipe.state().writers_elsewhere -= 1;
        self.alarm.call();
    }
}

impl Context {
    /// Creates a pipe: its reading and its writing end, which never block. See pipe(7).
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn pipe(&mut self) -> io::Result<(Descriptor, Descriptor)> {
        let state =
            State { bytes: VecDeque::new(), reader: None, writer: None, writers_elsewhere: 0 };
        let pipe = Arc::new(Pipe(Mutex::new(state)));
        let reader = self.install(Object::Pipe(Arc::clone(&pipe), PipeEnd::Read))?;
        let writer = match self.install(Object::Pipe(Arc::clone(&pipe), PipeEnd::Write)) {
            Ok(writer) => writer,
            Err(error) => {
                self.table.remove(reader)?;
                return Err(error);
            }
        };
        pipe.state().reader = Some(reader);
        pipe.state().writer = Some(writer);
        self.pipes.extend([reader, writer]);
        Ok((reader, writer))
    }

    /// Creates a writing end for other threads, of the pipe to which `descriptor` belongs.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` (not a pipe).
    pub fn pipe_writer(&mut self, descriptor: Descriptor) -> io::Result<PipeWriter> {
        let Object::Pipe(pipe, _) = &self.table.get(descriptor)?.object else {
            return Err(from(libc::EINVAL));
        };
        pipe.state().writers_elsewhere += 1;
        Ok(PipeWriter { pipe: Arc::clone(pipe), alarm: Arc::clone(self.port.alarm()) })
    }

    /// Reads if `descriptor` is the reading end of a pipe; `None` if it is not a pipe.
    pub(super) fn read_pipe(
        &mut self,
        descriptor: Descriptor,
        room: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let Object::Pipe(pipe, end) = &self.table.get(descriptor)?.object else {
            return Ok(None);
        };
        let (pipe, end) = (Arc::clone(pipe), *end);
        if end != PipeEnd::Read {
            return Err(from(libc::EBADF));
        }
        let bytes = pipe.read(room).ok_or_else(|| from(libc::EAGAIN))?;
        if let Some(writer) = pipe.other(end) {
            let ready = pipe.ready(PipeEnd::Write);
            self.notify(writer, ready);
        }
        Ok(Some(bytes))
    }

    /// Writes if `descriptor` is the writing end of a pipe; `None` if it is not a pipe.
    pub(super) fn write_pipe(
        &mut self,
        descriptor: Descriptor,
        data: &[u8],
    ) -> io::Result<Option<usize>> {
        let Object::Pipe(pipe, end) = &self.table.get(descriptor)?.object else {
            return Ok(None);
        };
        let (pipe, end) = (Arc::clone(pipe), *end);
        if end != PipeEnd::Write {
            return Err(from(libc::EBADF));
        }
        let bytes = pipe.write(data)?.ok_or_else(|| from(libc::EAGAIN))?;
        if let Some(reader) = pipe.other(end) {
            self.notify(reader, Events::IN);
        }
        Ok(Some(bytes))
    }
}
