//! The measuring engine, which all measuring commands share.

pub(crate) mod autocorrelation;
pub(crate) mod environment;
pub(crate) mod order;
pub(crate) mod outcome;
pub(crate) mod placement;
pub(crate) mod point;
pub(crate) mod progress;
pub(crate) mod rounds;
pub(crate) mod sampler;
pub(crate) mod slices;
pub(crate) mod statistics;
pub(crate) mod whole_file;
