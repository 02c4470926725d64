//! Where data and tables lie.

/// All buffers of a stack, in classes of sizes, under one bound.
#[derive(Debug)]
pub(crate) struct BufferPool {}
