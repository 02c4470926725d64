//! The bytes decide what a hostile peer writes into rings and into a cache line, and what the
//! honest end does meanwhile.

#![no_main]

#[path = "../../tests/hostile_peer/mod.rs"]
mod hostile_peer;

use fable::{Form, Kind};
use hostile_peer::{Script, play};

const KINDS: [Kind; 5] = [
    Kind::MempipeFutex(Form::Unsafe),
    Kind::MempipeFutex(Form::Safe),
    Kind::MempipeSpin(Form::Unsafe),
    Kind::MempipeSpin(Form::Safe),
    Kind::Cacheline,
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let kind = KINDS[usize::from(script.byte()) % KINDS.len()];
    play(kind, &mut script);
});
