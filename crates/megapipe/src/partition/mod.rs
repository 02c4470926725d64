//! One listening TCP socket for several channels, each with an accept queue of its own.
//!
//! A connection is queued for the channel that owns the CPU its handshake runs on, so that neither
//! the queue nor the connection is shared between cores (MegaPipe, section 3.4.1; Affinity-Accept).
//!
//! # How
//!
//! Each member gets a *sibling* of the original listener: another socket that listens on the same
//! address, in the same SO_REUSEPORT group, with an accept queue of its own. A classic BPF program
//! on the group (SO_ATTACH_REUSEPORT_CBPF, which needs no privilege) maps the CPU that processes
//! the SYN to the index of a socket: 0 is the original, which keeps the CPUs that no member claims,
//! and the siblings follow in the order in which they began to listen. The kernel moves the last
//! socket into the place of one that stops.
//!
//! # Nothing is lost
//!
//! A socket that stops listening resets what is in its queue and the handshakes that are half done,
//! so no queue is closed while there is a member. A member that leaves hands its queues, with their
//! CPUs, to the member that holds the fewest; they are *loaned* until a later claim takes their
//! CPUs, and then they go to the claimer. A queue without CPUs is kept for what may still arrive in
//! it, and is used again by the next member. Thus there are never more queues than claimed CPUs,
//! and one.
//!
//! Only when the last member leaves are the queues emptied and closed; the original keeps
//! listening. A handshake that is half done then (its SYN answered, its ACK on the way, or held
//! back by TCP_DEFER_ACCEPT), and still is 50 ms later, is reset, unless the sysctl
//! net.ipv4.tcp_migrate_req is 1. So is, during a SYN flood, a handshake by SYN cookie that is
//! half done when the sharing begins or ends, because the kernel notes the flood in another place
//! then.
//!
//! While sockets come and go, the old program and the new number of sockets may not fit for some
//! microseconds; the kernel then spreads by hash, and a connection may land in another queue of
//! the group, but in one that a member accepts from.
//!
//! # Balance
//!
//! If all handshakes run on one CPU, one member gets all connections. Members publish how many they
//! accept, and if the shares become grossly unequal, the program gives the connections of claimed
//! CPUs to the accepting members at random for a while: for a second, and up to 64 s if steering by
//! CPU turns out unequal again each time that it is tried. No member wakes up for that. A change of
//! the members or of their sets ends it. See `balance.rs` for the rule.
//!
//! # Limits
//!
//! The members belong to one process; for several, see [`partition`]. The original stays the
//! application's: it accepts the connections of the remaining CPUs from it, and may close it, but
//! not shutdown(2) it, while there are members. Nor may anything else add sockets to the group,
//! which any process of the same user could by way of SO_REUSEPORT: the kernel does not tell the
//! indices, so they are counted here.

mod balance;
mod error;
mod group;
mod membership;
mod office;
mod options;
mod processes;
mod program;
mod socket;
#[cfg(test)]
mod tests;

pub use error::ListenerError;
pub(crate) use membership::Membership;
pub(crate) use office::{Mail, Office, Queue};
pub use processes::partition;
#[cfg(test)]
pub(crate) use socket::backlog;
