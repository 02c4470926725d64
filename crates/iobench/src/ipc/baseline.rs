//! The kernel's pipes and sockets by plain calls, as a short C program uses them: the baselines of
//! `iobench ipc`.
//!
//! Each message is one read and one write, if the kernel takes it whole. Nothing is buffered, and
//! no wait has a time limit, because arming a timer would add to what is measured:
//! [`ipcload::interrupt_calls_when_stopping`] ends the waits instead.
//!
//! The epoll ends use non-blocking descriptors and edge-triggered events. Level-triggered events
//! took 1 to 2.5 % longer per round trip (64 bytes, one CPU, Linux 6.18), since the kernel polls
//! the descriptor again in the next `epoll_wait`.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ipcload::{End, Error, Invitation, Load, Pattern, Result, is_stopping};
use rustix::io::Errno;

use crate::sys::epoll::Epoll;

/// Capacity of a pipe, in messages. With room for one, the throughput of 64 KiB messages is a fifth
/// lower; with 1 MiB, that of 64-byte messages falls to a third (one CPU, Linux 6.18).
const PIPE_MESSAGES: usize = 16;
/// The default size of a pipe, and the largest that needs no privilege.
const PIPE_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 20;
/// Most connections of other programs to the TCP path's listener that are dropped.
const STRANGERS_MAX: usize = 64;

/// A transport of the kernel, and whether its ends block or use epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Baseline {
    path: Path,
    wait: Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// TCP over the loopback device with `TCP_NODELAY`.
    Tcp,
    /// A pair of UNIX stream sockets.
    Unix,
    /// A pipe in each direction.
    Pipe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Blocks in `read` and `write`.
    Blocking,
    /// Waits in `epoll_wait`.
    Epoll,
}

impl Baseline {
    /// All baselines, grouped by path.
    pub(crate) const ALL: [Baseline; 6] = [
        Baseline { path: Path::Tcp, wait: Wait::Blocking },
        Baseline { path: Path::Tcp, wait: Wait::Epoll },
        Baseline { path: Path::Unix, wait: Wait::Blocking },
        Baseline { path: Path::Unix, wait: Wait::Epoll },
        Baseline { path: Path::Pipe, wait: Wait::Blocking },
        Baseline { path: Path::Pipe, wait: Wait::Epoll },
    ];

    pub(crate) fn name(self) -> &'static str {
        match (self.path, self.wait) {
            (Path::Tcp, Wait::Blocking) => "tcp-blocking",
            (Path::Tcp, Wait::Epoll) => "tcp-epoll",
            (Path::Unix, Wait::Blocking) => "unix-blocking",
            (Path::Unix, Wait::Epoll) => "unix-epoll",
            (Path::Pipe, Wait::Blocking) => "pipe-blocking",
            (Path::Pipe, Wait::Epoll) => "pipe-epoll",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Baseline> {
        Baseline::ALL.into_iter().find(|baseline| baseline.name() == name)
    }
}

/// Input and output of one end.
pub(super) type Ends = [OwnedFd; 2];

/// Both ends of a path.
fn connect(path: Path, message_bytes: usize) -> Result<(Ends, Ends)> {
    let ends = match path {
        Path::Tcp => tcp_pair().and_then(|(own, peer)| Ok((twice(own)?, twice(peer)?))),
        Path::Unix => UnixStream::pair().and_then(|(own, peer)| Ok((twice(own)?, twice(peer)?))),
        Path::Pipe => pipe_pair(message_bytes),
    };
    ends.map_err(|error| failed("connect two ends", error))
}

/// Input and output of a socket, which carries both directions.
fn twice(socket: impl Into<OwnedFd>) -> io::Result<Ends> {
    let socket = socket.into();
    Ok([socket.try_clone()?, socket])
}

fn pipe_pair(message_bytes: usize) -> io::Result<(Ends, Ends)> {
    let (least, most) = (*PIPE_BYTES.start(), *PIPE_BYTES.end());
    let room = (PIPE_MESSAGES * message_bytes).clamp(least, most);
    let (own, peer) = pipes()?;
    for [_, output] in [&own, &peer] {
        // The kernel may refuse for a user with many pipes; the pipe then keeps its default size.
        let _ = rustix::pipe::fcntl_setpipe_size(output, room);
    }
    Ok((own, peer))
}

/// Makes a pipe in each direction.
pub(super) fn pipes() -> io::Result<(Ends, Ends)> {
    let (own_input, peer_output) = io::pipe()?;
    let (peer_input, own_output) = io::pipe()?;
    let own = [own_input.into(), own_output.into()];
    Ok((own, [peer_input.into(), peer_output.into()]))
}

/// Returns a connection over the loopback device. Other programs of the machine could connect to
/// the listener meanwhile, so the accepted end must have the address of the connected one.
fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let peer = TcpStream::connect(listener.local_addr()?)?;
    let wanted = peer.local_addr()?;
    for _ in 0..STRANGERS_MAX {
        let (own, address) = listener.accept()?;
        if address == wanted {
            own.set_nodelay(true)?;
            peer.set_nodelay(true)?;
            return Ok((own, peer));
        }
    }
    Err(io::Error::other("other programs keep connecting to its listener"))
}

/// One end of a path.
pub(crate) struct BaselineEnd {
    input: OwnedFd,
    output: OwnedFd,
    /// Absent if the calls block.
    events: Option<Events>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

/// What an epoll end waits for.
struct Events {
    readable: Epoll,
    /// Created when the path is full for the first time.
    writable: Option<Epoll>,
    /// Whether a message is always followed by one in the other direction: after a read there is no
    /// further message, so reading again before an event would be useless.
    alternates: bool,
}

impl BaselineEnd {
    /// Creates the path and opens the first end, in the measuring process.
    pub(crate) fn create(baseline: Baseline, load: &Load) -> Result<(BaselineEnd, Invitation)> {
        let (own, peer) = connect(baseline.path, load.bytes())?;
        Ok((BaselineEnd::new(baseline, own, load)?, Invitation::by_numbers(peer.into())))
    }

    /// Opens the second end, from the invitation of the first process.
    pub(crate) fn open(
        baseline: Baseline,
        descriptors: Vec<OwnedFd>,
        load: &Load,
    ) -> Result<BaselineEnd> {
        let own = Ends::try_from(descriptors).map_err(|_| {
            Error::transport("a path comes as two descriptors; report this as a bug")
        })?;
        BaselineEnd::new(baseline, own, load)
    }

    fn new(baseline: Baseline, own: Ends, load: &Load) -> Result<BaselineEnd> {
        ipcload::interrupt_calls_when_stopping()?;
        let [input, output] = own;
        let events = match baseline.wait {
            Wait::Blocking => None,
            Wait::Epoll => Some(Events::of(&input, &output, load.pattern)?),
        };
        let message = || vec![0; load.bytes()];
        Ok(BaselineEnd { input, output, events, incoming: message(), outgoing: message() })
    }
}

impl Events {
    fn of(input: &OwnedFd, output: &OwnedFd, pattern: Pattern) -> Result<Events> {
        for descriptor in [input, output] {
            rustix::io::ioctl_fionbio(descriptor, true)
                .map_err(|errno| failed("make a descriptor non-blocking", errno))?;
        }
        let readable = watch(input, libc::EPOLLIN | libc::EPOLLET)?;
        Ok(Events { readable, writable: None, alternates: pattern == Pattern::PingPong })
    }

    #[inline]
    fn await_input(&self) -> Result<()> {
        await_event(&self.readable)
    }

    #[cold]
    fn await_room(&mut self, output: &OwnedFd) -> Result<()> {
        let writable = match self.writable.take() {
            Some(writable) => writable,
            None => watch(output, libc::EPOLLOUT)?,
        };
        await_event(self.writable.insert(writable))
    }
}

fn watch(descriptor: &OwnedFd, interest: libc::c_int) -> Result<Epoll> {
    let epoll = Epoll::new().map_err(Error::transport)?;
    epoll.add(descriptor.as_raw_fd(), 0, interest).map_err(|error| failed("use epoll", error))?;
    Ok(epoll)
}

#[inline]
fn await_event(epoll: &Epoll) -> Result<()> {
    const WITHOUT_LIMIT: i32 = -1;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }];
    if epoll.wait(&mut events, WITHOUT_LIMIT) == 0 { check_stop() } else { Ok(()) }
}

/// Writes all the bytes. Calls `wait` when the descriptor takes none.
#[inline]
pub(super) fn write_all(
    output: &OwnedFd,
    mut bytes: &[u8],
    mut wait: impl FnMut() -> Result<()>,
) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(output, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => check_stop()?,
            Err(Errno::AGAIN) => wait()?,
            Err(errno) => return Err(broken("write to the path", errno)),
        }
    }
    Ok(())
}

/// Fills the room. Calls `wait` when there are no bytes.
#[inline]
pub(super) fn read_all(
    input: &OwnedFd,
    room: &mut [u8],
    mut wait: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut filled = 0;
    while filled < room.len() {
        filled += read_some(input, &mut room[filled..], &mut wait)?;
    }
    Ok(())
}

/// Reads some bytes. Calls `wait` when there are none.
#[inline]
pub(super) fn read_some(
    input: &OwnedFd,
    room: &mut [u8],
    mut wait: impl FnMut() -> Result<()>,
) -> Result<usize> {
    loop {
        match rustix::io::read(input, &mut *room) {
            Ok(0) => return Err(closed()),
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => check_stop()?,
            Err(Errno::AGAIN) => wait()?,
            Err(errno) => return Err(broken("read from the path", errno)),
        }
    }
}

/// Called after an interrupted call.
#[cold]
pub(super) fn check_stop() -> Result<()> {
    if is_stopping() { Err(Error::Stopped) } else { Ok(()) }
}

#[cold]
pub(super) fn broken(action: &str, errno: Errno) -> Error {
    match errno {
        Errno::PIPE | Errno::CONNRESET => closed(),
        errno => failed(action, errno),
    }
}

#[cold]
fn closed() -> Error {
    Error::transport("the other process closed its end of the path")
}

/// Waits for a descriptor that blocks by itself.
#[cold]
pub(super) fn no_longer_blocking() -> Result<()> {
    Err(Error::transport("a blocking descriptor was made non-blocking; report this as a bug"))
}

pub(super) fn failed(action: &str, cause: impl std::fmt::Display) -> Error {
    Error::transport(format!("cannot {action}: {cause}; raise `ulimit -n`, or report this"))
}

impl End for BaselineEnd {
    #[inline]
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool> {
        let message = &mut self.outgoing[..bytes];
        fill(message);
        write_all(&self.output, message, || match &mut self.events {
            Some(events) => events.await_room(&self.output),
            None => no_longer_blocking(),
        })?;
        Ok(true)
    }

    #[inline]
    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    #[inline]
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool> {
        if let Some(events) = &self.events
            && events.alternates
        {
            events.await_input()?;
        }
        read_all(&self.input, &mut self.incoming, || match &self.events {
            Some(events) => events.await_input(),
            None => no_longer_blocking(),
        })?;
        look(&self.incoming);
        Ok(true)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::thread;

    use clap::Parser;
    use ipcload::{Checker, fill};

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        load: Load,
    }

    pub(crate) fn load(pattern: &str, bytes: usize) -> Load {
        let bytes = bytes.to_string();
        let words = ["", "--cpus", "0,0", "--pattern", pattern, "--message-bytes", &bytes];
        Options::parse_from(words).load
    }

    fn ends(baseline: Baseline, load: &Load) -> (BaselineEnd, BaselineEnd) {
        let (first, invitation) = BaselineEnd::create(baseline, load).unwrap();
        let second = BaselineEnd::open(baseline, invitation.descriptors, load).unwrap();
        (first, second)
    }

    /// Messages that fit into a path, and messages that do not.
    const SIZES: [usize; 4] = [1, 64, 65_536, 5_000_000];

    #[test]
    fn round_trips_carry_messages_of_every_size() {
        for (baseline, bytes) in Baseline::ALL.into_iter().flat_map(|b| SIZES.map(|s| (b, s))) {
            let load = load("ping-pong", bytes);
            let (mut first, mut second) = ends(baseline, &load);
            let mut checkers = [Checker::new(bytes), Checker::new(bytes)];
            let [there, back] = &mut checkers;
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..10 {
                        second.receive(|message| there.check(message)).unwrap();
                        second.send(bytes, |message| fill(message, number)).unwrap();
                    }
                });
                for number in 0..10 {
                    first.send(bytes, |message| fill(message, number)).unwrap();
                    first.receive(|message| back.check(message)).unwrap();
                }
            });
            let faults = checkers.map(|checker| checker.faults());
            assert_eq!(faults, [None, None], "{} {bytes}", baseline.name());
        }
    }

    #[test]
    fn a_writer_that_is_ahead_waits_for_room() {
        for (baseline, bytes) in Baseline::ALL.into_iter().flat_map(|b| SIZES.map(|s| (b, s))) {
            let count = (20_000_000 / bytes as u64).min(20_000);
            let load = load("one-way", bytes);
            let (mut first, mut second) = ends(baseline, &load);
            let mut checker = Checker::new(bytes);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..count {
                        second.send(bytes, |message| fill(message, number)).unwrap();
                    }
                });
                (0..count).for_each(|_| {
                    first.receive(|message| checker.check(message)).unwrap();
                });
            });
            assert_eq!(checker.faults(), None, "{} {bytes}", baseline.name());
        }
    }

    #[test]
    fn an_end_tells_that_the_other_is_gone() {
        for baseline in Baseline::ALL {
            let load = load("ping-pong", 64);
            let (mut first, second) = ends(baseline, &load);
            drop(second);
            let error = first.receive(|_| ()).unwrap_err().to_string();
            assert!(error.contains("closed its end"), "{}: {error}", baseline.name());
            let error = (0..1_000).find_map(|_| first.send(64, |_| ()).err()).unwrap().to_string();
            assert!(error.contains("closed its end"), "{}: {error}", baseline.name());
        }
    }

    #[test]
    fn names_parse_back() {
        for baseline in Baseline::ALL {
            assert_eq!(Baseline::named(baseline.name()), Some(baseline));
        }
    }
}
