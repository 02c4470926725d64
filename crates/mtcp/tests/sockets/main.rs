//! The sockets of a context: over two stacks in this process that are joined by memory.

mod cores;
mod ends;
mod epoll;
mod families;
mod pair;
mod streams;
