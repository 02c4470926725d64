//! Peers that write what they must not, into memory, pipes and sockets.

mod hostile_peer;
#[path = "common/random.rs"]
mod random;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use fable::transport::{self, Offer, PathOptions, Transport};
use fable::{Kind, TransportError};
use hostile_peer::{Honest, Script, Weapons, play};
use random::Random;

/// Every kind that needs no keys.
fn created_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Tls)
}

fn create(kind: Kind) -> (Box<dyn Transport>, Offer) {
    transport::create(kind, PathOptions { ring_bytes: 16 << 10 }).unwrap()
}

/// Ends what hangs, by a signal that kills.
fn guard() {
    // SAFETY: plain system call.
    unsafe { libc::alarm(180) };
}

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..count).map(|_| random.next() as u8).collect()
}

#[test]
fn a_hostile_peer_harms_nobody_but_itself() {
    guard();
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

/// Another thread attacks all the time, not only between the calls.
#[test]
fn a_hostile_peer_that_races_harms_nobody_but_itself() {
    guard();
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

/// Stops the attacker also when the honest end panics.
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

/// Offers with descriptors that are missing, too many, in the wrong order, or of the wrong sort.
#[test]
fn offers_of_the_wrong_descriptors_are_refused() {
    guard();
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

/// A ring in which everything says that it is a place given back unused has no end.
#[test]
fn a_ring_of_unused_places_is_found_out() {
    guard();
    for kind in created_kinds().filter(|kind| kind.base_name().starts_with("mempipe")) {
        let (mut end, offer) = create(kind);
        Weapons::new(offer).fill_memory(0xff << 56 | 1 << 32);
        let error = end.acquire_read().unwrap_err();
        assert!(matches!(error, TransportError::Corrupt { .. }), "{kind}: {error}");
    }
}
