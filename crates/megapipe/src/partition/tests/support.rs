//! Provides clients that connect on a chosen CPU, and members without a channel.

use super::super::mailbox::{Mailbox, Queue, QueueChange};
use super::super::membership::Membership;
use super::super::socket;
use crate::cpuset::CpuSet;
use crate::source::wake_pair;
use crate::sys::set_option;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use testkit::{allowed_cpus, pin};

/// Returns one or two CPUs on which this process may run.
pub(in super::super) fn usable_cpus() -> Vec<usize> {
    let cpus: Vec<usize> = allowed_cpus().into_iter().take(2).collect();
    if cpus.len() < 2 {
        eprintln!("note: only one CPU may be used here, so only its queue is checked");
    }
    cpus
}

/// Connects on a CPU. The connection is reset when closed, so that no port stays in TIME_WAIT.
pub(in super::super) fn connect(address: SocketAddr, cpu: usize) -> TcpStream {
    let client = move || {
        pin(cpu);
        connect_here(address)
    };
    std::thread::spawn(client).join().unwrap()
}

pub(super) fn connect_here(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let linger = [1i32.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
    set_option(stream.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    stream
}

/// Returns a listener on any IPv4 port, created by Rust's library.
pub(in super::super) fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

pub(in super::super) fn length(socket: impl AsFd) -> u32 {
    socket::queue_length(socket.as_fd()).unwrap()
}

/// Answers a connection with one byte.
pub(super) fn serve(connection: OwnedFd) {
    TcpStream::from(connection).write_all(b"!").unwrap();
}

/// Waits until a connection is served.
pub(super) fn expect_service(mut client: TcpStream) {
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.read_exact(&mut [0]).expect("a connection was lost");
}

/// A stand-in for a channel: a membership, and the queues from which it accepts.
pub(super) struct Seat {
    pub(super) membership: Membership,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) queues: Vec<Queue>,
    pub(super) wake: OwnedFd,
}

impl Seat {
    pub(super) fn take(
        listener: BorrowedFd<'_>,
        cpus: &CpuSet,
    ) -> Result<Seat, super::super::ListenerError> {
        let (waker, source) = wake_pair().unwrap();
        let mailbox = Mailbox::new(waker);
        let (membership, queue) = Membership::join(listener, cpus, &mailbox, true)?;
        Ok(Seat { membership, mailbox, queues: vec![queue], wake: source.into() })
    }

    pub(super) fn read_mail(&mut self) {
        for mail in self.mailbox.drain() {
            match mail {
                QueueChange::Adopt { member, queue } => {
                    assert_eq!(member, self.membership.id());
                    assert!(self.queues.iter().all(|other| other.id != queue.id));
                    self.queues.push(queue);
                }
                QueueChange::Return { member, queue } => {
                    assert_eq!(member, self.membership.id());
                    let before = self.queues.len();
                    self.queues.retain(|other| other.id != queue);
                    assert_eq!(self.queues.len() + 1, before);
                }
            }
        }
    }

    /// Returns the ids of the queues from which it accepts, without the original's, after reading
    /// its messages.
    pub(super) fn queue_ids(&mut self) -> Vec<u64> {
        self.read_mail();
        let ids = self.queues.iter().map(|queue| queue.id);
        ids.filter(|id| !self.membership.is_original(*id)).collect()
    }

    /// Returns whether it accepts from the original, after reading its messages.
    pub(super) fn holds_original(&mut self) -> bool {
        self.read_mail();
        self.queues.iter().any(|queue| self.membership.is_original(queue.id))
    }

    /// Returns how many connections wait in its first queue.
    pub(super) fn waiting(&self) -> u32 {
        length(&self.queues[0].descriptor)
    }

    /// Accepts all waiting connections.
    pub(super) fn accept_all(&mut self) -> Vec<OwnedFd> {
        self.read_mail();
        let mut connections = Vec::new();
        for queue in &self.queues {
            // The original may block.
            while length(&queue.descriptor) > 0 {
                connections.extend(socket::accept(queue.descriptor.as_fd()).unwrap());
            }
        }
        connections
    }

    /// Sleeps until there is a connection or a message, or for some milliseconds.
    pub(super) fn wait(&self, timeout_ms: i32) {
        let descriptors = self.queues.iter().map(|queue| queue.descriptor.as_fd());
        if wait_for(descriptors.chain([self.wake.as_fd()]), timeout_ms).last() == Some(&true) {
            let mut count = [0u8; 8];
            // SAFETY: `count` has room for the eight bytes of an eventfd.
            unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        }
    }
}

/// Returns which of the descriptors became readable, if one does in time.
pub(super) fn wait_for<'a>(
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    timeout_ms: i32,
) -> Vec<bool> {
    let entry =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = descriptors.map(entry).collect();
    // SAFETY: the length is that of the array, which outlives the call.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout_ms) };
    entries.iter().map(|entry| entry.revents & libc::POLLIN != 0).collect()
}
