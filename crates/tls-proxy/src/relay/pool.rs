//! Implements a pool of buffers for bytes in flight, so that idle connections hold none.

/// Most unused buffers; each may hold twice the bytes that a relay lets wait.
const MOST_KEPT: usize = 64;
const MOST_BYTES: usize = 4 * super::BACKLOG_BYTES;

/// The unused buffers of a core.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// Takes an empty buffer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < MOST_KEPT && (1..=MOST_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
