//! A hostile peer, which uses every descriptor that it has in arbitrary ways, and an honest end
//! that works meanwhile. Input bytes decide what both do, so a seed or a fuzzer can drive them.

mod weapons;

use fable::transport::{
    self, Direction, PathOptions, ReadSlot, Record, Transport, WaitMethod, WriteSlot,
};
use fable::{Kind, TransportError};

pub(crate) use weapons::Weapons;

/// Small, so that rings wrap and heaps fill within one run.
const OPTIONS: PathOptions = PathOptions { ring_bytes: 16 << 10, spin: std::time::Duration::ZERO };

/// Longer runs find nothing more.
const MOVES_MAX: usize = 400;

/// Reads the input bytes as choices; zeros after their end.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl Script<'_> {
    /// Returns whether the input is used up.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Returns the next eight bytes as a word.
    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number up to 2^16; small ones are more frequent.
    pub(crate) fn small(&mut self) -> usize {
        let shift = self.byte() % 17;
        (usize::from(u16::from_le_bytes([self.byte(), self.byte()]))) & ((1 << shift) - 1)
    }
}

/// Runs one attack on a new path of this kind. The honest end must either return an error about its
/// peer, or messages within bounds.
pub(crate) fn play(kind: Kind, script: &mut Script<'_>) {
    let (end, offer) = transport::create(kind, OPTIONS).expect("a path can be made");
    let mut weapons = Weapons::new(offer);
    let mut honest = Honest { end, reading: Vec::new(), writing: Vec::new() };
    for _ in 0..MOVES_MAX {
        if script.is_over() {
            break;
        }
        let choice = script.byte();
        if choice.is_multiple_of(2) {
            weapons.attack(kind, script);
        } else if let Err(error) = honest.work(choice / 2, script) {
            check(kind, &error);
            if !matches!(error, TransportError::TooManySlots { .. }) {
                break;
            }
        }
    }
    // After any error, every call must still be safe.
    for choice in 0..8 {
        if let Err(error) = honest.work(choice, &mut Script(&[200, 1, 7])) {
            check(kind, &error);
        }
    }
}

/// Checks that a peer can cause this error; `System` would be a bug of this library.
fn check(kind: Kind, error: &TransportError) {
    let is_expected = matches!(
        error,
        TransportError::Corrupt { .. }
            | TransportError::Closed
            | TransportError::TooManySlots { .. }
    );
    assert!(is_expected, "{kind}: {error}");
}

/// The end under attack.
pub(crate) struct Honest {
    pub(crate) end: Box<dyn Transport>,
    pub(crate) reading: Vec<ReadSlot>,
    pub(crate) writing: Vec<WriteSlot>,
}

impl Drop for Honest {
    /// A transport leaks the memory of slots that outlive it, and fuzzers report leaks. So slots
    /// are returned first.
    fn drop(&mut self) {
        self.reading.drain(..).for_each(|slot| self.end.release(slot));
        self.writing.drain(..).for_each(|slot| self.end.abandon(slot));
    }
}

impl Honest {
    /// Makes one call, which the script chooses.
    pub(crate) fn work(
        &mut self,
        choice: u8,
        script: &mut Script<'_>,
    ) -> Result<(), TransportError> {
        let end = &mut *self.end;
        match choice % 8 {
            0..=2 => {
                if let Some(slot) = end.acquire_read()? {
                    assert!(slot.len() <= end.message_bytes_max());
                    look_at(&slot);
                    self.reading.push(slot);
                }
            }
            3 => {
                let bytes = script.small() % (end.message_bytes_max() + 1);
                if let Some(mut slot) = end.acquire_write(bytes)? {
                    assert_eq!(slot.len(), bytes);
                    slot.fill(0x55);
                    self.writing.push(slot);
                }
            }
            4 => {
                if let Some(slot) = take(&mut self.writing, script.byte()) {
                    end.commit(slot, script.small(), Record::Data)?;
                }
            }
            5 => {
                if let Some(slot) = take(&mut self.reading, script.byte()) {
                    look_at(&slot);
                    end.release(slot);
                } else if let Some(slot) = take(&mut self.writing, script.byte()) {
                    end.abandon(slot);
                }
            }
            6 => {
                end.set_batch(u32::from(script.byte() % 4));
                end.flush()?;
            }
            _ => {
                let direction = if script.byte().is_multiple_of(2) {
                    Direction::Read
                } else {
                    Direction::Write
                };
                end.prepare_wait(direction, WaitMethod::Descriptor)?;
                end.end_wait(direction);
                end.wait(direction, Some(std::time::Duration::ZERO))?;
            }
        }
        Ok(())
    }
}

fn take<T>(slots: &mut Vec<T>, choice: u8) -> Option<T> {
    match slots.len() {
        0 => None,
        count => Some(slots.swap_remove(usize::from(choice) % count)),
    }
}

/// Reads each byte of the slot, so that unmapped memory would crash.
fn look_at(slot: &ReadSlot) {
    for byte in slot.iter() {
        std::hint::black_box(*byte);
    }
}
