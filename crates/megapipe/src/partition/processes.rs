//! Creates accept queues of one listening TCP socket for several processes.

use super::error::ListenerError;
use super::{program, socket};
use crate::cpuset::CpuSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Creates accept queues of a listening TCP socket for processes that are about to be forked: for
/// each set of CPUs one socket that listens on the same address and gets the connections whose
/// handshake runs on those CPUs (report, section 3.4.1). The listener itself keeps the other CPUs.
/// Connections of a CPU that is in several sets go to their sockets at random, so that more
/// processes than CPUs can share them.
///
/// Threads of one process do not need this function: see
/// [`Channel::register_listener`](crate::Channel::register_listener).
///
/// Each process registers its own socket with its channel, as any listener. The process that called
/// this function should keep all sockets open: then a worker that ends or crashes loses no
/// connection, and its successor finds them in the queue.
///
/// To change the sets later, call the function again with the sockets of the earlier calls, in the
/// same order, as `known`. The first sets then apply to them, and only the sets beyond them get new
/// sockets, which are returned. A set may be empty; its socket gets no new connections, but a
/// process must still accept those that wait in its queue. Removing a socket resets the connections
/// in its queue; closing all of them while connections arrive does so, too.
///
/// Fails with [`ListenerError`] if there are fewer sets than known sockets; if the listener is not
/// a listening TCP socket, or shares its port in a way not known here; or if sets overlap in more
/// ways than the kernel's program has room for. Then nothing has changed.
///
/// ```
/// use megapipe::{CpuSet, partition};
/// use std::net::TcpListener;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let queues = partition(&listener, &[CpuSet::one(0)], &[])?;
/// // fork; the child registers queues[0], another process the listener itself.
/// # assert_eq!(queues.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn partition(
    listener: impl AsFd,
    cpus: &[CpuSet],
    known: &[BorrowedFd<'_>],
) -> Result<Vec<OwnedFd>, ListenerError> {
    let listener = listener.as_fd();
    socket::cookie(listener)?;
    if cpus.len() < known.len() {
        return Err(ListenerError::FewerSets { sets: cpus.len(), sockets: known.len() });
    }
    if known.is_empty() && socket::is_reuseport(listener)? {
        return Err(ListenerError::AlreadyShared);
    }
    let steering = program::generate(cpus);
    if !program::fits(&steering) {
        return Err(ListenerError::TooIntricate { instructions: steering.len() });
    }
    // From the first new socket on the kernel distributes connections, so every failure that can be
    // foreseen must happen before.
    socket::rehearse(listener, &steering)?;
    socket::set_reuseport(listener, true)?;
    let result = grow(listener, cpus.len() - known.len(), &steering);
    if result.is_err() && known.is_empty() {
        // The option was not set before; if this fails, the error that is being returned matters
        // more.
        let _ = socket::set_reuseport(listener, false);
    }
    result
}

fn grow(
    listener: BorrowedFd<'_>,
    count: usize,
    steering: &[libc::sock_filter],
) -> Result<Vec<OwnedFd>, ListenerError> {
    let mut made: Vec<OwnedFd> = Vec::with_capacity(count);
    let result = (0..count)
        .try_for_each(|_| {
            made.push(socket::sibling(listener)?);
            Ok(())
        })
        .and_then(|()| socket::steer(listener, steering));
    match result {
        Ok(()) => Ok(made),
        Err(error) => {
            made.iter().for_each(|sibling| socket::stop(sibling.as_fd()));
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn waiting(queue: &impl AsFd) -> u32 {
        socket::queue_length(queue.as_fd()).unwrap()
    }

    fn known(queues: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
        queues.iter().map(AsFd::as_fd).collect()
    }

    #[test]
    fn connections_wait_in_the_queue_of_their_cpu() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut queues = partition(&listener, &[CpuSet::one(0)], &[]).unwrap();
        assert_eq!(queues.len(), 1);
        let near = std::thread::spawn(move || {
            sys::cpus::pin_to(0).expect("CPU 0 must be usable");
            TcpStream::connect(address).unwrap()
        });
        let mut near = near.join().unwrap();
        assert_eq!((waiting(&queues[0]), waiting(&listener)), (1, 0));
        // A second set takes over; connections still wait in the socket with the empty set.
        let sets = [CpuSet::empty(), CpuSet::one(0)];
        queues.extend(partition(&listener, &sets, &known(&queues)).unwrap());
        assert_eq!(queues.len(), 2);
        let far = std::thread::spawn(move || {
            sys::cpus::pin_to(0).expect("CPU 0 must be usable");
            TcpStream::connect(address).unwrap()
        });
        let _far = far.join().unwrap();
        let lengths = [waiting(&queues[0]), waiting(&queues[1]), waiting(&listener)];
        assert_eq!(lengths, [1, 1, 0]);
        let mut accepted = TcpStream::from(socket::accept(queues[0].as_fd()).unwrap().unwrap());
        accepted.set_nonblocking(false).unwrap();
        near.write_all(b"x").unwrap();
        let mut byte = [0];
        accepted.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn processes_share_a_cpu() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let all: CpuSet = (0..1024).collect();
        let queues = partition(&listener, &[all, all], &[]).unwrap();
        let clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
        let lengths = [waiting(&queues[0]), waiting(&queues[1]), waiting(&listener)];
        assert_eq!(lengths.iter().sum::<u32>(), clients.len() as u32);
        // The probability that all are in one queue by chance is 2⁻⁶³.
        assert!(lengths[0] > 0 && lengths[1] > 0 && lengths[2] == 0, "{lengths:?}");
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bits = |bit: usize| (0..1024usize).filter(move |cpu| cpu >> bit & 1 == 1);
        let intricate: Vec<CpuSet> = (0..10).map(|bit| bits(bit).collect()).collect();
        let refused = partition(&listener, &intricate, &[]);
        assert!(matches!(refused, Err(ListenerError::TooIntricate { .. })), "{refused:?}");
        assert!(!socket::is_reuseport(listener.as_fd()).unwrap());
        let queues = partition(&listener, &[CpuSet::one(0)], &[]).unwrap();
        let again = partition(&listener, &[CpuSet::one(0)], &[]);
        assert!(matches!(again, Err(ListenerError::AlreadyShared)), "{again:?}");
        let fewer = partition(&listener, &[], &known(&queues));
        assert!(matches!(fewer, Err(ListenerError::FewerSets { sets: 0, sockets: 1 })));
        assert_ne!(queues[0].as_raw_fd(), listener.as_raw_fd());
    }
}
