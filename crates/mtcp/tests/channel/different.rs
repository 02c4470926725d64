//! What does not hold over the stack as it does over the kernel; `mtcp::driver` has the table.
