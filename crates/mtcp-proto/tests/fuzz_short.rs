//! The games of the fuzz targets, played for a short time with bytes that a seed makes.

mod drivers;

use std::panic::{AssertUnwindSafe, catch_unwind};

const GAMES: u64 = 3_000;

/// Plays games until one panics, and says which bytes it was.
fn play_all(game: &str) {
    for seed in 0..GAMES {
        let mut state = seed ^ 0x5eed_5eed_5eed_5eed;
        let bytes: Vec<u8> = (0..64 + seed % 1500)
            .map(|_| {
                // Xorshift (Marsaglia 2003).
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect();
        if catch_unwind(AssertUnwindSafe(|| drivers::play(game, &bytes))).is_err() {
            panic!("{game}, seed {seed}: failed, with the bytes {bytes:?}");
        }
    }
}

#[test]
fn segments_do_no_harm() {
    play_all("segments");
}

#[test]
fn calls_do_no_harm() {
    play_all("calls");
}
