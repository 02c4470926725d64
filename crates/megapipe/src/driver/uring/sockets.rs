//! What needs a socket's own calls: options, second descriptors, single datagrams.

use super::entries::{self, Class};
use super::{Target, UringDriver};
use crate::driver::{Outcome, Output, datagram};
use crate::sys::{check, result_of};
use io_uring::types::{Fd, Fixed};
use io_uring::{opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

impl UringDriver {
    /// Turns "a datagram is there" into the datagram, from position `from` of `sink` on.
    pub(super) fn fetch_datagrams(&mut self, sink: &mut VecDeque<Outcome>, from: usize) {
        for outcome in sink.iter_mut().skip(from).filter(|outcome| outcome.result >= 0) {
            if let Class::Arrival { fd } = super::class_of(&self.classes, outcome.tag) {
                // The free buffers may all be in the kernel's hands; fetching waits its turn then.
                *outcome = datagram::fetch(outcome.tag, fd, self.large.pool());
                self.ring.system_calls += u64::from(!matches!(outcome.output, Output::Starved));
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
                result_of(unsafe { self.run(entry) }?)? as i32
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
                let fixed = Fixed(index);
                let entry =
                    opcode::SetSockOpt::new(fixed, level as u32, name as u32, address, bytes);
                // SAFETY: `value` outlives the call; the entry completes at once.
                result_of(unsafe { self.run(entry.build()) }?)?;
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
        let (address, bytes) = (value.as_mut_ptr(), value.len() as u32);
        let entry = entries::get_option(Fd(index as i32), name, address, bytes)
            .flags(squeue::Flags::FIXED_FILE);
        // SAFETY: `value` outlives the call; the entry completes at once.
        result_of(unsafe { self.run(entry) }?)
    }
}

fn option_of(fd: i32, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut bytes = value.len() as libc::socklen_t;
    // SAFETY: address and length describe `value`.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut bytes) })?;
    Ok(bytes as usize)
}
