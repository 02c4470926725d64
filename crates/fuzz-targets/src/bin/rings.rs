//! Fuzzes rings and the cache-line transport: the input bytes select what a hostile peer writes
//! into the shared memory, and which calls the honest end makes meanwhile.

#![cfg_attr(fuzzing, no_main)]

#[path = "../../../fable/tests/hostile_peer/mod.rs"]
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

fuzz_targets::target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let kind = KINDS[usize::from(script.byte()) % KINDS.len()];
    play(kind, &mut script);
});
