//! Pieces of data that travel between the threads.

/// Room of a chunk: two of the largest segments on Ethernet, and as much as a page.
pub(super) const CHUNK_BYTES: usize = 4096;
/// What every chunk counts for besides its bytes.
pub(super) const CHARGE_BYTES: usize = 1024;
/// Free chunks that a side keeps; beyond, their memory goes back.
const KEPT: usize = 4096;

/// Bytes with a beginning that moves as they are used.
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

    /// What a chunk counts for on its way: its bytes, and something for each chunk, so that many
    /// small ones do not take memory without end.
    pub(super) fn charge(&self) -> usize {
        self.end + CHARGE_BYTES
    }

    /// Bytes that were put into it.
    pub(super) fn filled(&self) -> usize {
        self.end
    }

    /// What a chunk to be sent counts for: small ones take memory, too.
    pub(super) fn sending_charge(&self) -> usize {
        self.end.max(CHARGE_BYTES)
    }

    /// The first so many bytes were used.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.start += bytes.min(self.len());
    }

    /// Fills the chunk anew from its beginning; what the filler says is its length.
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

    /// Adds as much as fits; how much that is.
    pub(super) fn append(&mut self, data: &[u8]) -> usize {
        let bytes = data.len().min(self.room.len() - self.end);
        self.room[self.end..self.end + bytes].copy_from_slice(&data[..bytes]);
        self.end += bytes;
        bytes
    }
}

/// The chunks of one side. How many there are is bounded by what connections may have on their way;
/// how many are kept, here.
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

    pub(super) fn give(&mut self, chunk: Chunk) {
        if self.free.len() < KEPT {
            self.free.push(chunk);
        }
    }
}
