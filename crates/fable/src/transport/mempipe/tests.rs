//! Runs both ends of a path over one mapping.
//!
//! Two ends in one process have a mapping each, so ThreadSanitizer would take their memory for two
//! memories, and would see no race. With one mapping it sees each access of both ends.

use std::thread;

use super::*;

/// Messages in each direction: many laps of the smallest ring.
const MESSAGES: u64 = 5_000;
/// Words of the longest message. Its extent does not divide the ring, so some messages wrap.
const WORDS_MAX: u64 = 7;
/// A limit for a run that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn ends(kind: Kind, spin: Duration, mapping: &Mapping, layout: Layout) -> [Mempipe; 2] {
    let (bell, peer_bell) = UnixDatagram::pair().unwrap();
    let mut side = 0;
    [bell, peer_bell].map(|bell| {
        let owner = Owner::new();
        let copies = kind.form() == Some(Form::Safe);
        // SAFETY: the caller keeps the mapping longer than the ends.
        let (producer, consumer, placement) = unsafe {
            (
                Producer::new(layout.direction(mapping, side), owner),
                Consumer::new(layout.direction(mapping, 1 - side), owner, copies),
                layout.placement(mapping, side),
            )
        };
        side += 1;
        let bell = OwnedFd::from(bell).into();
        Mempipe { producer, consumer, placement, kind, spin, bell, mapping: None }
    })
}

fn words(number: u64) -> u64 {
    1 + number % WORDS_MAX
}

fn write(end: &mut Mempipe, number: u64) -> bool {
    let bytes = words(number) as usize * 8;
    let Some(mut slot) = end.acquire_write(bytes).unwrap() else { return false };
    slot.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_ne_bytes()));
    end.commit(slot, bytes, Record::Data).unwrap();
    true
}

fn read(end: &mut Mempipe, number: u64) -> bool {
    let Some(slot) = end.acquire_read().unwrap() else { return false };
    assert_eq!(slot.len() as u64, words(number) * 8);
    assert!(slot.chunks_exact(8).all(|word| word == number.to_ne_bytes()), "message {number}");
    end.release(slot);
    true
}

/// Writes and reads all messages, and waits whenever it can do neither.
fn converse(end: &mut Mempipe) {
    let (mut written, mut got) = (0, 0);
    while written < MESSAGES || got < MESSAGES {
        let wrote = written < MESSAGES && write(end, written);
        written += u64::from(wrote);
        let has_read = got < MESSAGES && read(end, got);
        got += u64::from(has_read);
        if !wrote && !has_read && got < MESSAGES {
            assert!(end.wait(Direction::Read, Some(TIME_LIMIT)).unwrap(), "no message");
        } else if !wrote && got == MESSAGES && written < MESSAGES {
            assert!(end.wait(Direction::Write, Some(TIME_LIMIT)).unwrap(), "no room");
        }
    }
}

#[test]
fn both_ends_of_one_mapping_exchange_messages() {
    for form in [Form::Safe, Form::Unsafe] {
        for spin in [Duration::ZERO, PathOptions::default().spin, Duration::MAX] {
            let layout = Layout::for_ring(0).unwrap();
            let memory = create_sealed(c"fable-mempipe", layout.file_bytes()).unwrap();
            let mapping = layout.map(memory.as_fd()).unwrap();
            thread::scope(|scope| {
                for mut end in ends(Kind::MempipeFutex(form), spin, &mapping, layout) {
                    scope.spawn(move || converse(&mut end));
                }
            });
        }
    }
}
