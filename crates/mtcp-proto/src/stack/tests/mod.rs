//! Two stacks, joined by queues of packets, in virtual time.

mod attacks;
mod backlog;
mod ends;
mod events;
mod icmp;
mod network;
mod opening;
mod steering;
mod time_wait;
