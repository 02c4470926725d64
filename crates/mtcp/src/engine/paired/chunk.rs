//! Implements chunks of data, which travel between the threads.

/// Bytes of a chunk: two of the largest segments on Ethernet, and the size of a page.
pub(super) const CHUNK_BYTES: usize = 4096;
/// Bytes that each chunk counts for in addition to its data.
pub(super) const CHARGE_BYTES: usize = 1024;
/// Most free chunks that a side keeps; the memory of others is freed.
const KEPT: usize = 4096;

/// Bytes whose start advances as they are consumed.
#[derive(Debug)]
pub(super) struct Chunk {
    room: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Chunk {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[self.start..self.end]
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The number of bytes that a chunk in flight counts for: its data, and a fixed amount, so that
    /// many small chunks cannot take unbounded memory.
    pub(super) fn charge(&self) -> usize {
        self.end + CHARGE_BYTES
    }

    /// The number of bytes that were put into it.
    pub(super) fn filled(&self) -> usize {
        self.end
    }

    /// The number of bytes that a chunk to send counts for; small ones take memory too.
    pub(super) fn sending_charge(&self) -> usize {
        self.end.max(CHARGE_BYTES)
    }

    /// Records that the first `bytes` bytes were used.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes.min(self.len());
    }

    /// Fills the chunk from its beginning; `filler` returns its length.
    pub(super) fn fill<E>(
        &mut self,
        filler: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.start = 0;
        self.end = 0;
        let bytes = filler(&mut self.room)?;
        self.end = bytes.min(self.room.len());
        Ok(self.end)
    }

    /// Appends as much of the data as fits; returns the number of bytes.
    pub(super) fn append(&mut self, data: &[u8]) -> usize {
        let bytes = data.len().min(self.room.len() - self.end);
        self.room[self.end..self.end + bytes].copy_from_slice(&data[..bytes]);
        self.end += bytes;
        bytes
    }
}

/// The chunks of one side. The window of each connection limits how many are in flight; this type
/// limits how many are kept.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    free: Vec<Chunk>,
}

impl Chunks {
    /// An empty chunk.
    pub(super) fn take(&mut self) -> Chunk {
        let new = || Chunk { room: vec![0; CHUNK_BYTES].into_boxed_slice(), start: 0, end: 0 };
        let mut chunk = self.free.pop().unwrap_or_else(new);
        chunk.start = 0;
        chunk.end = 0;
        chunk
    }

    /// Takes back a chunk, and keeps or frees it.
    pub(super) fn deliver(&mut self, chunk: Chunk) {
        if self.free.len() < KEPT {
            self.free.push(chunk);
        }
    }
}
