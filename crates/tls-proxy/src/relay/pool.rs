//! Buffers for bytes on their way, so that idle connections hold none.

/// Buffers that are kept; each may hold twice what a relay lets wait.
const MOST_KEPT: usize = 64;
const MOST_BYTES: usize = 4 * super::BACKLOG_BYTES;

/// The buffers of a core that nobody uses.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// An empty buffer.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < MOST_KEPT && (1..=MOST_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
