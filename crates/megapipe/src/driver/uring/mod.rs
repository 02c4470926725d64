//! The driver over io_uring.
