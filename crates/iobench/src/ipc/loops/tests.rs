use std::thread;

use ipcload::{Checker, fill};

use super::super::baseline::tests::load;
use super::*;

fn ends<E: LoopEnd>(load: &Load) -> (E, E) {
    let (first, descriptors) = E::create(load).unwrap();
    (first, E::open(load, descriptors).unwrap())
}

/// Waits as the load does.
fn until_done(mut step: impl FnMut() -> Result<bool>) {
    while !step().unwrap() {}
}

/// Exchanges messages, and more in one direction than are under way at once.
fn check<E: LoopEnd + Send>(sizes: &[usize]) {
    for &bytes in sizes {
        let (mut first, mut second) = ends::<E>(&load("ping-pong", bytes));
        let count = (2_000_000 / bytes as u64).clamp(10, 2_000);
        let mut checkers = [Checker::new(bytes), Checker::new(bytes), Checker::new(bytes)];
        let [there, back, one_way] = &mut checkers;
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..20 {
                    until_done(|| second.receive(|message| there.check(message)));
                    until_done(|| second.send(bytes, |message| fill(message, number)));
                }
                for number in 0..count {
                    until_done(|| second.send(bytes, |message| fill(message, number)));
                }
            });
            for number in 0..20 {
                until_done(|| first.send(bytes, |message| fill(message, number)));
                until_done(|| first.receive(|message| back.check(message)));
            }
            (0..count).for_each(|_| until_done(|| first.receive(|message| one_way.check(message))));
        });
        assert_eq!(checkers.map(|checker| checker.faults()), [None, None, None], "{bytes}");
    }
}

#[test]
fn messages_arrive_whole_and_in_order() {
    check::<Cacheline>(&[1, 8]);
    for_pipes::<ShmemPipe<false>>();
    for_pipes::<ShmemPipe<true>>();
    for_pipes::<Vmsplice>();
}

fn for_pipes<E: LoopEnd + Send>() {
    check::<E>(&[1, 64, 65_536, 5_000_000]);
    let (mut first, second) = ends::<E>(&load("ping-pong", 64));
    drop(second);
    let error = first.receive(|_| ()).unwrap_err().to_string();
    assert!(error.contains("closed its end"), "{error}");
}

#[test]
fn a_cache_line_refuses_more_than_it_carries() {
    let error = Cacheline::create(&load("ping-pong", 9)).err().unwrap().to_string();
    assert!(error.contains("8 bytes at most"), "{error}");
}
