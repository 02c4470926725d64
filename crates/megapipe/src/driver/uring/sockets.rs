//! Makes synchronous calls: options, duplicate descriptors, single datagrams, and operations for
//! which the kernel has no thread.

use super::objects::Target;
use super::synchronous::AbandonedResource;
use super::{UringDriver, entries};
use crate::driver::{NO_OFFSET, Object, Operation, Outcome, TABLE_FULL, cached_file, datagram};
use crate::source::{Endpoint, NumberedSocket};
use crate::sys::{check, errno, get_option, open_socket, result_of, set_option};
use io_uring::types::{DestinationSlot, Fd, Fixed};
use io_uring::{opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

impl UringDriver {
    /// Fetches an announced datagram. If the kernel holds all free buffers, waits for one.
    pub(super) fn fetch(&mut self, tag: u64, target: Target, ancillary: bool) -> Outcome {
        self.ring.system_calls += 1;
        let pool = Rc::clone(self.large.pool());
        match self.with_descriptor(target, |fd| datagram::fetch(tag, fd, &pool, ancillary)) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::plain(tag, -errno(&error)),
        }
    }

    /// Sends cached bytes of a file; returns the result of [`cached_file::send`].
    pub(super) fn send_file(&mut self, target: Target, file: i32, offset: u64, bytes: u32) -> i32 {
        let sent = self.with_descriptor(target, |fd| cached_file::send(fd, file, offset, bytes));
        // Without a descriptor, the bytes are read and written.
        let (result, calls) = sent.unwrap_or((-libc::EOPNOTSUPP, 0));
        self.ring.system_calls += calls;
        self.sent_bytes += u64::try_from(result).unwrap_or(0);
        result
    }

    /// Executes an operation by its system call.
    pub(super) fn call(&mut self, target: Target, operation: &Operation) -> i32 {
        self.ring.system_calls += 1;
        // SAFETY: the trait requires the operation's submitter to keep its memory valid.
        let called = self.with_descriptor(target, |fd| match unsafe { call(fd, operation) } {
            result @ 0.. => result as i32,
            _ => -errno(&io::Error::last_os_error()),
        });
        called.unwrap_or_else(|error| -errno(&error))
    }

    /// Calls `with` with a descriptor of the target; opens a temporary one if there is none.
    fn with_descriptor<T>(&mut self, target: Target, with: impl FnOnce(i32) -> T) -> io::Result<T> {
        match target {
            Target::Descriptor(fd) => Ok(with(fd)),
            Target::Direct(_) => {
                let descriptor = self.open_descriptor(target)?;
                Ok(with(descriptor.as_raw_fd()))
            }
        }
    }

    pub(super) fn open_descriptor(&mut self, target: Target) -> io::Result<OwnedFd> {
        let fd = match target {
            // SAFETY: duplicating a descriptor touches no memory.
            Target::Descriptor(fd) => check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?,
            Target::Direct(index) => {
                let entry = opcode::FixedFdInstall::new(Fixed(index), 0).build();
                // SAFETY: the entry points to no memory and completes at once.
                result_of(unsafe { self.run(entry, AbandonedResource::Descriptor) }?.0)? as i32
            }
        };
        // SAFETY: the kernel has just opened this descriptor, which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Opens a lightweight socket: in the ring's file table (Linux 5.19), unless the kernel lacks a
    /// feature for sockets there.
    pub(super) fn open_lightweight(
        &mut self,
        domain: i32,
        socket_type: i32,
    ) -> io::Result<Endpoint> {
        if !self.direct_sockets {
            self.ring.system_calls += 1;
            return open_socket(domain, socket_type).map(Endpoint::Lightweight);
        }
        // Queues the entries that are to be freed before this request.
        self.prepare();
        let socket_type = socket_type | libc::SOCK_NONBLOCK;
        let slot = Some(DestinationSlot::auto_target());
        let entry = opcode::Socket::new(domain, socket_type, 0).file_index(slot).build();
        // SAFETY: the entry points to no memory and completes at once.
        let (result, _) = unsafe { self.run(entry, AbandonedResource::Socket) }?;
        if result == -libc::ENFILE && self.table.is_full() {
            return Err(io::Error::from_raw_os_error(TABLE_FULL));
        }
        let index = result_of(result)? as u32;
        self.table.fill();
        Ok(Endpoint::Direct(NumberedSocket::new(index, &self.discarded)))
    }

    pub(super) fn set_socket_option(
        &mut self,
        target: Target,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        match target {
            Target::Descriptor(fd) => set_option(fd, level, name, value),
            Target::Direct(index) => {
                let memory: Box<[u8]> = value.into();
                let (address, bytes) = (memory.as_ptr().cast(), memory.len() as u32);
                let (level, name) = (level as u32, name as u32);
                let entry = opcode::SetSockOpt::new(Fixed(index), level, name, address, bytes);
                let (entry, kept) = (entry.build(), AbandonedResource::Memory(memory));
                // SAFETY: the entry points to `memory` alone and completes at once.
                result_of(unsafe { self.run(entry, kept) }?.0)?;
                Ok(())
            }
        }
    }

    pub(super) fn get_socket_option(
        &mut self,
        target: Target,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        let fd = match target {
            Target::Descriptor(fd) => return get_option(fd, level, name, value),
            Target::Direct(index) if level == libc::SOL_SOCKET => {
                let answer = self.get_direct_option(index, name, value);
                match &answer {
                    Err(error) if errno(error) == libc::EOPNOTSUPP => {
                        let Ok(descriptor) = self.open_descriptor(target) else { return answer };
                        descriptor
                    }
                    _ => return answer,
                }
            }
            // The kernel supports other levels only on a descriptor, so a temporary one is opened.
            Target::Direct(_) => self.open_descriptor(target)?,
        };
        get_option(fd, level, name, value)
    }

    /// Reads the peer's address by a system call if no request can; returns what the request would.
    pub(super) fn name_peer_of_object(
        &mut self,
        object: Object,
        address: *mut u8,
        bytes: u32,
    ) -> i32 {
        self.ring.system_calls += 1;
        // SAFETY: the trait requires the operation's submitter to keep this memory valid.
        let room = unsafe { std::slice::from_raw_parts_mut(address, bytes as usize) };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERNAME);
        match self.get_socket_option(Target::of(object), level, name, room) {
            Ok(bytes) => bytes as i32,
            Err(error) => -errno(&error),
        }
    }

    /// Reads the address of the peer of a socket that is an entry of the ring's file table.
    pub(super) fn name_peer(&mut self, socket: &Endpoint, value: &mut [u8]) -> io::Result<usize> {
        match socket {
            Endpoint::Direct(direct) => {
                let index = direct.number(&self.discarded)?;
                self.get_direct_option(index, libc::SO_PEERNAME, value)
            }
            _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    fn get_direct_option(&mut self, index: u32, name: i32, value: &mut [u8]) -> io::Result<usize> {
        let mut memory: Box<[u8]> = (&*value).into();
        let (address, bytes) = (memory.as_mut_ptr(), value.len() as u32);
        let entry = entries::get_option(Fd(index as i32), name, address, bytes)
            .flags(squeue::Flags::FIXED_FILE);
        // SAFETY: the entry points to `memory` alone and completes at once.
        let (result, stake) = unsafe { self.run(entry, AbandonedResource::Memory(memory)) }?;
        value.copy_from_slice(&stake.into_memory());
        result_of(result)
    }
}

/// Executes an operation by its system call.
///
/// # Safety
/// The memory that the operation points to is valid for it.
unsafe fn call(fd: i32, operation: &Operation) -> isize {
    // SAFETY: the caller keeps the memory that the operation points to valid.
    unsafe {
        match *operation {
            Operation::Shutdown { how } => libc::shutdown(fd, how) as isize,
            Operation::Sync { data_only: true } => libc::fdatasync(fd) as isize,
            Operation::Sync { data_only: false } => libc::fsync(fd) as isize,
            Operation::Read { address, bytes, offset: NO_OFFSET } => {
                libc::read(fd, address.cast(), bytes as usize)
            }
            Operation::Read { address, bytes, offset } => {
                libc::pread(fd, address.cast(), bytes as usize, offset as libc::off_t)
            }
            Operation::Write { address, bytes, offset: NO_OFFSET } => {
                libc::write(fd, address.cast(), bytes as usize)
            }
            Operation::Write { address, bytes, offset } => {
                libc::pwrite(fd, address.cast(), bytes as usize, offset as libc::off_t)
            }
            Operation::ReadVectored { vector, count, offset: NO_OFFSET } => {
                libc::readv(fd, vector, count as libc::c_int)
            }
            Operation::ReadVectored { vector, count, offset } => {
                libc::preadv(fd, vector, count as libc::c_int, offset as libc::off_t)
            }
            Operation::WriteVectored { vector, count, offset: NO_OFFSET } => {
                libc::writev(fd, vector, count as libc::c_int)
            }
            Operation::WriteVectored { vector, count, offset } => {
                libc::pwritev(fd, vector, count as libc::c_int, offset as libc::off_t)
            }
            // Clears the state of a failed connection attempt.
            Operation::Connect { address, bytes } => libc::connect(fd, address, bytes) as isize,
            // The kernel needs no thread for the other operations.
            _ => libc::fcntl(fd, -1) as isize,
        }
    }
}
