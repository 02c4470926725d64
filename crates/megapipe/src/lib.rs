//! The channel of MegaPipe.
