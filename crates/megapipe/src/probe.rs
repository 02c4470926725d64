//! What the kernel offers a channel, found by trying.
