//! The driver over epoll(7) and non-blocking calls.
