//! Real programs on the channel: their distribution's sources, and what we build beside them.

pub(crate) mod edits;
pub(crate) mod memcached;
pub(crate) mod nginx;
pub(crate) mod source;
