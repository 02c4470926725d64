//! Restricts a ring to the requests and register calls that the driver uses after set-up
//! (`IORING_REGISTER_RESTRICTIONS`, Linux 5.10).
//!
//! The kernel answers everything else with `EACCES`. So an attacker who can write to the submission
//! queue or enter the ring cannot make the kernel open, rename or delete files by it, add buffers
//! or credentials to it, or send messages to other rings. Requests do not pass the process's
//! seccomp filter; these lists take its place. They name operations, not arguments: the ring still
//! reads and writes the descriptors of the process and opens sockets.
//!
//! The lists are for all features and kernels. Debug builds check each request and register call
//! against them on every kernel, and a test compares [`OPERATIONS`] with what
//! [`attempts`](super::attempts) tries.

use io_uring::register::{Probe, Restriction};
use io_uring::{Submitter, opcode, squeue};
use std::io;

/// The operations of the driver's requests. `Accept` is also the multishot one, and likewise
/// `PollAdd`, `Recv` and `RecvMsg`.
pub(super) const OPERATIONS: &[u8] = &[
    opcode::Accept::CODE,
    opcode::AsyncCancel2::CODE,
    opcode::Close::CODE,
    opcode::Connect::CODE,
    opcode::FixedFdInstall::CODE,
    opcode::Fsync::CODE,
    opcode::PollAdd::CODE,
    opcode::Read::CODE,
    opcode::Readv::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    // Commands of files: getsockopt(2) and setsockopt(2).
    opcode::SetSockOpt::CODE,
    opcode::Shutdown::CODE,
    opcode::Socket::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
];

/// The flags of the driver's requests; only [`attempts`](super::attempts) links some.
pub(super) const FLAGS: squeue::Flags = squeue::Flags::FIXED_FILE
    .union(squeue::Flags::BUFFER_SELECT)
    .union(squeue::Flags::SKIP_SUCCESS)
    .union(squeue::Flags::IO_LINK);

pub(super) const UNREGISTER_FILES: u32 = 3;
pub(super) const UNREGISTER_RING_FDS: u32 = 21;

/// The register calls on a ring that has been set up.
pub(super) const REGISTER_CALLS: &[u32] = &[UNREGISTER_FILES, UNREGISTER_RING_FDS];

/// Registers the restrictions on a ring that is not enabled yet. They apply when it is.
///
/// # Errors
/// Those of io_uring_register(2); the ring then has no restrictions.
pub(super) fn register(submitter: &Submitter<'_>) -> io::Result<()> {
    // The kernel refuses a list with an operation that it does not know.
    let mut known = Probe::new();
    submitter.register_probe(&mut known)?;
    let operations = OPERATIONS.iter().filter(|operation| known.is_supported(**operation));
    let mut list: Vec<Restriction> = operations.map(|code| Restriction::sqe_op(*code)).collect();
    list.extend(REGISTER_CALLS.iter().map(|call| Restriction::register_op(*call as u8)));
    list.push(Restriction::sqe_flags_allowed(FLAGS.bits()));
    submitter.register_restrictions(&mut list)
}

/// Offset of the flags in `struct io_uring_sqe`.
const FLAGS_AT: usize = 1;

/// Returns whether a restricted ring takes the request.
pub(super) fn permit(entry: &squeue::Entry) -> bool {
    let is_listed = OPERATIONS.iter().any(|operation| u32::from(*operation) == entry.get_opcode());
    // SAFETY: the entry is a `struct io_uring_sqe`, in which this byte has the flags.
    let flags = unsafe { std::ptr::from_ref(entry).cast::<u8>().add(FLAGS_AT).read() };
    is_listed && flags & !FLAGS.bits() == 0
}
