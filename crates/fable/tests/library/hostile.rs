//! Tests with hostile peers, which write invalid values into memory, pipes and sockets.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hostile_peer::{Honest, Script, Weapons, play};
use crate::random::Random;
use fable::transport::{self, Offer, PathOptions, Record, Transport};
use fable::{Form, Kind, TransportError};

/// Returns every kind that needs no keys.
fn created_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Tls)
}

fn create(kind: Kind) -> (Box<dyn Transport>, Offer) {
    transport::create(kind, PathOptions { ring_bytes: 16 << 10, ..PathOptions::default() }).unwrap()
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..count).map(|_| random.next() as u8).collect()
}

#[test]
fn a_hostile_peer_harms_nobody_but_itself() {
    let base = u64::from(std::process::id()) << 32;
    eprintln!("seeds from {base}");
    for kind in created_kinds() {
        for round in 0..400 {
            let seed = base + round;
            eprintln!("{kind} {seed}");
            play(kind, &mut Script(&bytes(seed, 4000)));
        }
    }
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = resident.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(pages < 200_000, "{pages} pages are in use after all games");
}

/// Another thread attacks continuously, not only between the calls.
#[test]
fn a_hostile_peer_that_races_harms_nobody_but_itself() {
    let base = u64::from(std::process::id()) << 32 | 1 << 31;
    eprintln!("seeds from {base}");
    for kind in created_kinds() {
        for round in 0..40 {
            let seed = base + round;
            eprintln!("{kind} {seed}");
            race(kind, seed);
        }
    }
}

/// Stops the attacker even if the honest end panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn race(kind: Kind, seed: u64) {
    let (end, offer) = create(kind);
    let mut honest = Honest { end, reading: Vec::new(), writing: Vec::new() };
    let mut weapons = Weapons::new(offer);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let attacks = bytes(seed, 50_000);
            while !stop.load(Ordering::Relaxed) {
                let mut script = Script(&attacks);
                while !script.is_over() && !stop.load(Ordering::Relaxed) {
                    weapons.attack(kind, &mut script);
                }
            }
        });
        let work = bytes(!seed, 6000);
        let mut script = Script(&work);
        while !script.is_over() {
            let choice = script.byte();
            match honest.work(choice, &mut script) {
                Ok(()) | Err(TransportError::TooManySlots { .. }) => {}
                Err(TransportError::Corrupt { .. } | TransportError::Closed) => break,
                Err(error) => panic!("{kind}: {error}"),
            }
        }
    });
}

/// Offers whose descriptors are missing, too many, in the wrong order, or of the wrong type.
#[test]
fn offers_of_the_wrong_descriptors_are_refused() {
    for kind in created_kinds() {
        let count = create(kind).1.descriptors.len();
        let wrong = |descriptors: Vec<OwnedFd>| {
            let opened = transport::open(Offer { kind, descriptors });
            let error = opened.err().unwrap_or_else(|| panic!("{kind} takes anything"));
            assert!(matches!(error, TransportError::BadOffer(_)), "{kind}: {error}");
        };
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        wrong(Vec::new());
        wrong((0..count).map(|_| null()).collect());
        wrong((0..count + 1).map(|_| null()).collect());
        let mut offer = create(kind).1;
        offer.descriptors.push(null());
        wrong(offer.descriptors);
        let mut offer = create(kind).1;
        offer.descriptors.reverse();
        if count > 1 {
            wrong(offer.descriptors);
        }
        let other = if kind == Kind::Unix { Kind::Tcp } else { Kind::Unix };
        if count == 1 {
            wrong(create(other).1.descriptors);
        }
    }
}

/// A ring that consists only of slots returned unused would have no end.
#[test]
fn a_ring_of_unused_places_is_found_out() {
    for kind in created_kinds().filter(|kind| kind.base_name().starts_with("mempipe")) {
        let (mut end, offer) = create(kind);
        Weapons::new(offer).fill_memory(0xff << 56 | 1 << 32);
        let error = end.acquire_read().unwrap_err();
        assert!(matches!(error, TransportError::Corrupt { .. }), "{kind}: {error}");
    }
}

/// Every kind whose messages may be longer than this test's.
fn kinds_for_long_messages() -> impl Iterator<Item = Kind> {
    created_kinds().filter(|&kind| !crate::missing::is_missing(kind))
}

/// Anonymous memory of this process, in bytes: rings do not count, copies of messages do.
fn private_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// A writer that sends more than its reader accepts is refused by each transport.
#[test]
fn a_message_above_the_limit_of_its_reader_is_refused() {
    const LIMIT: usize = 10_000;
    for kind in kinds_for_long_messages() {
        let (mut writer, offer) = transport::create(kind, PathOptions::default()).unwrap();
        let mut reader = transport::open(offer).unwrap();
        reader.limit_reads(LIMIT);
        let mut send = |bytes| {
            let slot = writer.acquire_write(bytes).unwrap().unwrap();
            writer.commit(slot, bytes, Record::Data).unwrap();
            writer.flush().unwrap();
        };
        send(LIMIT);
        let slot = reader.acquire_read().unwrap().expect("a message at the limit");
        assert_eq!(slot.len(), LIMIT, "{kind}");
        reader.release(slot);
        send(LIMIT + 1);
        let error = reader.acquire_read().expect_err("a message above the limit");
        let TransportError::Corrupt { what, .. } = error else { panic!("{kind}: {error}") };
        assert!(what.contains("longer than this end accepts"), "{kind}: {what}");
    }
}

/// The safe form copies messages, so a writer chose how much memory the reader used.
#[test]
fn a_writer_of_huge_messages_does_not_make_its_reader_grow() {
    const BYTES: usize = 60 << 20;
    let kinds = kinds_for_long_messages().filter(|kind| kind.form() == Some(Form::Safe));
    for kind in kinds {
        let options = PathOptions { ring_bytes: 256 << 20, ..PathOptions::default() };
        let (mut writer, offer) = transport::create(kind, options).unwrap();
        let mut reader = transport::open(offer).unwrap();
        reader.limit_reads(128 << 10);
        for _ in 0..3 {
            let slot = writer.acquire_write(BYTES).unwrap().unwrap();
            writer.commit(slot, BYTES, Record::Data).unwrap();
        }
        writer.flush().unwrap();
        let before = private_bytes();
        let mut held = Vec::new();
        while let Ok(Some(slot)) = reader.acquire_read() {
            held.push(slot);
        }
        let grown = private_bytes().saturating_sub(before);
        eprintln!("{kind}: {} messages, {} KiB more", held.len(), grown >> 10);
        assert!(grown < 2 * BYTES / 3, "{kind}: the reader grew by {grown} bytes");
    }
}

/// An end says how large its peer's rings may be, before it maps them.
#[test]
fn rings_above_the_limit_are_refused() {
    let limits = PathOptions { ring_bytes: 2 << 20, ..PathOptions::default() };
    let kinds = kinds_for_long_messages().filter(|kind| kind.shares_memory());
    for kind in kinds {
        let (_end, offer) = transport::create(kind, limits).unwrap();
        transport::open_within(offer, limits).unwrap();
        let larger = PathOptions { ring_bytes: limits.ring_bytes + 1, ..limits };
        let (_end, offer) = transport::create(kind, larger).unwrap();
        let error = transport::open_within(offer, limits).err().expect("rings of 4 MiB");
        assert!(error.to_string().contains("larger than this end accepts"), "{kind}: {error}");
    }
}
