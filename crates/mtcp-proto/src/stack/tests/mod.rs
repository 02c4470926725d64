//! Tests of two stacks, connected by queues of packets, in virtual time.

mod attacks;
mod backlog;
mod ends;
mod events;
mod full;
mod icmp;
mod memory;
mod messages;
mod network;
mod opening;
mod steering;
mod time_wait;

#[test]
fn a_stack_can_be_moved_to_the_thread_that_drives_it() {
    fn is_send<T: Send>() {}
    is_send::<crate::stack::Stack>();
}
