//! Copies what one connection receives to another, as the buffers in which it arrived.

use super::connection::Connection;
use super::halves::{ReadHalf, WriteHalf};
use super::received::Received;
use super::stream::Stream;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

/// Copies from a reader to a writer until the end of the stream, and ends the writing direction
/// then ([`WriteHalf::shutdown`]). Returns the number of bytes.
///
/// The bytes stay in the buffers of the channel in which they arrived, if the core has enough of
/// them. The copy reads only while the writer is below its high-water mark, so a slow receiver
/// slows the sender down. It fails with the first error of either. If the future is dropped, every
/// byte that was taken is submitted, and both halves can go on.
pub async fn copy<R, W>(reader: &mut ReadHalf<R>, writer: &mut WriteHalf<W>) -> io::Result<u64> {
    let mut copy = OneWay::new(&reader.connection, &writer.connection);
    poll_fn(|context| copy.poll(context)).await?;
    Ok(copy.bytes)
}

/// Copies both ways between two streams, until both have ended. Returns the numbers of bytes from
/// `left` to `right` and back.
///
/// The end of one direction is passed on at once, while the other goes on (half-close). Otherwise
/// as [`copy`]: it fails with the first error of either stream. This is the main part of a proxy:
///
/// ```
/// use megapipe_rt::{Runtime, TcpListener, TcpStream, UnixStream, copy_bidirectional, spawn_local};
/// Runtime::builder().cores(1).build()?.block_on(async {
///     let mut listener = TcpListener::bind("127.0.0.1:0")?;
///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
///     let mut accepted = listener.accept().await?;
///     let (mut backend, mut server) = UnixStream::pair()?;
///     let proxy =
///         spawn_local(async move { copy_bidirectional(&mut accepted, &mut backend).await });
///     client.write("question").await?;
///     client.shutdown().await?;
///     assert_eq!(&*server.read().await?.expect("the question"), b"question");
///     assert!(server.read().await?.is_none());
///     server.write("answer").await?;
///     drop(server);
///     assert_eq!(&*client.read().await?.expect("the answer"), b"answer");
///     assert_eq!(proxy.await??, (8, 6));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn copy_bidirectional<L, R>(
    left: &mut Stream<L>,
    right: &mut Stream<R>,
) -> io::Result<(u64, u64)> {
    let mut there = OneWay::new(&left.connection, &right.connection);
    let mut back = OneWay::new(&right.connection, &left.connection);
    poll_fn(|context| {
        let polled = (there.poll(context)?, back.poll(context)?);
        if polled == (Poll::Ready(()), Poll::Ready(())) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    })
    .await
    .map(|()| (there.bytes, back.bytes))
}

/// A copy in one direction. Between two polls it holds no bytes, so dropping it loses none.
struct OneWay<'a> {
    from: &'a Connection,
    to: &'a Connection,
    bytes: u64,
    at_end: bool,
}

impl<'a> OneWay<'a> {
    fn new(from: &'a Connection, to: &'a Connection) -> OneWay<'a> {
        OneWay { from, to, bytes: 0, at_end: false }
    }

    /// Copies what there is; ready when the end of the stream has been passed on.
    fn poll(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        while !self.at_end {
            ready!(self.to.poll_room(context))?;
            let Some(received) = ready!(self.from.poll_read(context))? else {
                self.at_end = true;
                break;
            };
            let count = received.len();
            let mut buffer = Some(received.into());
            let written = self.to.poll_write(context, &mut buffer);
            if let Some(refused) = buffer {
                self.from.state.put_back(Received::from_buffer(refused));
            }
            ready!(written)?;
            self.bytes += count as u64;
        }
        self.to.poll_shutdown(context)
    }
}
