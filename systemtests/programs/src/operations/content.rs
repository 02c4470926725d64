//! Generates bytes that differ along a file, so that a misplaced piece is detected.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The period of the bytes: a prime, so no power of two is a multiple of it.
const PERIOD: usize = 65_521;

fn block() -> Vec<u8> {
    (0..PERIOD).map(|at| (at / 251 + at * 7) as u8).collect()
}

/// Content of `bytes` bytes.
pub(crate) fn content(bytes: usize) -> Vec<u8> {
    let mut all = block().repeat(bytes.div_ceil(PERIOD));
    all.truncate(bytes);
    all
}

/// A sparse file with marks at irregular offsets, so that it needs little disk space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sparse {
    pub(crate) bytes: u64,
}

/// Distance between marks in bytes, on average.
const DISTANCE: u64 = 4 << 20;
const MARK: usize = 5_000;
const CHUNK: usize = 1 << 20;

impl Sparse {
    fn mark(at: u64) -> Vec<u8> {
        content(MARK + at as usize % PERIOD).split_off(at as usize % PERIOD)
    }

    /// Returns the offsets of the marks.
    fn places(self) -> impl Iterator<Item = u64> {
        let place = |number: u64| number * DISTANCE + number * 4_099;
        (0..).map(place).take_while(move |at| at + (MARK as u64) <= self.bytes)
    }

    /// Writes the file.
    pub(crate) fn write(self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.bytes)?;
        for at in self.places() {
            file.seek(SeekFrom::Start(at))?;
            file.write_all(&Sparse::mark(at))?;
        }
        Ok(())
    }

    /// Reads the content from a stream; an error if it ends early or a byte is wrong.
    pub(crate) fn check(self, stream: &mut impl Read) -> io::Result<()> {
        let (mut got, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut offset = 0;
        while offset < self.bytes {
            let length = CHUNK.min((self.bytes - offset) as usize);
            stream.read_exact(&mut got[..length]).map_err(|error| {
                let what = format!("{error} in the megabyte at {offset} of {}", self.bytes);
                io::Error::new(error.kind(), what)
            })?;
            self.fill(offset, &mut expected[..length]);
            if got[..length] != expected[..length] {
                let what = format!("wrong bytes in the megabyte at {offset} of {}", self.bytes);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            offset += length as u64;
        }
        Ok(())
    }

    /// The content of the file from an offset on.
    fn fill(self, offset: u64, part: &mut [u8]) {
        part.fill(0);
        let end = offset + part.len() as u64;
        let near = self.places().skip_while(|at| at + (MARK as u64) <= offset);
        for at in near.take_while(|&at| at < end) {
            let mark = Sparse::mark(at);
            let (from, to) = (at.max(offset), (at + MARK as u64).min(end));
            let place = (from - offset) as usize..(to - offset) as usize;
            part[place].copy_from_slice(&mark[(from - at) as usize..(to - at) as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_is_what_it_says_and_another_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let sparse = Sparse { bytes: (9 << 20) + 77 };
        sparse.write(&path).unwrap();
        sparse.check(&mut File::open(&path).unwrap()).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(sparse.places().count(), 3);
        bytes[(8 << 20) + 2 * 4_099 + 4_999] ^= 1;
        let error = sparse.check(&mut bytes.as_slice()).unwrap_err();
        assert!(error.to_string().contains("wrong bytes in the megabyte at 8388608"), "{error}");
        let error = sparse.check(&mut &bytes[..5 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn content_differs_at_powers_of_two() {
        let bytes = content(1 << 20);
        assert_eq!(bytes.len(), 1 << 20);
        assert_ne!(bytes[..1000], bytes[65_536..66_536]);
    }
}
