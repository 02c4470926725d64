//! Shares one listening TCP socket among several channels, each with an accept queue of its own.
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
//! # No connection is lost
//!
//! A socket that stops listening resets the connections in its queue and the half-open handshakes,
//! so no queue is closed while there is a member. A member that leaves hands its queues, with their
//! CPUs, to the member that holds the fewest. The queues are *loaned* until a later claim takes
//! their CPUs; then they go to the claimer. A queue without CPUs is kept for connections that may
//! still arrive in it, and the next member uses it again. Thus there is at most one more queue than
//! claimed CPUs.
//!
//! The original has a queue as well, with connections from before the members joined. More arrive
//! in it even if members have claimed all CPUs: a handshake ends in the queue in which it began. So
//! a member *holds* the original as long as the members' queues have all CPUs that were online when
//! the group began. While another CPU is left to it, the application has to accept from it anyway.
//!
//! Only when the last member leaves are the queues emptied and closed; the original keeps
//! listening. A handshake that is half-open then (its SYN answered, its ACK on the way, or held
//! back by TCP_DEFER_ACCEPT), and still is 50 ms later, is reset, unless the sysctl
//! net.ipv4.tcp_migrate_req is 1. During a SYN flood this also resets a handshake by SYN cookie
//! that is half-open when the sharing begins or ends, because the kernel then notes the flood in
//! another place.
//!
//! While sockets are added or removed, the old program and the new number of sockets may not match
//! for some microseconds. The kernel then distributes by hash, and a connection may land in another
//! queue of the group, the original's included.
//!
//! # Balance
//!
//! If all handshakes run on one CPU, one member gets all connections. Members publish how many they
//! accept. If the numbers become very unequal, the program gives the connections of claimed CPUs to
//! the accepting members at random for a while: for one second, and for up to 64 s if steering by
//! CPU is unequal again each time that it is tried. No member wakes up for that. A member that
//! joins or leaves ends it. See `balance.rs` for the rule.
//!
//! # Limits
//!
//! The members belong to one process; for several processes, see [`partition`]. The application
//! keeps the original: it accepts the connections of the remaining CPUs from it, and may close it.
//! A member that holds it accepts beside the application, and the epoll driver sets its O_NONBLOCK.
//! While there are members, it must not shutdown(2) it. Nor may anything else add sockets to the
//! group, which any process of the same user could do by SO_REUSEPORT: the kernel does not report
//! the indices, so this module counts them.

mod balance;
mod error;
mod group;
mod mailbox;
mod membership;
mod options;
mod processes;
mod program;
mod socket;
#[cfg(test)]
mod tests;

pub use error::ListenerError;
pub(crate) use mailbox::{Mailbox, Queue, QueueChange};
pub(crate) use membership::Membership;
pub use processes::partition;
#[cfg(test)]
pub(crate) use socket::backlog;
