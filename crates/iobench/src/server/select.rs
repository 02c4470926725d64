//! select(2): sets are bitmaps up to the highest descriptor, copied in by every call and searched
//! after it. C libraries limit their size to 1,024 descriptors and the kernel does not, so this
//! server has its own bitmaps and makes the system call directly.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use rustix::net::SocketFlags;

use crate::error::{Context, Result};
use crate::server::listener::Listening;
use crate::server::stream::{Next, Stream, accept};
use crate::server::{READ_BUFFER_BYTES, Server, ThreadContext};

/// The server; connections are indexed by descriptor, as usual with select.
pub(crate) struct SelectServer;

impl Server for SelectServer {
    fn name(&self) -> &'static str {
        "select"
    }

    fn describe(&self) -> &'static str {
        "select loop per thread over bitmaps of any size, one listening socket shared by all"
    }

    fn listening(&self) -> Listening {
        Listening::Shared
    }

    fn run_thread(&self, context: &mut ThreadContext<'_>) -> Result<()> {
        let mut wanted = Sets::default();
        wanted.read.insert(context.shared_listener());
        wanted.read.insert(context.stop());
        let buffer = vec![0; READ_BUFFER_BYTES];
        let streams = Vec::new();
        Loop { context, wanted, ready: Sets::default(), streams, buffer }.run()
    }
}

/// A set of descriptors in the kernel's format.
#[derive(Default)]
struct Bitmap(Vec<libc::c_ulong>);

const WORD_BITS: usize = libc::c_ulong::BITS as usize;

impl Bitmap {
    fn insert(&mut self, fd: RawFd) {
        let (word, bit) = place(fd);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    fn remove(&mut self, fd: RawFd) {
        let (word, bit) = place(fd);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    fn contains(&self, fd: RawFd) -> bool {
        let (word, bit) = place(fd);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn copy_from(&mut self, other: &Bitmap, words: usize) {
        self.0.clone_from(&other.0);
        self.0.resize(words, 0);
    }
}

fn place(fd: RawFd) -> (usize, libc::c_ulong) {
    (fd as usize / WORD_BITS, 1 << (fd as usize % WORD_BITS))
}

#[derive(Default)]
struct Sets {
    read: Bitmap,
    write: Bitmap,
}

impl Sets {
    fn words(&self) -> usize {
        self.read.0.len().max(self.write.0.len())
    }

    /// Copies the wanted sets, because the kernel overwrites them with the result.
    fn copy_from(&mut self, wanted: &Sets) {
        let words = wanted.words();
        self.read.copy_from(&wanted.read, words);
        self.write.copy_from(&wanted.write, words);
    }

    /// Waits until a descriptor is ready; the sets then contain the ready ones.
    fn wait(&mut self) -> std::io::Result<()> {
        let bits = (self.words() * WORD_BITS) as libc::c_int;
        // SAFETY: both bitmaps have room for `bits` bits; no exceptions, time-out or signal mask.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pselect6,
                bits,
                self.read.0.as_mut_ptr(),
                self.write.0.as_mut_ptr(),
                null_mut::<libc::c_ulong>(),
                null_mut::<libc::timespec>(),
                null_mut::<libc::c_void>(),
            )
        };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

struct Loop<'a, 'b> {
    context: &'a mut ThreadContext<'b>,
    wanted: Sets,
    ready: Sets,
    /// By descriptor.
    streams: Vec<Option<Stream>>,
    buffer: Vec<u8>,
}

impl Loop<'_, '_> {
    fn run(&mut self) -> Result<()> {
        self.context.ready();
        loop {
            self.context.counters.system_calls += 1;
            self.context.publish();
            self.ready.copy_from(&self.wanted);
            match self.ready.wait() {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                result => result.context("select", "free some memory")?,
            }
            if self.ready.read.contains(self.context.stop()) {
                return Ok(());
            }
            for word in 0..self.ready.words() {
                let mut bits = self.ready.read.0[word] | self.ready.write.0[word];
                while bits != 0 {
                    let fd = (word * WORD_BITS) as RawFd + bits.trailing_zeros() as RawFd;
                    bits &= bits - 1;
                    self.serve(fd);
                }
            }
            // Last, because a new connection may get the number of one that has just ended.
            if self.ready.read.contains(self.context.shared_listener()) {
                self.accept_all()?;
            }
        }
    }

    fn accept_all(&mut self) -> Result<()> {
        let listener = self.context.shared_listener();
        let counters = &mut self.context.counters;
        while let Some(stream) = accept(listener, SocketFlags::NONBLOCK, counters)? {
            let fd = stream.raw();
            self.wanted.read.insert(fd);
            if self.streams.len() <= fd as usize {
                self.streams.resize_with(fd as usize + 1, || None);
            }
            self.streams[fd as usize] = Some(stream);
        }
        Ok(())
    }

    fn serve(&mut self, fd: RawFd) {
        let place = self.streams.get_mut(fd as usize);
        // Neither the listener nor the end is a connection.
        let Some(stream) = place.and_then(Option::as_mut) else { return };
        let (responder, counters) = (self.context.responder, &mut self.context.counters);
        let next = if stream.is_blocked() {
            stream.write(responder, counters)
        } else {
            stream.read(&mut self.buffer, responder, counters)
        };
        let Sets { read, write } = &mut self.wanted;
        match next {
            Next::Read(_) => {
                read.insert(fd);
                write.remove(fd);
            }
            Next::Write => {
                read.remove(fd);
                write.insert(fd);
            }
            Next::End => {
                read.remove(fd);
                write.remove(fd);
                if let Some(stream) = self.streams[fd as usize].take() {
                    stream.close(counters);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_grow_with_the_descriptors() {
        let mut set = Bitmap::default();
        for fd in [3, 63, 64, 1_023, 1_024, 20_000] {
            assert!(!set.contains(fd));
            set.insert(fd);
            assert!(set.contains(fd) && !set.contains(fd + 1));
        }
        set.remove(1_024);
        set.remove(1 << 20);
        assert!(set.contains(1_023) && !set.contains(1_024) && set.contains(20_000));
    }
}
