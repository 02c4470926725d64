//! Tests of the driver over real sockets, pipes and files.

mod accepts;
mod connects;
mod datagrams;
mod errors;
mod files;
mod limits;
mod pipes;
mod streams;
mod traps;
mod turns;
mod writes;

use super::EpollDriver;
use crate::config::{BufferClass, Config};
use crate::counters::Counters;
use crate::driver::{Driver, NO_OFFSET, Object, Operation, Outcome, Output, Pools};
use crate::pool::{Lease, Pool};
use crate::source::Source;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// A time-out that is reached only if an outcome is lost.
const AMPLE: Duration = Duration::from_secs(60);

/// A driver and its outcomes.
struct Rig {
    driver: EpollDriver,
    pools: Pools,
    came: VecDeque<Outcome>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(Config::default())
    }

    /// Creates a rig with few and short buffers.
    fn tight() -> Rig {
        let small_buffers = BufferClass { count: 2, bytes: 256 };
        let large_buffers = BufferClass { count: 2, bytes: 1024 };
        Rig::with(Config { small_buffers, large_buffers, ..Config::default() })
    }

    fn with(config: Config) -> Rig {
        config.check().unwrap();
        let pools = Pools::new(&config).unwrap();
        let driver = EpollDriver::new(&config, pools.clone()).unwrap();
        Rig { driver, pools, came: VecDeque::new() }
    }

    fn attach(&mut self, source: impl Into<Source>) -> Object {
        let source = source.into();
        let kind = source.kind().unwrap();
        self.driver.attach(source.endpoint, kind).unwrap()
    }

    fn submit(&mut self, tag: u64, object: Object, operation: Operation) {
        self.driver.submit(tag, object, operation).unwrap();
    }

    /// Returns the next outcome, however long it takes.
    fn next(&mut self) -> Outcome {
        if self.came.is_empty() {
            self.driver.collect(&mut self.came, Some(AMPLE)).unwrap();
        }
        self.came.pop_front().expect("an outcome in time")
    }

    /// Returns the result of the next outcome, which is the only or last one of `tag`.
    fn last(&mut self, tag: u64) -> i32 {
        let outcome = self.next();
        assert_eq!((outcome.tag, outcome.more), (tag, false), "{outcome:?}");
        outcome.result
    }

    /// Writes until the kernel takes no more, as the engine does, and leaves a write of the rest
    /// with this tag; returns the number of written bytes.
    fn fill(&mut self, tag: u64, object: Object, bytes: &[u8]) -> usize {
        let mut written = 0;
        loop {
            self.submit(tag, object, write(&bytes[written..]));
            self.driver.collect(&mut self.came, Some(Duration::ZERO)).unwrap();
            if self.came.is_empty() {
                return written;
            }
            written += usize::try_from(self.last(tag)).unwrap();
        }
    }

    /// Waits for the write of a tag, and for those of its rest, until nothing is left.
    fn finish_write(&mut self, tag: u64, object: Object, mut left: &[u8]) {
        loop {
            left = &left[usize::try_from(self.last(tag)).unwrap()..];
            if left.is_empty() {
                return;
            }
            self.submit(tag, object, write(left));
        }
    }

    /// Returns the lease of the next outcome.
    fn lease(&mut self, tag: u64) -> Lease {
        let outcome = self.next();
        assert_eq!(outcome.tag, tag, "{outcome:?}");
        let Output::Lease(lease) = outcome.output else { panic!("no lease: {outcome:?}") };
        assert_eq!(lease.len(), outcome.result as usize);
        lease
    }

    /// Polls once and asserts that there is no outcome.
    fn nothing(&mut self) {
        if self.came.is_empty() {
            self.driver.collect(&mut self.came, Some(Duration::ZERO)).unwrap();
        }
        assert!(self.came.is_empty(), "{:?}", self.came);
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        self.driver.count(&mut counters);
        counters
    }

    fn free_buffers(&self) -> (usize, usize) {
        let count = |pool: &Pool| {
            let taken: Vec<u16> = std::iter::from_fn(|| pool.take()).collect();
            taken.iter().rev().for_each(|index| pool.give_back(*index));
            taken.len()
        };
        (count(&self.pools.small), count(&self.pools.large))
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (near, far)
}

fn receive(repeat: bool) -> Operation {
    Operation::Receive { large: false, repeat }
}

fn read(room: &mut [u8]) -> Operation {
    read_at(room, NO_OFFSET)
}

fn read_at(room: &mut [u8], offset: u64) -> Operation {
    Operation::Read { address: room.as_mut_ptr(), bytes: room.len() as u32, offset }
}

fn write(bytes: &[u8]) -> Operation {
    write_at(bytes, NO_OFFSET)
}

fn write_at(bytes: &[u8], offset: u64) -> Operation {
    Operation::Write { address: bytes.as_ptr(), bytes: bytes.len() as u32, offset }
}

fn parts<const N: usize>(slices: [&[u8]; N]) -> [libc::iovec; N] {
    slices.map(|bytes| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    })
}

fn write_parts(vector: &[libc::iovec]) -> Operation {
    let (vector, count) = (vector.as_ptr(), vector.len() as u32);
    Operation::WriteVectored { vector, count, offset: NO_OFFSET }
}

fn read_parts(vector: &[libc::iovec]) -> Operation {
    let (vector, count) = (vector.as_ptr(), vector.len() as u32);
    Operation::ReadVectored { vector, count, offset: NO_OFFSET }
}

/// Returns the flags of the open file description.
fn flags(descriptor: &impl AsRawFd) -> i32 {
    // SAFETY: the call takes no pointers.
    unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL) }
}

fn is_nonblocking(descriptor: &impl AsRawFd) -> bool {
    flags(descriptor) & libc::O_NONBLOCK != 0
}

fn set_option<T>(socket: &impl AsRawFd, level: i32, name: i32, value: T) {
    let bytes = std::mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` outlives the call and `bytes` is its size.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Makes closing the socket reset the connection.
fn reset_on_close(socket: &impl AsRawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(socket, libc::SOL_SOCKET, libc::SO_LINGER, linger);
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

/// Returns bytes that differ from their neighbours, near and far.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
