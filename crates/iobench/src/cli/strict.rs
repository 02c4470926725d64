//! What the exit status says of a result that is not valid.

use clap::Args;

/// The option of every command that measures.
#[derive(Debug, Args)]
pub(crate) struct Strictness {
    /// End with status 2 if a result is not valid, for scripts [default: say so, with status 0]
    #[arg(long)]
    pub(crate) strict: bool,
}
