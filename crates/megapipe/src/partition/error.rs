//! Why a listening socket cannot be shared among channels.

use crate::cpuset::CpuSet;
use std::io;

/// Why a listening socket cannot be shared as asked. The listener and its sharing are then as
/// before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// The set names no CPU.
    #[error("the set of CPUs is empty: name at least one")]
    NoCpu,
    /// The machine cannot have any of the CPUs. (CPUs that are only offline now are fine.)
    #[error("the CPUs {cpus} cannot exist on this machine, whose CPUs are {possible}: name those")]
    ImpossibleCpus {
        /// The set asked for.
        cpus: Box<CpuSet>,
        /// What /sys/devices/system/cpu/possible says.
        possible: Box<CpuSet>,
    },
    /// Other channels have these CPUs.
    #[error(
        "the CPUs {cpus} of this listener are another channel's already: give each channel \
         CPUs of its own, or take them out of the other's set first"
    )]
    Overlap {
        /// The CPUs that are in both sets.
        cpus: Box<CpuSet>,
    },
    /// The sets of CPUs overlap in too many ways.
    #[error(
        "the program for these sets of CPUs has {instructions} instructions, but the kernel takes \
         4096: let fewer sets share a CPU"
    )]
    TooIntricate {
        /// Of classic BPF.
        instructions: usize,
    },
    /// The descriptor is no TCP socket.
    #[error(
        "only TCP sockets can be shared by CPUs: register a listener of another kind (UNIX, \
         MPTCP, …) with one channel, without CPUs"
    )]
    NotTcp,
    /// The socket does not listen.
    #[error("the socket does not listen: call listen on it before it is shared")]
    NotListening,
    /// The socket is in a SO_REUSEPORT group that the partition has not made.
    #[error(
        "SO_REUSEPORT is set on the listener, so other sockets may share its address in a way \
         that the channels do not know: register a listener without SO_REUSEPORT (and not the \
         one that another process shares); if it is left over from a process that ended, clear it"
    )]
    AlreadyShared,
    /// There are more sockets from earlier calls than sets.
    #[error(
        "{sets} sets of CPUs for {sockets} sockets: name a set for each, an empty one for those \
         that shall get no more connections"
    )]
    FewerSets {
        /// The sets.
        sets: usize,
        /// The sockets.
        sockets: usize,
    },
    /// The listener was made under another user id.
    #[error(
        "the listener belongs to the user {owner}, but this thread's sockets to {user}, and the \
         kernel shares an address only among one user's sockets: share the listener before the \
         process changes its user, or open it afterwards"
    )]
    OtherUser {
        /// The user id of the listener.
        owner: u32,
        /// The user id of the sockets that this thread creates.
        user: u32,
    },
    /// The listener lives in another network namespace.
    #[error(
        "the listener belongs to another network namespace than this thread: enter that of the \
         listener, setns(2), before it is shared"
    )]
    OtherNamespace,
    /// The kernel refused a step of the sharing.
    #[error("cannot share the listener ({step}): {source}; {remedy}")]
    Setup {
        /// What was being done.
        step: &'static str,
        /// What would help.
        remedy: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl ListenerError {
    /// For `map_err`: wraps the error of a step.
    pub(super) fn setup(
        step: &'static str,
        remedy: &'static str,
    ) -> impl FnOnce(io::Error) -> ListenerError {
        move |source| ListenerError::Setup { step, remedy, source }
    }
}
