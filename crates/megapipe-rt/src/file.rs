//! Disk files.
//!
//! A request of the channel names its file, its offset and its buffer, but not its future. Each
//! future therefore has an [`Operation`], in the order of submission, by which its completion finds
//! it.

use crate::core::{Core, CoreChannel, Sink, current};
use crate::record::{Reason, note};
use crate::spawn::spawn_blocking;
use megapipe::{Buffer, Event, Handle, Kind, Rejected};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, Metadata, OpenOptions};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The smallest spare capacity for which [`File::read_to_end`] reads.
const READ_SIZE: usize = 64 << 10;

/// A disk file of the calling core.
///
/// Over io_uring the kernel reads and writes it asynchronously; over epoll, helper threads of the
/// channel do so, unless the bytes are in the page cache. Opening it needs a thread of
/// [`spawn_blocking`].
///
/// Every future may be dropped at any time. A read or sync in flight then goes on without effect. A
/// write in flight is written nevertheless, and if it fails, the next [`write`](File::write),
/// [`write_at`](File::write_at), [`sync`](File::sync) or [`sync_data`](File::sync_data) fails in
/// its place. Dropping the file closes it after all writes; to know that they succeeded, await
/// them.
///
/// ```
/// use megapipe_rt::{File, Runtime};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("log");
/// Runtime::builder().cores(1).build()?.block_on(async {
///     let mut file = File::create(&path).await?;
///     file.write("first line\n").await?;
///     file.write_at("FIRST", 0).await?;
///     file.sync_data().await?;
///     let mut file = File::open(&path).await?;
///     assert_eq!(file.read_to_end().await?, b"FIRST line\n");
///     assert_eq!(file.read_at(Vec::with_capacity(4), 6).await?, b"line");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct File {
    core: Rc<Core>,
    handle: Handle,
    state: Rc<State>,
    position: u64,
}

/// The operations in flight, and what those left whose future was dropped.
#[derive(Default)]
struct State {
    operations: RefCell<VecDeque<Rc<Operation>>>,
    /// The tasks that wait until no sync is in flight.
    sync_waiters: RefCell<Vec<Waker>>,
    /// The `errno` of a write whose future was dropped.
    lost_error: Cell<Option<i32>>,
}

struct Operation {
    request: Request,
    result: Cell<Option<io::Result<Buffer>>>,
    waker: Cell<Option<Waker>>,
    /// Whether its future was dropped.
    abandoned: Cell<bool>,
}

/// By what a completion and its operation are matched. Completions of equal requests may be
/// exchanged: for reads there are none, because their buffers differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Read { offset: u64, address: usize },
    Write { offset: u64 },
    Sync,
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        File::open_with(OpenOptions::new().read(true), path).await
    }

    /// Creates a file, or truncates it, for writing.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        File::open_with(OpenOptions::new().write(true).create(true).truncate(true), path).await
    }

    /// Opens a file with these options. In append mode, all writes go to the end of the file,
    /// whatever their offset.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn open_with(options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
        let (options, path) = (options.clone(), path.as_ref().to_path_buf());
        File::from_std(spawn_blocking(move || options.open(path)).await??)
    }

    /// Takes over a file of the standard library, at position 0. Fails for what is not a disk file.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_std(file: fs::File) -> io::Result<File> {
        let core = current("File::from_std");
        let state = Rc::new(State::default());
        let sink = Rc::clone(&state) as Rc<dyn Sink>;
        let handle = core.with_channel(|channel| Ok(channel.register(file, sink)?))?;
        let file = File { core, handle, state, position: 0 };
        match file.with(|channel, handle| Ok(channel.kind(handle)?))? {
            Kind::File => Ok(file),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a disk file: use PipeReader::from_descriptor or \
                 PipeWriter::from_descriptor for pipes, FIFOs and terminals",
            )),
        }
    }

    /// Reads from an offset into the spare capacity of `buffer`, after its content, and returns the
    /// buffer. Fewer bytes than the capacity are no error; none are the end of the file. Any number
    /// of reads and writes at offsets may be in flight, in no order.
    pub async fn read_at(&self, buffer: Vec<u8>, offset: u64) -> io::Result<Vec<u8>> {
        let request = Request::Read { offset, address: buffer.as_ptr().addr() };
        let operation = self.submit(request, buffer, |channel, handle, buffer| {
            channel.read_at(handle, buffer, offset)
        });
        match operation.await?.await? {
            Buffer::Owned(bytes) => Ok(bytes),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Writes all of the buffer at an offset.
    pub async fn write_at(&self, buffer: impl Into<Buffer>, offset: u64) -> io::Result<()> {
        self.submit_write(buffer.into(), offset).await?.await?;
        Ok(())
    }

    /// Reads up to `bytes` bytes at the file's position, which it moves on; none are the end of the
    /// file. If the future is dropped, the position stays.
    pub async fn read(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let found = self.read_at(Vec::with_capacity(bytes), self.position).await?;
        self.position += found.len() as u64;
        Ok(found)
    }

    /// Reads from the file's position to its end, and moves the position there. If the future is
    /// dropped, the position stays.
    pub async fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut found = Vec::with_capacity(READ_SIZE);
        loop {
            let before = found.len();
            found = self.read_at(found, self.position + before as u64).await?;
            if found.len() == before {
                self.position += before as u64;
                return Ok(found);
            }
            if found.capacity() - found.len() < READ_SIZE / 2 {
                found.reserve(found.len().max(READ_SIZE));
            }
        }
    }

    /// Writes all of the buffer at the file's position, which it moves on. If the future is dropped
    /// after its first poll, the bytes are usually written nevertheless; the
    /// [position](File::position) tells.
    pub async fn write(&mut self, buffer: impl Into<Buffer>) -> io::Result<()> {
        let buffer = buffer.into();
        let count = buffer.len() as u64;
        let operation = self.submit_write(buffer, self.position).await?;
        self.position += count;
        operation.await?;
        Ok(())
    }

    /// Returns the position of [`read`](File::read) and [`write`](File::write), in bytes. It is not
    /// that of the descriptor.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sets the position.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    /// Waits until the data of all writes that are complete is on the disk, see fsync(2).
    pub async fn sync(&self) -> io::Result<()> {
        self.sync_by(|channel, handle| channel.sync(handle)).await
    }

    /// Does the same without metadata that is not needed to read the data, see fdatasync(2).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync_by(|channel, handle| channel.sync_data(handle)).await
    }

    async fn sync_by(
        &self,
        sync: impl Fn(&mut CoreChannel, Handle) -> megapipe::Result<()>,
    ) -> io::Result<()> {
        self.state.take_lost_error()?;
        // A sync that began before this call may not cover the last writes, and its completion
        // looks the same.
        poll_fn(|context| self.state.poll_no_sync(context)).await;
        let operation = self.submit(Request::Sync, (), |channel, handle, ()| {
            sync(channel, handle).map_err(|error| Rejected { error, buffer: () })
        });
        operation.await?.await?;
        Ok(())
    }

    /// Returns the metadata, such as the length, by a thread of [`spawn_blocking`].
    pub async fn metadata(&self) -> io::Result<Metadata> {
        let file = self.try_clone_std()?;
        spawn_blocking(move || file.metadata()).await?
    }

    /// Returns a duplicate for the standard library, for example to set the length or to lock the
    /// file by a thread of [`spawn_blocking`].
    pub fn try_clone_std(&self) -> io::Result<fs::File> {
        self.with(|channel, handle| Ok(channel.descriptor(handle)?.into()))
    }

    fn with<T>(
        &self,
        call: impl FnOnce(&mut CoreChannel, Handle) -> io::Result<T>,
    ) -> io::Result<T> {
        self.core.with_channel(|channel| call(channel, self.handle))
    }

    async fn submit_write(&self, buffer: Buffer, offset: u64) -> io::Result<InFlight> {
        self.state.take_lost_error()?;
        self.submit(Request::Write { offset }, buffer, |channel, handle, buffer| {
            channel.write_at(handle, buffer, offset)
        })
        .await
    }

    /// Submits a request with its input, as soon as the channel takes it.
    async fn submit<B>(
        &self,
        request: Request,
        input: B,
        submit: impl Fn(&mut CoreChannel, Handle, B) -> Result<(), Rejected<B>>,
    ) -> io::Result<InFlight> {
        let mut input = Some(input);
        poll_fn(|context| {
            let Some(given) = input.take() else { return Poll::Pending };
            let submitted = self.with(|channel, handle| {
                submit(channel, handle, given).map_err(|rejected| {
                    input = Some(rejected.buffer);
                    rejected.error.into()
                })
            });
            match submitted {
                Ok(()) => Poll::Ready(Ok(self.state.add(request))),
                // The channel is full until it has dispatched completions.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }
}

impl State {
    fn add(self: &Rc<State>, request: Request) -> InFlight {
        let operation = Rc::new(Operation {
            request,
            result: Cell::new(None),
            waker: Cell::new(None),
            abandoned: Cell::new(false),
        });
        self.operations.borrow_mut().push_back(Rc::clone(&operation));
        InFlight { state: Rc::clone(self), operation }
    }

    /// Fails with the error of a write whose future was dropped, once.
    fn take_lost_error(&self) -> io::Result<()> {
        self.lost_error.take().map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn poll_no_sync(&self, context: &Context<'_>) -> Poll<()> {
        if !self.operations.borrow().iter().any(|operation| operation.request == Request::Sync) {
            return Poll::Ready(());
        }
        note(Reason::FILE);
        let waker = context.waker();
        if !self.sync_waiters.borrow().iter().any(|kept| kept.will_wake(waker)) {
            let waker = waker.clone();
            self.sync_waiters.borrow_mut().push(waker);
        }
        Poll::Pending
    }

    /// Ends the first operation with this request.
    fn end(&self, request: Request, result: io::Result<Buffer>) {
        let mut operations = self.operations.borrow_mut();
        let at = operations.iter().position(|operation| operation.request == request);
        let Some(operation) = at.and_then(|at| operations.remove(at)) else { return };
        drop(operations);
        if request == Request::Sync {
            let waiters = self.sync_waiters.take();
            waiters.into_iter().for_each(Waker::wake);
        }
        operation.result.set(Some(result));
        match operation.abandoned.get() {
            true => self.keep_error(&operation),
            false => operation.waker.take().into_iter().for_each(Waker::wake),
        }
    }

    /// Keeps the error of a write whose future was dropped.
    fn keep_error(&self, operation: &Operation) {
        if let (Request::Write { .. }, Some(Err(error))) =
            (operation.request, operation.result.take())
            && self.lost_error.get().is_none()
        {
            self.lost_error.set(Some(error.raw_os_error().unwrap_or(libc::EIO)));
        }
    }
}

impl Sink for State {
    fn complete(&self, _: &Core, _: Handle, event: Event, _: bool) {
        match event {
            Event::ReadAt(result, buffer, offset) => {
                let request = Request::Read { offset, address: buffer.as_ptr().addr() };
                self.end(request, result.map(|_| Buffer::Owned(buffer)));
            }
            Event::WriteAt(result, buffer, offset) => {
                self.end(Request::Write { offset }, result.map(|_| buffer));
            }
            Event::Sync(result) => self.end(Request::Sync, result.map(|()| Buffer::Static(&[]))),
            _ => {}
        }
    }
}

/// Waits for the completion of an operation.
struct InFlight {
    state: Rc<State>,
    operation: Rc<Operation>,
}

impl Future for InFlight {
    type Output = io::Result<Buffer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.operation.result.take() {
            return Poll::Ready(result);
        }
        note(Reason::FILE);
        let former = self.operation.waker.replace(Some(context.waker().clone()));
        drop(former);
        Poll::Pending
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.operation.abandoned.set(true);
        self.state.keep_error(&self.operation);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Fails only after the end of the runtime, which has closed the file.
        let cookie = self.with(|channel, handle| Ok(channel.close(handle)?));
        drop(cookie);
    }
}

impl fmt::Debug for File {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("File").field("position", &self.position).finish_non_exhaustive()
    }
}
