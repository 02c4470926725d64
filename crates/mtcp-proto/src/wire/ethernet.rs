//! Ethernet II frames.
