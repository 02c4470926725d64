//! Writes the files that a web server under test serves.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use tempfile::TempDir;

use crate::apps::environment::scratch_in;
use crate::client::protocol::pattern::Pattern;
use crate::error::{Context, Result};

/// Space left free on the tmpfs for other users.
const SPARE_BYTES: u64 = 64 << 20;

/// A directory of files, each with the content of its number; removed when dropped.
#[derive(Debug)]
pub(crate) struct FileSet {
    root: TempDir,
    pub(crate) sizes: Vec<u64>,
    /// Whether the files are in memory (tmpfs) or in the temporary directory.
    pub(crate) in_memory: bool,
}

impl FileSet {
    /// Writes the files to tmpfs if it has enough space, else to the temporary directory.
    pub(crate) fn write(sizes: Vec<u64>, pattern: &Pattern) -> Result<FileSet> {
        const REMEDY: &str = "free some space, or set TMPDIR to a directory that has it";
        let total: u64 = sizes.iter().sum();
        let memory = Path::new("/dev/shm");
        let in_memory = room_bytes(memory).is_some_and(|room| room > total + SPARE_BYTES);
        let parent = if in_memory { memory.to_owned() } else { std::env::temp_dir() };
        let action = format!("write {} files into {}", sizes.len(), parent.display());
        let root = scratch_in(&parent, "files").context(action.clone(), REMEDY)?;
        let files = FileSet { root, sizes, in_memory };
        files.fill(pattern).context(action, REMEDY)?;
        Ok(files)
    }

    fn fill(&self, pattern: &Pattern) -> std::io::Result<()> {
        for (number, &size) in (0_u32..).zip(&self.sizes) {
            let path = self.root.path().join(file_name(number));
            let mut file = BufWriter::new(fs::File::create(path)?);
            let mut at = 0;
            while at < size {
                let piece = pattern.piece(number, at);
                let count = piece.len().min((size - at) as usize);
                file.write_all(&piece[..count])?;
                at += count as u64;
            }
            file.flush()?;
        }
        Ok(())
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Returns the mean size of the files.
    pub(crate) fn mean_bytes(&self) -> f64 {
        self.sizes.iter().sum::<u64>() as f64 / self.sizes.len().max(1) as f64
    }
}

/// Returns the name of a file. All names have the same length, so all requests have, too.
pub(crate) fn file_name(number: u32) -> String {
    format!("{number:05}.html")
}

/// Returns the free space of a file system in bytes.
fn room_bytes(path: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(path).ok()?;
    Some(room.f_bavail.saturating_mul(room.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_sizes_and_contents_and_vanish() {
        let pattern = Pattern::new();
        let files = FileSet::write(vec![0, 1, 200_000], &pattern).unwrap();
        let root = files.root().to_owned();
        let read = |number| fs::read(root.join(file_name(number))).unwrap();
        assert_eq!((read(0).len(), read(1).len()), (0, 1));
        let large = read(2);
        assert_eq!(large.len(), 200_000);
        assert_eq!(large[150_000..150_100], pattern.piece(2, 150_000)[..100]);
        drop(files);
        assert!(!root.exists());
    }
}
