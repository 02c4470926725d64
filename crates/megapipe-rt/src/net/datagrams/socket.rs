//! Datagram sockets of one core, whatever their family.

use super::datagram::{Datagram, FamilyAddress};
use super::state::{State, cost_of};
use crate::core::{Core, CoreChannel, Sink};
use crate::net::waiters::{Place, Waiting};
use crate::record::{Reason, note};
use megapipe::{Buffer, Handle, Message, Rejected, Source};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// A datagram socket of the calling core: [`UdpSocket`](crate::UdpSocket) for addresses of the
/// internet, [`UnixDatagram`](crate::UnixDatagram) for UNIX sockets.
///
/// All methods take `&self`: any number of tasks of the core may send and receive at the same time,
/// with the socket in an [`Rc`]. Buffers are owned: [`recv_from`](DatagramSocket::recv_from)
/// returns a buffer of the channel, the sending methods take one.
///
/// # Receiving
///
/// After the first call the socket receives without being asked, up to 256 KiB ahead (each datagram
/// counts 256 bytes more). While more wait for a task, datagrams stay in the kernel's queue, and
/// what does not fit there (`SO_RCVBUF`) is lost; a sender to a UNIX socket waits instead. A
/// datagram is received whole unless it is longer than a buffer of
/// [`Config::large_buffers`](megapipe::Config::large_buffers); by default none of UDP is.
///
/// # Sending
///
/// A sending method waits only while more than the high-water mark of output
/// ([`set_high_water`](DatagramSocket::set_high_water)) is not sent yet. It fails for what the
/// channel refuses; what the kernel refuses later, for example with `ECONNREFUSED` or `EMSGSIZE`,
/// is an error of [`flush`](DatagramSocket::flush) or [`take_error`](DatagramSocket::take_error).
/// Datagrams leave in the order of the calls.
///
/// # Cancellation
///
/// All futures may be dropped at any time: what arrived waits for the next call, and a datagram is
/// submitted or not. Dropping the socket sends what was submitted and closes it; what arrived is
/// lost.
pub struct DatagramSocket<A: FamilyAddress> {
    core: Rc<Core>,
    handle: Handle,
    state: Rc<State<A>>,
}

impl<A: FamilyAddress> DatagramSocket<A> {
    pub(super) fn register(
        core: Rc<Core>,
        socket: impl Into<Source>,
    ) -> io::Result<DatagramSocket<A>> {
        let state = Rc::<State<A>>::default();
        let sink = Rc::clone(&state) as Rc<dyn Sink>;
        let handle = core.with_channel(|channel| Ok(channel.register(socket, sink)?))?;
        Ok(DatagramSocket { core, handle, state })
    }

    /// Waits for a datagram.
    ///
    /// An error, such as `ECONNREFUSED` on a connected socket whose peer does not listen, concerns
    /// an earlier datagram: call again.
    pub async fn recv_from(&self) -> io::Result<Datagram<A>> {
        let mut waiting = Waiting::new(&self.state.readers);
        poll_fn(|context| self.poll_recv(context, &mut waiting.place)).await
    }

    /// Waits for a datagram, and appends it and those that have arrived with it, at most `max`, to
    /// `into`. Returns their number, which is at least 1 unless `max` is 0. If an error is among
    /// them, it ends the call, or is left for the next one.
    pub async fn recv_many(&self, into: &mut Vec<Datagram<A>>, max: usize) -> io::Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        into.push(self.recv_from().await?);
        let mut count = 1;
        while count < max
            && let Some(datagram) = self.state.take_datagram()
        {
            into.push(datagram);
            count += 1;
        }
        Ok(count)
    }

    /// Returns a datagram that has arrived already; does not wait. It makes the socket receive, so
    /// call it again later.
    pub fn try_recv_from(&self) -> io::Result<Option<Datagram<A>>> {
        match self.state.take_input() {
            Some(found) => found.map(Some),
            None => match self.start_receiving() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                _ => Ok(None),
            },
        }
    }

    /// Waits until a datagram has arrived, or an error, and leaves it for the next call.
    pub async fn readable(&self) -> io::Result<()> {
        let mut waiting = Waiting::new(&self.state.readers);
        poll_fn(|context| {
            if self.state.has_input() {
                return Poll::Ready(Ok(()));
            }
            self.await_input(context, &mut waiting.place).map(Err)
        })
        .await
    }

    pub(crate) fn poll_recv(
        &self,
        context: &Context<'_>,
        place: &mut Place,
    ) -> Poll<io::Result<Datagram<A>>> {
        if let Some(found) = self.state.take_input() {
            return Poll::Ready(found);
        }
        self.await_input(context, place).map(Err)
    }

    /// Waits for input; ready only with the error of the receive that it starts.
    fn await_input(&self, context: &Context<'_>, place: &mut Place) -> Poll<io::Error> {
        note(Reason::READ);
        self.state.readers.wait(place, context);
        match self.start_receiving() {
            Ok(()) => {}
            // The channel is full until it has dispatched completions.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                context.waker().wake_by_ref();
            }
            Err(error) => return Poll::Ready(error),
        }
        Poll::Pending
    }

    /// Ensures that a receive is in flight.
    fn start_receiving(&self) -> io::Result<()> {
        self.core.with_channel(|channel| self.state.start_receiving(channel, self.handle))
    }

    /// Submits a datagram to the address to which the socket is connected.
    pub async fn send(&self, buffer: impl Into<Buffer>) -> io::Result<()> {
        let buffer = buffer.into();
        let bytes = buffer.len();
        self.submit(buffer, bytes, |channel, handle, buffer| channel.write(handle, buffer)).await
    }

    /// Submits a message: a datagram with an ECN mark or from a given address of this host, or
    /// several datagrams of one size; see [`megapipe::Message`] and [`Datagram::reply`].
    pub async fn send_message(&self, message: Message) -> io::Result<()> {
        let bytes = message.bytes().len();
        self.submit(message, bytes, |channel, handle, message| {
            channel.send_message(handle, message)
        })
        .await
    }

    pub(super) async fn submit<B>(
        &self,
        buffer: B,
        bytes: usize,
        mut submit: impl FnMut(&mut CoreChannel, Handle, B) -> Result<(), Rejected<B>>,
    ) -> io::Result<()> {
        let mut waiting = Waiting::new(&self.state.writers);
        let mut buffer = Some(buffer);
        poll_fn(|context| {
            ready!(self.poll_room(context, &mut waiting.place));
            self.poll_submit(context, &mut waiting.place, &mut buffer, bytes, &mut submit)
        })
        .await
    }

    /// Waits until less than the high-water mark of output waits.
    pub(crate) fn poll_room(&self, context: &Context<'_>, place: &mut Place) -> Poll<()> {
        if self.state.has_room() {
            return Poll::Ready(());
        }
        note(Reason::WRITE);
        self.state.writers.wait(place, context);
        Poll::Pending
    }

    /// Submits what is in `buffer` by `submit`, and then leaves `None`.
    fn poll_submit<B>(
        &self,
        context: &Context<'_>,
        place: &mut Place,
        buffer: &mut Option<B>,
        bytes: usize,
        submit: impl FnOnce(&mut CoreChannel, Handle, B) -> Result<(), Rejected<B>>,
    ) -> Poll<io::Result<()>> {
        let Some(submitted) = buffer.take() else { return Poll::Ready(Ok(())) };
        match self.try_submit(submitted, bytes, submit) {
            // The channel is full: this socket's output or other completions make room.
            Err((error, refused)) if error.kind() == io::ErrorKind::WouldBlock => {
                *buffer = refused;
                if self.state.expect_room() {
                    note(Reason::WRITE);
                    self.state.writers.wait(place, context);
                } else {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
            result => Poll::Ready(result.map_err(|(error, _)| error)),
        }
    }

    /// Submits a buffer by `submit`; returns it with the error if the channel refuses it.
    fn try_submit<B>(
        &self,
        buffer: B,
        bytes: usize,
        submit: impl FnOnce(&mut CoreChannel, Handle, B) -> Result<(), Rejected<B>>,
    ) -> Result<(), (io::Error, Option<B>)> {
        let mut refused = None;
        let result = self.core.with_channel(|channel| {
            submit(channel, self.handle, buffer).map_err(|rejected| {
                refused = Some(rejected.buffer);
                rejected.error.into()
            })
        });
        match result {
            Ok(()) => {
                self.state.add_output(cost_of(bytes));
                Ok(())
            }
            Err(error) => Err((error, refused)),
        }
    }

    /// Submits a message, whatever the high-water mark is. Fails with `WouldBlock` if the channel
    /// is full.
    #[cfg(feature = "quinn")]
    pub(crate) fn try_send_message(&self, message: Message) -> io::Result<()> {
        let bytes = message.bytes().len();
        let submitted = self.try_submit(message, bytes, |channel, handle, message| {
            channel.send_message(handle, message)
        });
        submitted.map_err(|(error, _)| error)
    }

    /// Waits until the kernel has taken or refused all datagrams that were submitted. Fails with
    /// the first refusal since the last call, as [`take_error`](DatagramSocket::take_error) does.
    pub async fn flush(&self) -> io::Result<()> {
        let mut waiting = Waiting::new(&self.state.flushers);
        poll_fn(|context| {
            if self.state.output_bytes() == 0 {
                return Poll::Ready(());
            }
            note(Reason::WRITE);
            self.state.flushers.wait(&mut waiting.place, context);
            Poll::Pending
        })
        .await;
        self.take_error().map_or(Ok(()), Err)
    }

    /// Takes the error of the first datagram that the kernel refused to send since the last call.
    pub fn take_error(&self) -> Option<io::Error> {
        self.state.take_error()
    }

    /// Sets the high-water mark in bytes: while so much output is not sent yet, a sender waits,
    /// until half of it is. Each datagram counts 256 bytes more. Default: 256 KiB.
    pub fn set_high_water(&self, bytes: usize) {
        self.state.set_high_water(bytes);
    }

    /// Returns the number of bytes that were submitted and are not sent yet, with 256 more for each
    /// datagram.
    pub fn queued_bytes(&self) -> usize {
        self.state.output_bytes()
    }

    /// Sets an option, and lets it hold for the receive in flight.
    pub(super) fn enable(
        &self,
        option: impl FnOnce(&mut CoreChannel, Handle) -> megapipe::Result<()>,
    ) -> io::Result<()> {
        self.core.with_channel(|channel| {
            option(channel, self.handle)?;
            self.state.stop_receiving(channel, self.handle);
            Ok(())
        })
    }

    /// Sets any option of the socket, see setsockopt(2).
    pub fn set_socket_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        self.core.with_channel(|channel| {
            Ok(channel.set_socket_option(self.handle, level, name, value)?)
        })
    }

    /// Reads an option, see getsockopt(2); returns the length of the value.
    pub fn socket_option(&self, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
        self.core
            .with_channel(|channel| Ok(channel.socket_option(self.handle, level, name, value)?))
    }

    /// Returns a duplicate of the socket, for calls that do not wait.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.core.with_channel(|channel| Ok(channel.descriptor(self.handle)?))
    }

    #[cfg(feature = "quinn")]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    #[cfg(feature = "quinn")]
    pub(crate) fn state(&self) -> &State<A> {
        &self.state
    }
}

impl<A: FamilyAddress> Drop for DatagramSocket<A> {
    fn drop(&mut self) {
        // Fails only after the end of the runtime, which has closed the socket.
        let cookie = self.core.with_channel(|channel| Ok(channel.close(self.handle)?));
        // The channel is not borrowed any more: the state's wakers are foreign code.
        drop(cookie);
    }
}

impl<A: FamilyAddress> fmt::Debug for DatagramSocket<A> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.queued_bytes();
        out.debug_struct("DatagramSocket").field("queued_bytes", &queued).finish_non_exhaustive()
    }
}
