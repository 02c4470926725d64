//! Tests the sockets of a context over two stacks in this process that are joined by memory.

mod cores;
mod ended;
mod ends;
mod epoll;
mod families;
mod looped;
mod pair;
mod records;
mod shutdown;
mod streams;
