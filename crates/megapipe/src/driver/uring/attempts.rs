//! Tries the features of io_uring on a new ring (the feature probe).
//!
//! Submits every kind of request that the driver uses once, to a descriptor that does not exist
//! (-1). A kernel that supports the request answers `EBADF`; another one answers `EINVAL` or
//! `EOPNOTSUPP` before it looks at the descriptor. Requests on entries of the ring's file table go
//! to a socket there, because the kernel checks their arguments later. All of them travel in one
//! io_uring_enter(2).
//!
//! The kernel gives a shutdown or sync to a thread of its own, which would then belong to the
//! caller's thread for ever. So these two are linked behind a request that fails: the kernel
//! answers `ECANCELED` after it has accepted their arguments, and executes neither.

use super::entries::{self, get_option};
use super::features::{Feature, Lacks, is_unknown};
use super::objects::Nature;
use super::refusal::FailedCall;
use super::ring::{Entered, Ring, WaitLimits};
use super::{FORGOTTEN_TAG, RETRY_PAUSE};
use crate::driver::{NO_OFFSET, Operation};
use crate::source::Timer;
use crate::sys::RWF_NOSIGNAL;
use io_uring::types::{CancelBuilder, DestinationSlot, Fd, Fixed};
use io_uring::{opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// A descriptor that does not exist.
const NOWHERE: i32 = -1;
/// The entry of an empty file table into which the kernel puts the first socket.
const FIRST_ENTRY: u32 = 0;

/// `IORING_ACCEPT_DONTWAIT`, which came with the state of the accept queue, and the offset of an
/// accept's flags in `struct io_uring_sqe`.
const ACCEPT_DONT_WAIT: u16 = 1 << 1;
const ACCEPT_FLAGS_AT: usize = 2;

/// The memory that the attempts point to. The kernel writes only socket options.
struct Arguments {
    bytes: [u8; 128],
    vector: libc::iovec,
    message: libc::msghdr,
}

impl Arguments {
    fn new() -> Box<Arguments> {
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: all-zero bytes are a valid `msghdr` that names no memory.
        let message = unsafe { std::mem::zeroed() };
        Box::new(Arguments { bytes: [0; 128], vector, message })
    }

    fn address(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// Returns the operations of the trait, which fail with `EBADF` if the kernel supports them.
    /// The shutdown and the sync follow on a request that fails at once.
    fn operations(&mut self) -> [(Feature, Nature, Operation); 21] {
        use Nature::{File, Stream};
        let address = self.bytes.as_mut_ptr();
        let (vector, message) = (&raw const self.vector, &raw mut self.message);
        let (offset, count, events) = (NO_OFFSET, 1, libc::POLLIN as u32);
        let name = address.cast_const().cast();
        let bytes = size_of::<libc::sockaddr_in>() as u32;
        let accept = |lightweight, repeat| Operation::Accept { lightweight, repeat };
        let receive = |repeat| Operation::Receive { large: false, repeat };
        let datagrams = Operation::ReceiveFrom { repeat: true, ancillary: true };
        [
            (Feature::AcceptOne, Stream, accept(false, false)),
            (Feature::AcceptMany, Stream, accept(false, true)),
            (Feature::AcceptDirect, Stream, accept(true, false)),
            (Feature::AcceptDirect, Stream, accept(true, true)),
            (Feature::Connect, Stream, Operation::Connect { address: name, bytes }),
            (Feature::Read, File, Operation::Read { address, bytes, offset }),
            (Feature::ReadVectored, File, Operation::ReadVectored { vector, count, offset }),
            (Feature::ReadBuffer, File, receive(false)),
            (Feature::Receive, Stream, Operation::Read { address, bytes, offset }),
            (Feature::ReceiveBuffer, Stream, receive(false)),
            (Feature::ReceiveMany, Stream, receive(true)),
            (Feature::ReceiveMessage, Stream, Operation::ReadMessage { message }),
            (Feature::ReceiveDatagrams, Stream, datagrams),
            (Feature::Write, File, Operation::Write { address, bytes, offset }),
            (Feature::WriteVectored, File, Operation::WriteVectored { vector, count, offset }),
            (Feature::Send, Stream, Operation::Write { address, bytes, offset }),
            (Feature::SendMessage, Stream, Operation::SendTo { message }),
            (Feature::Shutdown, Stream, Operation::Shutdown { how: libc::SHUT_WR }),
            (Feature::Sync, File, Operation::Sync { data_only: true }),
            (Feature::PollOne, Stream, Operation::Poll { events, repeat: false }),
            (Feature::PollMany, Stream, Operation::Poll { events, repeat: true }),
        ]
    }

    /// Returns all requests that need no file table.
    fn attempts(&mut self, timer: &OwnedFd, groups: (u16, u16)) -> Vec<(Feature, squeue::Entry)> {
        let operations = self.operations().map(|(feature, nature, operation)| {
            let entry = entries::build(NOWHERE, nature, operation, groups, 0);
            let is_linked = matches!(feature, Feature::SendMessage | Feature::Shutdown);
            let flags = if is_linked { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
            (feature, entry.flags(flags))
        });
        let mut attempts: Vec<_> = operations.into_iter().chain(Arguments::requests()).collect();
        let mut read = |flags| read_without_waiting(timer, self.address(), flags);
        attempts.push((Feature::WatchedRead, read(0)));
        attempts.push((Feature::QuietWrite, read(RWF_NOSIGNAL)));
        attempts
    }

    /// Returns the requests of the driver itself.
    fn requests() -> [(Feature, squeue::Entry); 4] {
        let cancel = |builder| opcode::AsyncCancel2::new(builder).build();
        [
            (Feature::QueueState, accept_without_waiting()),
            (Feature::Close, opcode::Close::new(Fd(NOWHERE)).build()),
            (Feature::Cancel, cancel(CancelBuilder::user_data(FORGOTTEN_TAG))),
            (Feature::CancelAny, cancel(CancelBuilder::any())),
        ]
    }

    /// Returns the requests on a socket in the ring's file table. The first of them opens the
    /// socket and the last one closes it. The kernel executes them in this order; each ends before
    /// the next one begins.
    fn requests_on_table(&mut self) -> [(Feature, squeue::Entry); 5] {
        let slot = Some(DestinationSlot::auto_target());
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(slot);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
        // The first request reads the value that the second one sets, so the option stays as it is.
        let (value, bytes) = (self.bytes.as_mut_ptr(), size_of::<libc::c_int>() as u32);
        let direct = Fixed(FIRST_ENTRY);
        let get = get_option(Fd(FIRST_ENTRY as i32), name, value, bytes);
        let set = opcode::SetSockOpt::new(direct, level as u32, name as u32, value.cast(), bytes);
        [
            (Feature::SocketDirect, socket.build()),
            (Feature::GetOption, get.flags(squeue::Flags::FIXED_FILE)),
            (Feature::SetOption, set.build()),
            (Feature::InstallDescriptor, opcode::FixedFdInstall::new(direct, 0).build()),
            (Feature::CloseDirect, opcode::Close::new(direct).build()),
        ]
    }
}

/// Builds a read of a timer that has not expired: `EAGAIN` from a kernel that reads timers without
/// a thread. An older one makes a kernel thread wait in the read, and refuses a non-blocking read
/// (`EOPNOTSUPP`). The same holds for signals, where that thread would wait for its own signals.
/// The kernel answers the same if it does not know one of the other flags, which reads and writes
/// share.
fn read_without_waiting(timer: &OwnedFd, value: *mut u8, flags: i32) -> squeue::Entry {
    let flags = libc::RWF_NOWAIT | flags;
    opcode::Read::new(Fd(timer.as_raw_fd()), value, 8).rw_flags(flags).build()
}

fn accept_without_waiting() -> squeue::Entry {
    let mut entry = opcode::Accept::new(Fd(NOWHERE), ptr::null_mut(), ptr::null_mut()).build();
    // SAFETY: the entry is a `struct io_uring_sqe`, in which these two bytes are the flags of an
    // accept.
    unsafe {
        let flags = (&raw mut entry).cast::<u8>().add(ACCEPT_FLAGS_AT).cast::<u16>();
        flags.write(ACCEPT_DONT_WAIT);
    }
    entry
}

/// Tries every request on a ring with buffer rings and an empty file table, if the kernel supports
/// these. Without a file table, requests on its entries are neither used nor tried. Adds missing
/// features to `lacks`.
///
/// # Errors
/// That of a call, or of an attempt that failed for lack of a resource.
pub(super) fn attempt(
    ring: &mut Ring,
    groups: (u16, u16),
    lacks: &mut Lacks,
) -> Result<(), FailedCall> {
    let entering = FailedCall::of("io_uring_enter");
    let mut arguments = Arguments::new();
    let timer = Timer::stopped().map_err(FailedCall::of("timerfd_create"))?;
    let timer = OwnedFd::from(timer);
    let mut attempts = arguments.attempts(&timer, groups);
    let on_table = arguments.requests_on_table();
    match lacks.of(Feature::FileTable).copied() {
        None => attempts.extend(on_table),
        Some(lack) => on_table.iter().for_each(|(feature, _)| lacks.add(*feature, lack.errno)),
    }
    for (index, (_, entry)) in attempts.iter().enumerate() {
        // SAFETY: the arguments are kept until every attempt has ended.
        let pushed = unsafe { ring.push(&entry.clone().user_data(index as u64)) };
        assert!(pushed, "the shortest ring has room for one request of each kind");
    }
    let mut left = attempts.len();
    let mut exhausted = None;
    while left > 0 {
        let limits = WaitLimits { want: left as u32, linger_us: 0, timeout: None };
        match ring.enter(limits) {
            Ok(Entered::Busy) => std::thread::sleep(RETRY_PAUSE),
            Ok(_) => {}
            Err(error) => {
                // The kernel may have taken some of them already.
                if left < attempts.len() || ring.queued() < attempts.len() as u32 {
                    std::mem::forget(arguments);
                }
                return Err(entering(error));
            }
        }
        for done in ring.completions() {
            left -= 1;
            let Some((feature, _)) = attempts.get(done.user_data() as usize) else { continue };
            match -done.result() {
                errno if is_unknown(errno) => lacks.add(*feature, errno),
                errno if is_exhausted(errno) => exhausted = Some(errno),
                _ if *feature == Feature::InstallDescriptor && done.result() >= 0 => {
                    // SAFETY: the kernel has just opened this descriptor, which has no other owner.
                    drop(unsafe { OwnedFd::from_raw_fd(done.result()) });
                }
                _ => {}
            }
        }
    }
    exhausted.map_or(Ok(()), |errno| Err(entering(io::Error::from_raw_os_error(errno))))
}

/// Returns whether an errno means that the attempt lacked a resource.
fn is_exhausted(errno: i32) -> bool {
    [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE].contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::super::restrictions::OPERATIONS;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn this_kernel_is_tried_without_leaving_anything_behind() {
        let mut lacks = Lacks::default();
        let mut ring = Ring::new(32, 64, &mut lacks).unwrap();
        ring.submitter().register_files_sparse(1).unwrap();
        ring.enable(&mut lacks).unwrap();
        for _ in 0..3 {
            attempt(&mut ring, (0, 1), &mut lacks).unwrap();
            assert_eq!((ring.queued(), ring.completions().len()), (0, 0));
        }
        assert!(lacks.required().next().is_none(), "{lacks:?}");
    }

    #[test]
    fn the_ring_permits_exactly_the_operations_that_are_tried() {
        let mut arguments = Arguments::new();
        let timer = OwnedFd::from(Timer::stopped().unwrap());
        let mut attempts = arguments.attempts(&timer, (0, 1));
        attempts.extend(arguments.requests_on_table());
        let tried: BTreeSet<u32> = attempts.iter().map(|(_, entry)| entry.get_opcode()).collect();
        let permitted: BTreeSet<u32> = OPERATIONS.iter().map(|code| u32::from(*code)).collect();
        assert_eq!(permitted, tried);
    }
}
