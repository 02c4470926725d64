//! Tests the headers: each one is the same after writing and parsing, no bytes make a parser panic,
//! and other implementations give the same results.

mod headers;
mod icmp_oracles;
mod ip_oracles;
mod parsers;
mod random;
mod tcp_oracles;

use random::Random;

/// The fuzz target is the longer run.
#[test]
fn no_bytes_make_a_parser_fail() {
    const ROUNDS: u64 = 40_000;
    let makers = [
        random::tcp_packet,
        random::icmp_packet,
        random::ndp_packet,
        random::arp_packet,
        |random: &mut Random| {
            let length = random.below(128);
            random.bytes(length)
        },
    ];
    for round in 0..ROUNDS {
        for (maker, make) in makers.iter().enumerate() {
            let seed = round << 8 | maker as u64;
            let mut random = Random(seed);
            let mut bytes = make(&mut random);
            random::mutate(&mut random, &mut bytes);
            let outcome = std::panic::catch_unwind(|| parsers::check(&bytes));
            assert!(outcome.is_ok(), "seed {seed}: {bytes:02x?}");
        }
    }
}
