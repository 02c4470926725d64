//! Runs the same programs over two kinds of sockets: the kernel's and ours.

use crate::site::once_free;
use mtcp::{Context, Descriptor, EpollControl, EpollEvent, Events, Family};
use rustix::event::epoll;
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Most events that are taken at once.
const EVENTS: usize = 256;
const BACKLOG: u32 = 16_384;

/// Non-blocking sockets, by numbers, and a way to wait for all of them.
pub(crate) trait Sockets {
    fn listen(&mut self, at: SocketAddr) -> io::Result<u32>;
    fn accept(&mut self, listener: u32) -> io::Result<u32>;
    fn connect(&mut self, to: SocketAddr) -> io::Result<u32>;
    fn read(&mut self, socket: u32, room: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, socket: u32, data: &[u8]) -> io::Result<usize>;
    fn end(&mut self, socket: u32) -> io::Result<()>;
    /// Sets whether to wait for writability too; readability is always waited for.
    fn watch(&mut self, socket: u32, writing: bool) -> io::Result<()>;
    fn close(&mut self, socket: u32) -> io::Result<()>;
    /// The sockets that are ready; none when the time is over.
    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<u32>>;
}

/// Sockets of the kernel, in the network namespace of the thread that creates them.
pub(crate) struct KernelSockets {
    epoll: OwnedFd,
    sockets: HashMap<u32, Socket>,
    /// Bytes of the receive buffer, if not the kernel's default.
    pub(crate) receive_buffer_bytes: Option<usize>,
    /// The congestion control.
    pub(crate) congestion: &'static str,
    /// The local address of connections.
    pub(crate) local: Option<SocketAddr>,
}

impl KernelSockets {
    pub(crate) fn new() -> KernelSockets {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        KernelSockets {
            epoll,
            sockets: HashMap::new(),
            receive_buffer_bytes: None,
            congestion: "reno",
            local: None,
        }
    }

    fn add(&mut self, socket: Socket, flags: epoll::EventFlags) -> io::Result<u32> {
        socket.set_nonblocking(true)?;
        let number = socket.as_raw_fd() as u32;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number.into()), flags)?;
        self.sockets.insert(number, socket);
        Ok(number)
    }

    fn make(&self, address: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_tcp_congestion(self.congestion.as_bytes())?;
        if let Some(bytes) = self.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        Ok(socket)
    }

    fn get(&self, socket: u32) -> io::Result<&Socket> {
        self.sockets.get(&socket).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl Sockets for KernelSockets {
    fn listen(&mut self, at: SocketAddr) -> io::Result<u32> {
        let socket = once_free(|| {
            let socket = self.make(at)?;
            socket.set_reuse_address(true)?;
            socket.bind(&at.into())?;
            socket.listen(BACKLOG as i32)?;
            Ok::<_, io::Error>(socket)
        })?;
        self.add(socket, epoll::EventFlags::IN)
    }

    fn accept(&mut self, listener: u32) -> io::Result<u32> {
        let (socket, _) = self.get(listener)?.accept()?;
        self.add(socket, epoll::EventFlags::IN)
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<u32> {
        let socket = self.make(to)?;
        if let Some(local) = self.local {
            socket.bind(&local.into())?;
        }
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => self.add(socket, epoll::EventFlags::IN | epoll::EventFlags::OUT),
        }
    }

    fn read(&mut self, socket: u32, room: &mut [u8]) -> io::Result<usize> {
        self.get(socket)?.read(room)
    }

    fn write(&mut self, socket: u32, data: &[u8]) -> io::Result<usize> {
        self.get(socket)?.write(data)
    }

    fn end(&mut self, socket: u32) -> io::Result<()> {
        self.get(socket)?.shutdown(Shutdown::Write)
    }

    fn watch(&mut self, socket: u32, writing: bool) -> io::Result<()> {
        let out = if writing { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(socket.into());
        Ok(epoll::modify(&self.epoll, self.get(socket)?, data, epoll::EventFlags::IN | out)?)
    }

    fn close(&mut self, socket: u32) -> io::Result<()> {
        self.sockets.remove(&socket);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<u32>> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, room, Some(&timeout)) {
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => {}
        }
        Ok(events.iter().map(|event| event.data.u64() as u32).collect())
    }
}

/// Sockets of our stack.
pub(crate) struct OurSockets {
    pub(crate) context: Context,
    epoll: Descriptor,
}

impl OurSockets {
    pub(crate) fn new(mut context: Context) -> OurSockets {
        let epoll = context.epoll_create().expect("an epoll");
        OurSockets { context, epoll }
    }

    fn add(&mut self, socket: Descriptor, events: Events) -> io::Result<()> {
        self.context.set_nonblocking(socket, true)?;
        let control = EpollControl::Add(EpollEvent::of(socket, events));
        self.context.epoll_ctl(self.epoll, socket, control)
    }
}

impl Sockets for OurSockets {
    fn listen(&mut self, at: SocketAddr) -> io::Result<u32> {
        let socket = self.context.socket(family(at))?;
        self.context.bind(socket, at)?;
        self.context.listen(socket, BACKLOG)?;
        self.add(socket, Events::IN)?;
        Ok(socket.0)
    }

    fn accept(&mut self, listener: u32) -> io::Result<u32> {
        let socket = self.context.accept(Descriptor(listener))?;
        self.add(socket, Events::IN)?;
        Ok(socket.0)
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<u32> {
        let socket = self.context.socket(family(to))?;
        self.add(socket, Events::IN | Events::OUT)?;
        match self.context.connect(socket, to) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                self.context.close(socket)?;
                Err(error)
            }
            _ => Ok(socket.0),
        }
    }

    fn read(&mut self, socket: u32, room: &mut [u8]) -> io::Result<usize> {
        self.context.read(Descriptor(socket), room)
    }

    fn write(&mut self, socket: u32, data: &[u8]) -> io::Result<usize> {
        self.context.write(Descriptor(socket), data)
    }

    fn end(&mut self, socket: u32) -> io::Result<()> {
        self.context.shutdown(Descriptor(socket), Shutdown::Write)
    }

    fn watch(&mut self, socket: u32, writing: bool) -> io::Result<()> {
        let socket = Descriptor(socket);
        let events = if writing { Events::IN | Events::OUT } else { Events::IN };
        let control = EpollControl::Modify(EpollEvent::of(socket, events));
        self.context.epoll_ctl(self.epoll, socket, control)
    }

    fn close(&mut self, socket: u32) -> io::Result<()> {
        self.context.close(Descriptor(socket))
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<u32>> {
        let mut events = [EpollEvent::default(); EVENTS];
        let count = self.context.epoll_wait(self.epoll, &mut events, Some(timeout))?;
        Ok(events[..count].iter().map(|event| event.descriptor().0).collect())
    }
}

fn family(address: SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}
