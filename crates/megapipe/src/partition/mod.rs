//! One listening socket for several channels.

/// Why a listening socket cannot be shared as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// The set names no CPU.
    #[error("the set of CPUs is empty: name at least one")]
    NoCpu,
}
