//! Makes both ends of a link: the channel's and the peer's.

use crate::model::{Inbound, Outbound, Sent};
use crate::script::LinkKind;
use crate::semantics::State;
use crate::target::TestAddresses;
use fuzzkit::{mix, pattern};
use megapipe::{Address, Source, Timer, Waker, wake_pair};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pty::OpenptFlags;
use rustix::termios::OptionalActions;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Initial bytes of a file.
pub(crate) const FILE_BYTES: usize = 64 << 10;
/// Socket buffers of the channel's end, small enough that writes of a script fill them.
pub(crate) const SOCKET_BUFFER_BYTES: usize = 32 << 10;
/// The kernel's default size.
const PEER_BUFFER_BYTES: usize = 64 << 10;

/// A client of a listener.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) got: Vec<u8>,
    /// How its reading has ended: 0 or an error.
    pub(crate) end: Option<Result<u64, i32>>,
    /// Whether its connection was accepted with its address.
    pub(crate) is_named: bool,
}

/// The peer's part of a link, and what is known of it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) kind: LinkKind,
    pub(crate) state: State,
    /// The addresses of its TCP connections.
    pub(crate) addresses: TestAddresses,
    /// The peer's end; `None` after it is closed, or if it has none.
    pub(crate) peer: Option<OwnedFd>,
    /// How the peer's reading has ended: 0 or an error.
    pub(crate) peer_end: Option<Result<u64, i32>>,
    /// The address to which a channel's socket connects, and the socket that listens there.
    pub(crate) target: Option<(Address, Option<TcpListener>)>,
    /// An address that is bound, but at which no socket listens.
    pub(crate) unheard: Option<(Address, Socket)>,
    pub(crate) waker: Option<Waker>,
    pub(crate) wakes: u64,
    pub(crate) clients: Vec<Client>,
    /// Whether the channel has made the connection with a socket of its own.
    pub(crate) is_begun: bool,
    /// Whether a duplicate was ever registered.
    pub(crate) shares_file: bool,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    /// The position of a file, while it is known.
    pub(crate) position: Option<u64>,
}

/// Creates a link, and returns what the channel has to register, if it does not connect by itself.
pub(crate) fn make(
    kind: LinkKind,
    addresses: TestAddresses,
    seed: u64,
    number: usize,
) -> io::Result<(Link, Option<Source>)> {
    let stream = mix(seed ^ mix(number as u64 + 1));
    let mut link = Link {
        kind,
        state: State { is_connected: !kind.is_connecting(), ..State::default() },
        addresses,
        peer: None,
        peer_end: None,
        target: None,
        unheard: None,
        waker: None,
        wakes: 0,
        clients: Vec::new(),
        is_begun: false,
        shares_file: false,
        inbound: Inbound { stream, ..Inbound::default() },
        outbound: Outbound { stream: !stream, ..Outbound::default() },
        position: Some(0),
    };
    let source = match kind {
        LinkKind::Outgoing => link.await_connection().map(|()| None)?,
        LinkKind::Tcp if addresses.is_for_stack => Some(link.listen()?),
        _ => Some(link.connect()?),
    };
    if let Some(peer) = &link.peer {
        rustix::io::ioctl_fionbio(peer, true)?;
    }
    Ok((link, source))
}

impl Link {
    fn connect(&mut self) -> io::Result<Source> {
        let (source, peer): (Source, OwnedFd) = match self.kind {
            LinkKind::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let peer = TcpStream::connect(listener.local_addr()?)?;
                let (ours, _) = listener.accept()?;
                peer.set_nodelay(true)?;
                ours.set_nodelay(true)?;
                shrink(&ours)?;
                (ours.into(), peer.into())
            }
            LinkKind::Unix => {
                let (ours, peer) = UnixStream::pair()?;
                shrink(&ours)?;
                (ours.into(), peer.into())
            }
            LinkKind::Seqpacket => {
                let (domain, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
                let (ours, peer) = socketpair(domain, kind, SocketFlags::CLOEXEC, None)?;
                shrink(&ours)?;
                (ours.into(), peer)
            }
            LinkKind::Udp => {
                let (ours, peer) = (udp()?, udp()?);
                ours.connect(peer.local_addr()?)?;
                peer.connect(ours.local_addr()?)?;
                self.target = Some((peer.local_addr()?.into(), None));
                (ours.into(), peer.into())
            }
            LinkKind::UnixDatagram => {
                let (own_name, name) = (unique_name()?, unique_name()?);
                let ours = UnixDatagram::bind_addr(&own_name)?;
                let peer = UnixDatagram::bind_addr(&name)?;
                ours.connect_addr(&name)?;
                peer.connect_addr(&own_name)?;
                let name = name.as_abstract_name().unwrap_or_default().to_vec();
                self.target = Some((Address::Abstract(name), None));
                (ours.into(), peer.into())
            }
            LinkKind::PipeIn => {
                let (reader, writer) = io::pipe()?;
                (OwnedFd::from(reader).into(), writer.into())
            }
            LinkKind::PipeOut => {
                let (reader, writer) = io::pipe()?;
                (OwnedFd::from(writer).into(), reader.into())
            }
            LinkKind::Tty => terminal()?,
            _ => return self.alone(),
        };
        self.peer = Some(peer);
        Ok(source)
    }

    /// Creates the kinds in which the peer has no end of its own at the beginning.
    fn alone(&mut self) -> io::Result<Source> {
        match self.kind {
            LinkKind::Connecting => {
                self.await_connection()?;
                let ours = Socket::new(Domain::IPV4, Type::STREAM, None)?;
                shrink(&ours)?;
                Ok(OwnedFd::from(ours).into())
            }
            LinkKind::TcpListener => self.listen(),
            LinkKind::UnixListener => {
                let name = unique_name()?;
                let listener = UnixListener::bind_addr(&name)?;
                let name = name.as_abstract_name().unwrap_or_default().to_vec();
                self.target = Some((Address::Abstract(name), None));
                Ok(listener.into())
            }
            LinkKind::Timer => Ok(Timer::after(Duration::from_millis(2))?.into()),
            LinkKind::Ticker => Ok(Timer::every(Duration::from_millis(3))?.into()),
            LinkKind::Wake => {
                let (waker, source) = wake_pair()?;
                self.waker = Some(waker);
                Ok(source.into())
            }
            _ => {
                let file = rustix::fs::memfd_create("channelfuzz", MemfdFlags::CLOEXEC)?;
                let contents = pattern::bytes(self.inbound.stream, 0, FILE_BYTES);
                let written = rustix::io::pwrite(&file, &contents, 0)?;
                self.inbound.written = written as u64;
                Ok(file.into())
            }
        }
    }

    /// Creates a listener of the channel, whose connections are like those of `tcp` links.
    fn listen(&mut self) -> io::Result<Source> {
        let listener = TcpListener::bind((self.addresses.bound, 0))?;
        shrink(&listener)?;
        SockRef::from(&listener).set_tcp_nodelay(self.kind == LinkKind::Tcp)?;
        let mut address = listener.local_addr()?;
        address.set_ip(IpAddr::V4(self.addresses.found));
        self.target = Some((address.into(), None));
        Ok(listener.into())
    }

    /// Listens at one address, and reserves another one at which no socket listens.
    fn await_connection(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind((self.addresses.peer, 0))?;
        self.limit_peer(&listener)?;
        listener.set_nonblocking(true)?;
        self.target = Some((listener.local_addr()?.into(), Some(listener)));
        let unheard = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        unheard.bind(&SocketAddr::from((self.addresses.peer, 0)).into())?;
        let address = unheard.local_addr()?.as_socket();
        let address = address.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.unheard = Some((address.into(), unheard));
        Ok(())
    }

    /// Limits the peer's buffers, so that the channel's writes wait for a peer that does not read,
    /// even in namespaces with large buffers.
    fn limit_peer(&self, socket: &impl AsFd) -> io::Result<()> {
        match self.addresses.is_for_stack {
            true => SockRef::from(socket).set_recv_buffer_size(PEER_BUFFER_BYTES),
            false => Ok(()),
        }
    }

    /// Finds the client with this address whose connection has not been accepted with it yet;
    /// returns whether there is one.
    pub(crate) fn name_client(&mut self, address: &Address) -> bool {
        let is_it = |client: &&mut Client| match address {
            Address::Unnamed => self.kind == LinkKind::UnixListener && !client.is_named,
            Address::Inet(address) => {
                let own = SockRef::from(&client.socket).local_addr().ok();
                !client.is_named && own.and_then(|own| own.as_socket()) == Some(*address)
            }
            _ => false,
        };
        self.clients.iter_mut().find(is_it).is_some_and(|client| {
            client.is_named = true;
            true
        })
    }

    /// Connects a new client to a listener.
    pub(crate) fn add_client(&mut self) -> io::Result<()> {
        let Some((address, _)) = &self.target else { return Ok(()) };
        let (domain, name) = match address {
            Address::Inet(address) => (Domain::IPV4, SockAddr::from(*address)),
            Address::Abstract(name) => (Domain::UNIX, abstract_address(name)?),
            _ => return Ok(()),
        };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        if domain == Domain::IPV4 {
            self.limit_peer(&socket)?;
        }
        // A UNIX socket would wait for room in the queue, and a stack that the channel runs answers
        // later.
        let waits = domain == Domain::IPV4 && !self.addresses.is_for_stack;
        socket.set_nonblocking(!waits)?;
        match socket.connect(&name) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            result => result?,
        }
        socket.set_nonblocking(true)?;
        let socket = OwnedFd::from(socket);
        self.clients.push(Client { socket, got: Vec::new(), end: None, is_named: false });
        Ok(())
    }

    /// Records a message of the peer with that many bytes.
    pub(crate) fn sent_message(&mut self, bytes: usize) {
        let sent = Sent { bytes, is_delivered: false, may_be_lost: false };
        self.inbound.messages.push(sent);
    }
}

fn abstract_address(name: &[u8]) -> io::Result<SockAddr> {
    let mut path = vec![0];
    path.extend_from_slice(name);
    let path = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&path);
    SockAddr::unix(path)
}

fn shrink(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_send_buffer_size(SOCKET_BUFFER_BYTES)
}

fn udp() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Returns a name in the abstract name space that is used once, because the kernel may free it
/// late.
fn unique_name() -> io::Result<std::os::unix::net::SocketAddr> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("channelfuzz-{}-{number}", std::process::id());
    std::os::unix::net::SocketAddr::from_abstract_name(name)
}

/// Returns a terminal that passes bytes on unchanged: the slave and the master.
fn terminal() -> io::Result<(Source, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave =
        rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::from_bits_retain(flags.bits()))?;
    let mut settings = rustix::termios::tcgetattr(&slave)?;
    settings.make_raw();
    rustix::termios::tcsetattr(&slave, OptionalActions::Now, &settings)?;
    Ok((slave.into(), master))
}
