//! The measuring engine, which all commands share.

pub(crate) mod congestion;
pub(crate) mod environment;
pub(crate) mod order;
pub(crate) mod outcome;
pub(crate) mod placement;
pub(crate) mod progress;
pub(crate) mod statistics;
pub(crate) mod table;
pub(crate) mod whole_file;
