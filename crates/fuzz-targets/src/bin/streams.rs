//! Fuzzes sockets, pipes and shared heaps: the input bytes select what a hostile peer writes into
//! them, and which calls the honest end makes meanwhile.

#![cfg_attr(fuzzing, no_main)]

#[path = "../../../fable/tests/hostile_peer/mod.rs"]
mod hostile_peer;

use fable::{Form, Kind};
use hostile_peer::{Script, play};

const KINDS: [Kind; 5] = [
    Kind::Unix,
    Kind::Pipe,
    Kind::VmspliceCoop,
    Kind::ShmemPipe(Form::Unsafe),
    Kind::ShmemPipe(Form::Safe),
];

fuzz_targets::target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let kind = KINDS[usize::from(script.byte()) % KINDS.len()];
    play(kind, &mut script);
});
