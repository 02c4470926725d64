//! The bytes decide what a hostile peer writes into sockets, pipes and shared heaps, and what the
//! honest end does meanwhile.

#![no_main]

#[path = "../../tests/hostile_peer/mod.rs"]
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

libfuzzer_sys::fuzz_target!(
    init: {
        // As the main function of Rust programs does, which a fuzzer has not: `vmsplice` to a peer
        // that is gone raises it.
        // SAFETY: a plain system call, before there are other threads.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    },
    |bytes: &[u8]| {
        let mut script = Script(bytes);
        let kind = KINDS[usize::from(script.byte()) % KINDS.len()];
        play(kind, &mut script);
    }
);
