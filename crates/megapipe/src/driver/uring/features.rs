//! The features of io_uring that the driver uses, tried one by one when a ring is set up, and what
//! replaces those that the kernel lacks.
//!
//! A version number says little: distributions backport features, and filters and containers
//! remove some. So every kind of request that the driver submits is submitted once, to a descriptor
//! that does not exist (-1): a kernel that knows the request answers `EBADF`, one that does not
//! know it answers `EINVAL` or `EOPNOTSUPP` before it looks at the descriptor. Requests on entries
//! of the ring's file table are submitted to a socket there, because the kernel checks their
//! arguments later. All of them travel in one io_uring_enter(2).
//!
//! The driver needs a ring with deferred task work, which came with Linux 6.1. What is as old as
//! that is therefore required, and the channel falls back to epoll without it; what is younger is
//! replaced.

use super::entries::{self, get_option};
use super::objects::Nature;
use super::ring::{Entered, Ring, WaitLimits};
use super::{FORGOTTEN_TAG, RETRY_PAUSE};
use crate::driver::{NO_OFFSET, Operation};
use crate::source::Timer;
use crate::sys::errno;
use io_uring::types::{CancelBuilder, DestinationSlot, Fd, Fixed};
use io_uring::{opcode, squeue};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// What the channel does without a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// It uses the epoll driver.
    Epoll,
    /// This stands in its place.
    Replaced(&'static str),
}

/// Defines [`Feature`] and what there is to say of each.
macro_rules! features {
    ($(
        $feature:ident $name:literal since $since:literal for $used_for:literal $without:expr;
    )+) => {
        /// A feature of io_uring.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Feature {
            $($feature,)+
        }

        impl Feature {
            pub(crate) const ALL: &[Feature] = &[$(Feature::$feature,)+];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Feature::$feature => $name,)+ }
            }

            /// The version of Linux that it came with.
            pub(crate) fn since(self) -> &'static str {
                match self { $(Feature::$feature => $since,)+ }
            }

            pub(crate) fn used_for(self) -> &'static str {
                match self { $(Feature::$feature => $used_for,)+ }
            }

            pub(crate) fn without(self) -> Without {
                match self { $(Feature::$feature => $without,)+ }
            }
        }
    };
}

const DESCRIPTORS: Without = Without::Replaced("lightweight sockets are descriptors");
const EPOLL: Without = Without::Epoll;

features! {
    AcceptOne "accept" since "5.5" for "accepting connections one by one" EPOLL;
    AcceptMany "multishot accept" since "5.19" for "accepting connections" EPOLL;
    Connect "connect" since "5.5" for "opening connections" EPOLL;
    Read "read" since "5.6" for "files, pipes, signals, timers" EPOLL;
    ReadVectored "readv" since "5.1" for "reading into several buffers" EPOLL;
    ReadBuffer "read into a provided buffer" since "5.7" for "receiving from pipes" EPOLL;
    Receive "recv" since "5.6" for "reading from sockets" EPOLL;
    ReceiveBuffer "recv into a provided buffer" since "5.7" for "receiving a message" EPOLL;
    ReceiveMany "multishot recv" since "6.0" for "receiving messages" EPOLL;
    ReceiveMessage "recvmsg" since "5.3" for "messages with control data" EPOLL;
    ReceiveDatagrams "multishot recvmsg" since "6.0" for "receiving datagrams" EPOLL;
    Write "write" since "5.6" for "files and pipes" EPOLL;
    WriteVectored "writev" since "5.1" for "writing from several buffers" EPOLL;
    Send "send" since "5.6" for "writing to sockets" EPOLL;
    SendMessage "sendmsg" since "5.3" for "datagrams and control data" EPOLL;
    Shutdown "shutdown" since "5.11" for "ending one direction of a connection" EPOLL;
    Sync "fsync" since "5.1" for "writing files to the disk" EPOLL;
    PollOne "poll" since "5.1" for "waiting for readiness" EPOLL;
    PollMany "multishot poll" since "5.13" for "following readiness" EPOLL;
    Close "close" since "5.6" for "closing descriptors" EPOLL;
    Cancel "cancel by tag" since "5.5" for "cancelling requests" EPOLL;
    CancelAny "cancel all of a ring" since "5.19" for "ending a channel" EPOLL;
    BufferRing "buffer rings" since "5.19" for "receiving into the channel's buffers" EPOLL;
    FileTable "sparse file table" since "5.19" for "lightweight sockets" DESCRIPTORS;
    AcceptDirect "accept into the file table" since "5.19" for "lightweight sockets" DESCRIPTORS;
    SocketDirect "socket in the file table" since "5.19" for "outgoing lightweight sockets"
        DESCRIPTORS;
    CloseDirect "close of a file table entry" since "5.15" for "closing lightweight sockets"
        DESCRIPTORS;
    GetOption "getsockopt as a request" since "6.7" for "peers' addresses of lightweight sockets"
        DESCRIPTORS;
    SetOption "setsockopt as a request" since "6.7" for "options of lightweight sockets"
        DESCRIPTORS;
    InstallDescriptor "descriptor for a file table entry" since "6.8"
        for "giving a lightweight socket a descriptor" DESCRIPTORS;
    QueueState "state of the accept queue with a connection" since "6.10"
        for "telling how many connections wait"
        Without::Replaced("the queue's length is asked for after each batch of accepts");
    WatchedRead "read of timers and signals by the ring itself" since "6.10"
        for "timers and signals" Without::Replaced("they are polled before they are read");
    MinimumWait "minimum wait" since "6.12" for "lingering for completions (Config::linger)"
        Without::Replaced("a wait ends with the first completion");
    NoIndexArray "ring without index array" since "6.6" for "less work per request"
        Without::Replaced("the ring has an index array");
    RegisteredRing "registered ring descriptor" since "5.18"
        for "entering the kernel without a look-up"
        Without::Replaced("each entry looks the ring's descriptor up");
    NoDescriptor "register calls by registered ring" since "6.3"
        for "a ring that forked children do not inherit"
        Without::Replaced("a forked child inherits the ring's descriptor until it calls execve");
    NoIoWait "wait that does not count as I/O wait" since "6.15" for "true CPU accounting"
        Without::Replaced("a channel that sleeps counts as I/O wait");
}

/// A feature that the kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lack {
    pub(crate) feature: Feature,
    /// What the kernel answered to the attempt; 0 if there was no call to answer.
    pub(crate) errno: i32,
}

/// "multishot recv (Linux 6.0): Invalid argument (os error 22)".
impl fmt::Display for Lack {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (Linux {})", self.feature.name(), self.feature.since())?;
        match self.errno {
            0 => Ok(()),
            errno => write!(out, ": {}", io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The features that the kernel lacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lacks(Vec<Lack>);

impl Lacks {
    pub(crate) fn add(&mut self, feature: Feature, errno: i32) {
        if !self.has(feature) {
            self.0.push(Lack { feature, errno });
        }
    }

    /// The result of the register calls that make up a feature; `None`, and noted, if the kernel
    /// does not know them.
    pub(super) fn judge<T>(
        &mut self,
        feature: Feature,
        result: io::Result<T>,
    ) -> io::Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_unknown(errno(&error)) => {
                self.add(feature, errno(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn of(&self, feature: Feature) -> Option<&Lack> {
        self.0.iter().find(|lack| lack.feature == feature)
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.of(feature).is_some()
    }

    /// Those without which the channel uses the epoll driver.
    pub(crate) fn required(&self) -> impl Iterator<Item = &Lack> {
        self.0.iter().filter(|lack| lack.feature.without() == Without::Epoll)
    }

    /// The others, with what stands in their place.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (&Lack, &'static str)> {
        self.0.iter().filter_map(|lack| match lack.feature.without() {
            Without::Replaced(by) => Some((lack, by)),
            Without::Epoll => None,
        })
    }

    /// Whether lightweight sockets can be entries of the ring's file table.
    pub(super) fn leave_direct_sockets(&self) -> bool {
        !self.0.iter().any(|lack| lack.feature.without() == DESCRIPTORS)
    }
}

/// A descriptor that does not exist.
const NOWHERE: i32 = -1;
/// The entry of an empty file table into which the kernel puts the first socket.
const FIRST_ENTRY: u32 = 0;

/// `IORING_ACCEPT_DONTWAIT`, which came with the state of the accept queue, and where `struct
/// io_uring_sqe` has the flags of an accept.
const ACCEPT_DONT_WAIT: u16 = 1 << 1;
const ACCEPT_FLAGS_AT: usize = 2;

/// What the attempts point to. Only socket options are written.
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

    /// The operations of the trait, which answer `EBADF` where the kernel knows them.
    fn operations(&mut self) -> [(Feature, Nature, Operation); 21] {
        use Nature::{File, Stream};
        let address = self.bytes.as_mut_ptr();
        let (vector, message) = (&raw const self.vector, &raw mut self.message);
        let (offset, count, events) = (NO_OFFSET, 1, libc::POLLIN as u32);
        let name = address.cast_const().cast();
        let bytes = size_of::<libc::sockaddr_in>() as u32;
        let accept = |lightweight, repeat| Operation::Accept { lightweight, repeat };
        let receive = |repeat| Operation::Receive { large: false, repeat };
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
            (Feature::ReceiveDatagrams, Stream, Operation::ReceiveFrom { repeat: true }),
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

    /// The other requests that need no file table.
    fn requests() -> [(Feature, squeue::Entry); 4] {
        let cancel = |builder| opcode::AsyncCancel2::new(builder).build();
        [
            (Feature::QueueState, accept_without_waiting()),
            (Feature::Close, opcode::Close::new(Fd(NOWHERE)).build()),
            (Feature::Cancel, cancel(CancelBuilder::user_data(FORGOTTEN_TAG))),
            (Feature::CancelAny, cancel(CancelBuilder::any())),
        ]
    }

    /// Those on a socket in the ring's file table, which the first of them opens and the last one
    /// closes. The kernel takes them in this order; each ends before the next one begins.
    fn requests_on_table(&mut self) -> [(Feature, squeue::Entry); 5] {
        let slot = Some(DestinationSlot::auto_target());
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(slot);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);
        // The answer of the first is the value for the second: the option stays as it is.
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

/// A read of a timer that has not expired: `EAGAIN` from a kernel that reads timers itself. An
/// older one has a kernel thread wait in the read, and refuses a read that must not wait
/// (`EOPNOTSUPP`). It is the same for signals, where that thread would wait for signals of its own.
fn read_without_waiting(timer: &OwnedFd, value: *mut u8) -> squeue::Entry {
    opcode::Read::new(Fd(timer.as_raw_fd()), value, 8).rw_flags(libc::RWF_NOWAIT).build()
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

/// Tries every request on a ring that has its buffer rings and an empty file table, if the kernel
/// knows these. Without a table nothing on its entries can be used, nor tried. Adds what the kernel
/// does not know to `lacks`.
///
/// # Errors
/// The errno of a call, or of an attempt for which a resource was lacking.
pub(super) fn attempt(ring: &mut Ring, groups: (u16, u16), lacks: &mut Lacks) -> io::Result<()> {
    let mut arguments = Arguments::new();
    let operations = arguments.operations().map(|(feature, nature, operation)| {
        (feature, entries::build(NOWHERE, nature, operation, groups))
    });
    let mut attempts: Vec<_> = operations.into_iter().chain(Arguments::requests()).collect();
    let timer = OwnedFd::from(Timer::stopped()?);
    attempts.push((Feature::WatchedRead, read_without_waiting(&timer, arguments.address())));
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
                // The kernel may have some of them already.
                if left < attempts.len() || ring.queued() < attempts.len() as u32 {
                    std::mem::forget(arguments);
                }
                return Err(error);
            }
        }
        for done in ring.completions() {
            left -= 1;
            let Some((feature, _)) = attempts.get(done.user_data() as usize) else { continue };
            match -done.result() {
                errno if is_unknown(errno) => lacks.add(*feature, errno),
                errno if is_exhausted(errno) => exhausted = Some(errno),
                _ if *feature == Feature::InstallDescriptor && done.result() >= 0 => {
                    // SAFETY: the kernel has just opened this descriptor for us.
                    drop(unsafe { OwnedFd::from_raw_fd(done.result()) });
                }
                _ => {}
            }
        }
    }
    exhausted.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Whether an errno means that the kernel does not know a request, or bars it from this ring.
fn is_unknown(errno: i32) -> bool {
    [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS, libc::EACCES, libc::EPERM].contains(&errno)
}

/// Whether an errno means that a resource is lacking for the attempt.
fn is_exhausted(errno: i32) -> bool {
    [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE].contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_feature_that_is_replaced() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let mut lacks = Lacks::default();
        Feature::ALL.iter().for_each(|feature| lacks.add(*feature, libc::EINVAL));
        for (lack, by) in lacks.replaced() {
            let feature = lack.feature;
            let (name, since, used_for) = (feature.name(), feature.since(), feature.used_for());
            let row = format!("| {name} | {since} | {used_for} | {by} |");
            assert!(manual.contains(&row), "docs/kernels.md lacks: {row}");
        }
    }

    #[test]
    fn this_kernel_is_tried_without_leaving_anything_behind() {
        let mut lacks = Lacks::default();
        let mut ring = Ring::new(64, &mut lacks).unwrap();
        ring.submitter().register_files_sparse(1).unwrap();
        for _ in 0..3 {
            attempt(&mut ring, (0, 1), &mut lacks).unwrap();
            assert_eq!((ring.queued(), ring.completions().len()), (0, 0));
        }
        assert!(lacks.required().next().is_none(), "{lacks:?}");
    }
}
