//! The runtime traits of quinn 0.11 (QUIC), by the feature `quinn`.
//!
//! - [`endpoint`]: an endpoint on a [`UdpSocket`], with segmentation and receive offload, ECN, and
//!   answers from the address to which a client sent.
//! - [`QuicRuntime`]: `quinn::Runtime`, for quinn's own constructors.
//!
//! quinn requires that its objects are `Send` and `Sync`, but a socket belongs to its core. So keep
//! the `Endpoint`, its connections and streams in tasks of the core that created them. A method
//! that reaches the socket fails on another thread; a socket that is dropped there is closed by its
//! core.
//!
//! One copy is made of each datagram in each direction: quinn keeps its own buffers.

use crate::core::Remote;
use crate::net::{Datagram, Place, UdpSocket};
use crate::spawn::spawn_local;
use crate::time::{Sleep, sleep_until};
use ::quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use ::quinn::{AsyncTimer, AsyncUdpSocket, UdpPoller};
use megapipe::{Ecn, Message, PacketInfo};
use send_wrapper::SendWrapper;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Runs quinn's tasks and timers on the calling core.
///
/// Pass it to quinn's `Endpoint::new`, or use [`endpoint`].
#[derive(Clone, Copy, Debug, Default)]
pub struct QuicRuntime;

/// Creates a QUIC endpoint of the calling core on a socket, with a configuration for incoming
/// connections if it is a server.
///
/// It enables ECN, receive offload and packet information on the socket, and forbids fragmentation,
/// which the discovery of the path's MTU needs. A server on all cores calls it once on each, with
/// sockets of one [`BoundUdp`](crate::BoundUdp).
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn endpoint(
    socket: UdpSocket,
    config: ::quinn::EndpointConfig,
    server: Option<::quinn::ServerConfig>,
) -> io::Result<::quinn::Endpoint> {
    let socket = Arc::new(QuicSocket::new(socket)?);
    ::quinn::Endpoint::new_with_abstract_socket(config, server, socket, Arc::new(QuicRuntime))
}

impl ::quinn::Runtime for QuicRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(sleep_until(at)))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(spawn_local(future));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(QuicSocket::new(UdpSocket::from_std(socket)?)?))
    }
}

#[derive(Debug)]
struct Timer(Sleep);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.0.reset(at);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// A socket that quinn may move to other threads, where all calls fail.
struct QuicSocket {
    local: LocalOnly,
    /// The core of the socket.
    core: Arc<Remote>,
    /// Whether datagrams may be fragmented on their way.
    may_fragment: bool,
}

struct Local {
    socket: UdpSocket,
    /// The place of the endpoint's task among the readers.
    reader: RefCell<Place>,
    /// Whether the channel was full when quinn last sent.
    full: Cell<bool>,
}

/// What only one thread uses and drops; always present until it is dropped.
struct LocalOnly(Option<SendWrapper<Local>>);

impl LocalOnly {
    fn get(&self) -> Option<&Local> {
        self.0.as_ref().filter(|local| local.valid()).map(|local| &**local)
    }
}

impl Drop for LocalOnly {
    fn drop(&mut self) {
        let local = self.0.take();
        if local.as_ref().is_some_and(|local| !local.valid()) {
            tracing::warn!("a QUIC socket was dropped after its core had ended: it stays open");
            std::mem::forget(local);
        }
    }
}

impl QuicSocket {
    fn new(socket: UdpSocket) -> io::Result<QuicSocket> {
        socket.enable_ecn()?;
        socket.enable_gro()?;
        socket.enable_packet_info()?;
        let set = |level, name, value: libc::c_int| {
            socket.set_socket_option(level, name, &value.to_ne_bytes())
        };
        // An IPv6 socket may send to IPv4 addresses, too. An IPv4 socket refuses the other option.
        let four = set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        let six = set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
        let may_fragment = match socket.local_addr()? {
            SocketAddr::V4(_) => four.is_err(),
            SocketAddr::V6(_) => four.is_err() || six.is_err(),
        };
        let core = Arc::clone(&socket.core().remote);
        let local = Local { socket, reader: RefCell::default(), full: Cell::new(false) };
        let local = LocalOnly(Some(SendWrapper::new(local)));
        Ok(QuicSocket { local, core, may_fragment })
    }

    /// Returns the socket; fails on another thread than the socket's.
    fn local(&self) -> io::Result<&Local> {
        self.local.get().ok_or_else(|| {
            io::Error::other(
                "a QUIC endpoint was used on another thread than that of its core: keep the \
                 endpoint, its connections and streams in tasks of the core that created it",
            )
        })
    }
}

impl Drop for QuicSocket {
    fn drop(&mut self) {
        if self.local.get().is_none() {
            let local = LocalOnly(self.local.0.take());
            self.core.run(move |_| drop(local));
        }
    }
}

impl fmt::Debug for QuicSocket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("QuicSocket").finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, place: Place::default() })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let local = self.local()?;
        if !local.socket.state().has_room() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = local.socket.core().spare.take();
        bytes.extend_from_slice(transmit.contents);
        match local.socket.try_send_message(message_of(bytes, transmit)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                local.full.set(true);
                Err(error)
            }
            result => result,
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let local = self.local()?;
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            // Only the first one waits.
            let found = match count {
                0 => local.poll_recv(context),
                _ => local
                    .socket
                    .state()
                    .take_datagram()
                    .map_or(Poll::Pending, |it| Poll::Ready(Ok(it))),
            };
            match found {
                Poll::Ready(Ok(datagram)) => *meta = copy_into(buffer, &datagram),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if count == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local()?.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        match self.local() {
            Ok(local) if !local.socket.state().refuses_segments() => Message::SEGMENTS_MAX,
            _ => 1,
        }
    }

    fn max_receive_segments(&self) -> usize {
        Message::SEGMENTS_MAX
    }

    fn may_fragment(&self) -> bool {
        self.may_fragment
    }
}

impl Local {
    /// Waits for a datagram. Errors of the network concern one connection, which will notice, and
    /// would end quinn's endpoint.
    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        loop {
            let found = self.socket.poll_recv(context, &mut self.reader.borrow_mut());
            match found {
                Poll::Ready(Err(error)) if is_of_network(&error) => {}
                found => return found,
            }
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.socket.state().readers.forget(self.reader.get_mut());
    }
}

/// Returns whether an error is about an earlier datagram and not about the socket.
fn is_of_network(error: &io::Error) -> bool {
    let errnos = [
        libc::ECONNREFUSED,
        libc::ECONNRESET,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::EMSGSIZE,
        libc::EPERM,
        libc::EPROTO,
    ];
    error.raw_os_error().is_some_and(|errno| errnos.contains(&errno))
}

/// Makes a message of a copy of the contents.
fn message_of(bytes: Vec<u8>, transmit: &Transmit<'_>) -> Message {
    let length = bytes.len();
    let mut message = Message::new(bytes).to(transmit.destination);
    if let Some(ecn) = transmit.ecn {
        message = message.with_ecn(match ecn {
            EcnCodepoint::Ect0 => Ecn::Ect0,
            EcnCodepoint::Ect1 => Ecn::Ect1,
            EcnCodepoint::Ce => Ecn::Ce,
        });
    }
    if let Some(size) = transmit.segment_size
        && size < length
        && let Ok(size) = u16::try_from(size)
    {
        message = message.with_segment_size(size);
    }
    match transmit.src_ip {
        Some(local) => message.with_packet_info(PacketInfo { local, interface: 0 }),
        None => message,
    }
}

/// Copies a datagram, as much as there is room for, and describes it.
fn copy_into(buffer: &mut [u8], datagram: &Datagram) -> RecvMeta {
    let count = datagram.len().min(buffer.len());
    buffer[..count].copy_from_slice(&datagram[..count]);
    RecvMeta {
        addr: datagram.address(),
        len: count,
        stride: datagram.segment_size().map_or(count, usize::from),
        ecn: datagram.ecn().and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
        dst_ip: datagram.packet_info().map(|info| info.local),
    }
}

/// Waits until one connection can send.
struct Poller {
    socket: Arc<QuicSocket>,
    place: Place,
}

impl fmt::Debug for Poller {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Poller").finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Poller { socket, place } = &mut *self;
        let local = socket.local()?;
        if local.full.take() {
            // The channel is full until it has dispatched completions.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        local.socket.poll_room(context, place).map(Ok)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Some(local) = self.socket.local.get() {
            local.socket.state().writers.forget(&mut self.place);
        }
    }
}
