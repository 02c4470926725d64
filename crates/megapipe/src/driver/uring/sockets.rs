//! Calls that are made at once: options, second descriptors, single datagrams, and whatever the
//! kernel has no thread for.

use super::objects::Target;
use super::{UringDriver, entries};
use crate::driver::{NO_OFFSET, Operation, Outcome, datagram};
use crate::sys::{check, errno, result_of};
use io_uring::types::{Fd, Fixed};
use io_uring::{opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

impl UringDriver {
    /// Takes the datagram that has been announced. The free buffers may all be in the kernel's
    /// hands; fetching waits for one then.
    pub(super) fn fetch(&mut self, tag: u64, target: Target) -> Outcome {
        self.ring.system_calls += 1;
        let pool = Rc::clone(self.large.pool());
        match self.with_descriptor(target, |fd| datagram::fetch(tag, fd, &pool)) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::plain(tag, -errno(&error)),
        }
    }

    /// Does by a system call what the kernel has no thread for.
    pub(super) fn call(&mut self, target: Target, operation: &Operation) -> i32 {
        self.ring.system_calls += 1;
        // SAFETY: whoever submitted the operation keeps its memory for it, as the trait demands.
        let called = self.with_descriptor(target, |fd| match unsafe { call(fd, operation) } {
            result @ 0.. => result as i32,
            _ => -errno(&io::Error::last_os_error()),
        });
        called.unwrap_or_else(|error| -errno(&error))
    }

    /// Calls `with` with a descriptor of the target's, opened for it if there is none.
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
                result_of(unsafe { self.run(entry, Box::default()) }?.0)? as i32
            }
        };
        // SAFETY: the kernel has just opened this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn set_socket_option(
        &mut self,
        target: Target,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        let (address, bytes) = (value.as_ptr().cast(), value.len() as u32);
        match target {
            Target::Descriptor(fd) => {
                // SAFETY: `address` and `bytes` describe `value`.
                check(unsafe { libc::setsockopt(fd, level, name, address, bytes) })?;
                Ok(())
            }
            Target::Direct(index) => {
                let memory: Box<[u8]> = value.into();
                let (fixed, address) = (Fixed(index), memory.as_ptr().cast());
                let entry =
                    opcode::SetSockOpt::new(fixed, level as u32, name as u32, address, bytes);
                // SAFETY: the entry points to `memory` alone and completes at once.
                result_of(unsafe { self.run(entry.build(), memory) }?.0)?;
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
            Target::Descriptor(fd) => return option_of(fd, level, name, value),
            Target::Direct(index) if level == libc::SOL_SOCKET => {
                return self.get_direct_option(index, name, value);
            }
            // The kernel answers for other levels only on a descriptor; we borrow one.
            Target::Direct(_) => self.open_descriptor(target)?,
        };
        option_of(fd.as_raw_fd(), level, name, value)
    }

    fn get_direct_option(&mut self, index: u32, name: i32, value: &mut [u8]) -> io::Result<usize> {
        let mut memory: Box<[u8]> = (&*value).into();
        let (address, bytes) = (memory.as_mut_ptr(), value.len() as u32);
        let entry = entries::get_option(Fd(index as i32), name, address, bytes)
            .flags(squeue::Flags::FIXED_FILE);
        // SAFETY: the entry points to `memory` alone and completes at once.
        let (result, memory) = unsafe { self.run(entry, memory) }?;
        value.copy_from_slice(&memory);
        result_of(result)
    }
}

/// # Safety
///
/// What the operation points to is valid for it.
unsafe fn call(fd: i32, operation: &Operation) -> isize {
    // SAFETY: as promised by the caller.
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
            Operation::ReadVectored { vector, count, offset } => {
                libc::preadv2(fd, vector, count as libc::c_int, offset as libc::off_t, 0)
            }
            Operation::WriteVectored { vector, count, offset } => {
                libc::pwritev2(fd, vector, count as libc::c_int, offset as libc::off_t, 0)
            }
            // Forgets a connection attempt that has failed.
            Operation::Connect { address, bytes } => libc::connect(fd, address, bytes) as isize,
            // The kernel needs no thread for the others.
            _ => libc::fcntl(fd, -1) as isize,
        }
    }
}

fn option_of(fd: i32, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut bytes = value.len() as libc::socklen_t;
    // SAFETY: address and length describe `value`.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut bytes) })?;
    Ok(bytes as usize)
}
