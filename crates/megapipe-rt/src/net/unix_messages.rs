//! Messages with descriptors over UNIX streams.

use super::connection::Connection;
use super::family::Unix;
use super::state::Incoming;
use super::stream::Stream;
use crate::record::{Reason, note};
use megapipe::Message;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

impl Stream<Unix> {
    /// Submits a message, which may have descriptors, to be sent after what was written before.
    /// Bytes and descriptors arrive together; the stream itself has no message boundaries.
    ///
    /// Waits, is dropped and fails later as [`write`](Stream::write) does. Fails at once, among
    /// others, with more than 253 descriptors, or without a byte, see
    /// [`megapipe::Channel::send_message`]. The descriptors are closed here when they are sent.
    ///
    /// ```
    /// use megapipe_rt::{Message, Runtime, UnixStream};
    /// use std::{fs::File, io::Read};
    /// Runtime::builder().cores(1).build()?.block_on(async {
    ///     let (mut left, mut right) = UnixStream::pair()?;
    ///     let file = File::open("/etc/passwd")?;
    ///     left.send_message(Message::new("a file").with_descriptor(file)).await?;
    ///     let mut message = right.receive_message(64, 1).await?.expect("the message");
    ///     assert_eq!(message.bytes(), b"a file");
    ///     let mut file = File::from(message.take_descriptors().remove(0));
    ///     let mut beginning = [0; 5];
    ///     file.read_exact(&mut beginning)?;
    ///     assert_eq!(&beginning, b"root:");
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn send_message(&mut self, message: Message) -> io::Result<()> {
        let mut message = Some(message);
        poll_fn(|context| self.connection.poll_send_message(context, &mut message)).await
    }

    /// Waits for up to `bytes` bytes, which came with the same descriptors, and receives up to
    /// `descriptors` of these; `None` is the end of the stream.
    ///
    /// Use it before the first [`read`](Stream::read), which receives ahead and loses descriptors;
    /// afterwards it fails. If the future is dropped, the next call returns what that call
    /// received, with that call's limits; until then, a read fails. More descriptors than there is
    /// room for are lost, and the error says so ([`megapipe::DescriptorsLost`]).
    pub async fn receive_message(
        &mut self,
        bytes: usize,
        descriptors: usize,
    ) -> io::Result<Option<Message>> {
        poll_fn(|context| self.connection.poll_receive_message(context, bytes, descriptors)).await
    }
}

impl Connection {
    /// Submits a message once there is room for it, and then leaves `None`.
    fn poll_send_message(
        &self,
        context: &Context<'_>,
        message: &mut Option<Message>,
    ) -> Poll<io::Result<()>> {
        self.state.check_not_ended()?;
        ready!(self.poll_room(context))?;
        ready!(self.poll_gathered(context))?;
        let Some(whole) = message.take() else { return Poll::Ready(Ok(())) };
        let count = whole.bytes().len();
        let submitted =
            self.with_refused(message, |channel, handle| channel.send_message(handle, whole));
        self.poll_submitted(context, submitted, count)
    }

    /// Waits for a message; submits its receive if there is none in flight.
    fn poll_receive_message(
        &self,
        context: &Context<'_>,
        bytes: usize,
        descriptors: usize,
    ) -> Poll<io::Result<Option<Message>>> {
        match self.state.incoming.replace(Incoming::None) {
            Incoming::Arrived(result) => {
                let message =
                    result.map(|message| (!message.bytes().is_empty()).then_some(message));
                return Poll::Ready(message);
            }
            Incoming::Pending => self.state.incoming.set(Incoming::Pending),
            Incoming::None => {
                self.state.check_unread()?;
                let room = Message::with_capacity(bytes).room_for_descriptors(descriptors);
                match self.with(|channel, handle| Ok(channel.receive_message(handle, room)?)) {
                    Ok(()) => self.state.incoming.set(Incoming::Pending),
                    // The channel is full until it has dispatched completions.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        }
        note(Reason::READ);
        self.state.reader.wait(context);
        Poll::Pending
    }
}
