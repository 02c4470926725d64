//! Real programs on the channel: their distribution's sources, and what we build beside them.

pub(crate) mod nginx;
pub(crate) mod source;
