//! Defines the errors of sharing a listening socket among channels.

use crate::cpuset::CpuSet;
use std::io;

/// The reason why a listening socket cannot be shared as requested. The listener and its sharing
/// are then unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// The set names no CPU.
    #[error("the listener's set of CPUs is empty: name at least one CPU")]
    NoCpu,
    /// The machine cannot have any of the CPUs. (CPUs that are only offline now are fine.)
    #[error(
        "the CPUs {cpus} do not exist on this machine, whose CPUs are {possible}: name some of \
         those"
    )]
    ImpossibleCpus {
        /// The requested set.
        cpus: Box<CpuSet>,
        /// The content of /sys/devices/system/cpu/possible.
        possible: Box<CpuSet>,
    },
    /// Other channels claim these CPUs.
    #[error(
        "another channel has the CPUs {cpus} of this listener already: give each channel CPUs of \
         its own, or remove them from the other set first"
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
        /// The number of instructions of classic BPF.
        instructions: usize,
    },
    /// The descriptor is not a TCP socket.
    #[error(
        "the listener is no TCP socket, and only those can be shared by CPUs: register a listener \
         of another kind (UNIX, MPTCP, …) with one channel, without CPUs"
    )]
    NotTcp,
    /// The socket does not listen.
    #[error("the socket does not listen: call listen on it before it is shared")]
    NotListening,
    /// The socket is in a SO_REUSEPORT group that the partition has not created.
    #[error(
        "SO_REUSEPORT is set on the listener, so other sockets may share its address in a way \
         that the channels do not know: register a listener without SO_REUSEPORT (and not the \
         one that another process shares); if it is left over from a process that ended, clear it"
    )]
    AlreadyShared,
    /// There are more sockets from earlier calls than sets.
    #[error(
        "{sets} sets of CPUs were named for {sockets} sockets: name one for each, and an empty one \
         for sockets that get no more connections"
    )]
    FewerSets {
        /// The sets.
        sets: usize,
        /// The sockets.
        sockets: usize,
    },
    /// The listener was created under another user id.
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
    /// The listener belongs to another network namespace.
    #[error(
        "the listener belongs to another network namespace than this thread: enter that of the \
         listener, setns(2), before it is shared"
    )]
    OtherNamespace,
    /// The kernel refused a step of the sharing.
    #[error("cannot share the listener ({step}): {source}; {remedy}")]
    Setup {
        /// The step.
        step: &'static str,
        /// The remedy.
        remedy: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ListenerError {
    /// Returns a function for `map_err` that wraps the error of a step.
    pub(super) fn setup(
        step: &'static str,
        remedy: &'static str,
    ) -> impl FnOnce(io::Error) -> ListenerError {
        move |source| ListenerError::Setup { step, remedy, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::assert_texts;

    #[test]
    fn every_error_names_cause_and_remedy() {
        let cpus = || Box::new([3].into_iter().collect::<CpuSet>());
        assert_texts!(ListenerError;
            ListenerError::NoCpu => ListenerError::NoCpu, ["is empty", "name at least one"];
            ListenerError::ImpossibleCpus { .. } => ListenerError::ImpossibleCpus {
                cpus: cpus(), possible: Box::new([0, 1].into_iter().collect()),
            }, ["CPUs 3 do not exist", "0,1", "name some of those"];
            ListenerError::Overlap { .. } => ListenerError::Overlap { cpus: cpus() },
                ["the CPUs 3", "give each channel CPUs of its own"];
            ListenerError::TooIntricate { .. } =>
                ListenerError::TooIntricate { instructions: 5000 },
                ["5000 instructions", "4096", "let fewer sets share a CPU"];
            ListenerError::NotTcp => ListenerError::NotTcp, ["is no TCP socket", "without CPUs"];
            ListenerError::NotListening => ListenerError::NotListening, ["call listen on it"];
            ListenerError::AlreadyShared => ListenerError::AlreadyShared,
                ["SO_REUSEPORT is set", "without SO_REUSEPORT"];
            ListenerError::FewerSets { .. } => ListenerError::FewerSets { sets: 1, sockets: 2 },
                ["1 sets", "2 sockets", "name one for each"];
            ListenerError::OtherUser { .. } => ListenerError::OtherUser { owner: 0, user: 33 },
                ["the user 0", "to 33", "before the process changes its user"];
            ListenerError::OtherNamespace => ListenerError::OtherNamespace,
                ["another network namespace", "setns(2)"];
            ListenerError::Setup { .. } => ListenerError::Setup {
                step: "socket", remedy: "raise the limit", source: io::Error::other("none left"),
            }, ["cannot share the listener (socket): none left; raise the limit"];
        );
    }
}
