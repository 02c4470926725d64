//! Access logs: what they tell of requests, by format.

mod gor;
pub(crate) mod lines;
pub(crate) mod log;
pub(crate) mod logged;
