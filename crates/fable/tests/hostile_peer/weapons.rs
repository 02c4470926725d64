//! The attacks that a hostile peer can make with the descriptors of an offer.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use fable::Kind;
use fable::transport::Offer;

use super::Script;

/// Offsets at which the transports keep their words and their first messages.
const WORDS: usize = 1024;

/// The descriptors of an offer, and the memory behind them.
pub(crate) struct Weapons {
    descriptors: Vec<OwnedFd>,
    memory: *mut u8,
    memory_bytes: usize,
}

// SAFETY: a mapping is not bound to a thread.
unsafe impl Send for Weapons {}

impl Weapons {
    /// Takes the descriptors, and maps the memory.
    pub(crate) fn new(offer: Offer) -> Weapons {
        let mut weapons = Weapons {
            descriptors: offer.descriptors,
            memory: std::ptr::null_mut(),
            memory_bytes: 0,
        };
        for descriptor in &weapons.descriptors {
            // SAFETY: `stat` is plain data, valid when zeroed; the descriptor is open and owned
            // here.
            let status = unsafe {
                let mut status: libc::stat = std::mem::zeroed();
                libc::fstat(descriptor.as_raw_fd(), &raw mut status);
                status
            };
            if status.st_mode & libc::S_IFMT == libc::S_IFREG {
                weapons.memory_bytes = status.st_size as usize;
                // SAFETY: a new mapping of the whole file.
                let memory = unsafe {
                    libc::mmap(
                        std::ptr::null_mut(),
                        weapons.memory_bytes,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_SHARED,
                        descriptor.as_raw_fd(),
                        0,
                    )
                };
                assert_ne!(memory, libc::MAP_FAILED);
                weapons.memory = memory.cast();
            }
        }
        for descriptor in &weapons.descriptors {
            // A peer can do this at any time; calls that rely on the flag would then block.
            // SAFETY: a plain system call on a descriptor that is owned here.
            unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, 0) };
        }
        weapons
    }

    /// Writes this word to all offsets.
    pub(crate) fn fill_memory(&mut self, word: u64) {
        for place in 0..self.memory_bytes / 8 {
            // SAFETY: the mapping is as long, and aligned to a page.
            unsafe { self.memory.cast::<u64>().add(place).write_volatile(word) };
        }
    }

    /// Makes one attack, which the script chooses.
    pub(crate) fn attack(&mut self, kind: Kind, script: &mut Script<'_>) {
        match script.byte() % 8 {
            0 => self.write_word(script.word(), script),
            1 | 2 => {
                let word = near_valid(kind, script);
                self.write_word(word, script);
            }
            3 => {
                let bytes: Vec<u8> = (0..script.small() % 64).map(|_| script.byte()).collect();
                self.send(&bytes, script);
            }
            4 | 5 => {
                let mut bytes = near_valid(kind, script).to_le_bytes().to_vec();
                bytes.resize(8 + script.small() % 300, 7);
                self.send(&bytes, script);
            }
            6 => self.receive(script),
            _ => match script.byte() {
                255 if !self.descriptors.is_empty() => {
                    let place = usize::from(script.byte()) % self.descriptors.len();
                    self.descriptors.swap_remove(place);
                }
                200..255 => self.fill_memory(near_valid(kind, script)),
                _ => {}
            },
        }
    }

    fn write_word(&mut self, word: u64, script: &mut Script<'_>) {
        if self.memory_bytes == 0 {
            return;
        }
        let anywhere = script.word() as usize % (self.memory_bytes / 8) * 8;
        let offset = match script.byte() % 4 {
            0 => anywhere,
            1 => anywhere % WORDS,
            // The first messages of the rings, behind the page of words.
            2 => (4096 + anywhere % 256) % self.memory_bytes,
            _ => (self.memory_bytes / 2 + 2048 + anywhere % 256) % self.memory_bytes / 8 * 8,
        };
        // SAFETY: the word lies within the mapping and is aligned; other users of the memory access
        // atomics or expect any value.
        unsafe { self.memory.add(offset).cast::<u64>().write_volatile(word) };
    }

    fn pick(&self, script: &mut Script<'_>) -> Option<RawFd> {
        let count = self.descriptors.len();
        let place = usize::from(script.byte()).checked_rem(count)?;
        Some(self.descriptors[place].as_raw_fd())
    }

    fn send(&self, bytes: &[u8], script: &mut Script<'_>) {
        if let Some(descriptor) = self.pick(script)
            && is_ready(descriptor, libc::POLLOUT)
        {
            let piece = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
            // SAFETY: the bytes are valid. A write to a descriptor that does not permit it is
            // refused; a write to the memory itself is an attack that a peer can make.
            unsafe {
                libc::pwritev2(descriptor, &raw const piece, 1, -1, libc::RWF_NOWAIT);
            }
        }
    }

    fn receive(&self, script: &mut Script<'_>) {
        let mut room = [0_u8; 4096];
        if let Some(descriptor) = self.pick(script)
            && is_ready(descriptor, libc::POLLIN)
        {
            // SAFETY: the room is writable for its length.
            unsafe { libc::read(descriptor, room.as_mut_ptr().cast(), room.len()) };
        }
    }
}

impl Drop for Weapons {
    fn drop(&mut self) {
        if self.memory_bytes > 0 {
            // SAFETY: only this value uses the mapping.
            unsafe { libc::munmap(self.memory.cast(), self.memory_bytes) };
        }
    }
}

fn is_ready(descriptor: RawFd, events: i16) -> bool {
    let mut entry = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 && entry.revents & events != 0 }
}

/// Returns a word that this kind of transport might accept.
fn near_valid(kind: Kind, script: &mut Script<'_>) -> u64 {
    let record = match script.byte() % 8 {
        0 => script.byte(),
        choice => choice % 3 + 1,
    };
    let bytes = script.small() as u64;
    let twist = if script.byte().is_multiple_of(8) { 1 << (script.byte() % 64) } else { 0 };
    let word = match kind {
        Kind::MempipeFutex(_) => {
            let units = match script.byte() % 4 {
                0 => script.small() as u64,
                _ => (bytes + 15) / 8,
            };
            let record = if script.byte().is_multiple_of(4) { 0xff } else { u64::from(record) };
            match script.byte() % 4 {
                // A position up to which the peer has read.
                0 => script.small() as u64 & !7,
                _ => bytes | units << 32 | record << 56,
            }
        }
        // A header.
        _ if script.byte().is_multiple_of(4) => bytes,
        _ => bytes | u64::from(record) << 32,
    };
    word ^ twist
}
