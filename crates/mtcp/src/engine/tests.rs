use crate::config::{Config, Mode};
use crate::start::{Mtcp, StartError};
use crate::stat::StatError;
use std::time::{Duration, Instant};

fn config(address: &str) -> Config {
    let mut config =
        Config { addresses: vec![(address.parse().expect("an address"), 24)], ..Config::default() };
    config.engine.mode = Mode::Complete;
    config.stat.enabled = false;
    config
}

#[test]
fn a_wish_for_figures_in_the_middle_of_a_turn_keeps_an_engine_awake() {
    let pair = Mtcp::pair(config("10.0.0.1"), config("10.0.0.2"), Default::default());
    let (left, _right) = pair.expect("stacks");
    let mut engine = left.engine(0).expect("it is free");
    engine.turn().expect("a device");
    assert_eq!(engine.prepare_to_sleep(None), None, "there is nothing to do");
    engine.receive().expect("a device");
    engine.board.ask(false);
    engine.alarm.call();
    engine.alarm.answer();
    assert_eq!(engine.prepare_to_sleep(None), Some(Duration::ZERO));
    engine.turn().expect("a device");
    assert!(engine.board.wait(Instant::now()).is_some(), "it has answered");
    assert_eq!(engine.prepare_to_sleep(None), None, "there is nothing to do any more");
}

#[test]
fn nobody_waits_for_an_engine_that_has_gone() {
    let pair = Mtcp::pair(config("10.0.0.1"), config("10.0.0.2"), Default::default());
    let (left, _right) = pair.expect("stacks");
    let engine = left.engine(0).expect("it is free");
    let board = std::sync::Arc::clone(&engine.board);
    drop(engine);
    board.ask(false);
    assert!(board.wait(Instant::now() + Duration::from_secs(3600)).is_none());
}

#[test]
fn threads_that_would_keep_their_capabilities_are_not_started() {
    let start = |mode, has_statistics| {
        let thread = std::thread::spawn(move || {
            testkit::bar_call_in_thread(libc::SYS_capset, libc::EPERM);
            let mut left = config("10.0.0.1");
            (left.engine.mode, left.stat.enabled) = (mode, has_statistics);
            let (left, _right) = Mtcp::pair(left, config("10.0.0.2"), Default::default())?;
            left.context(0).map(drop)
        });
        thread.join().expect("no panic")
    };
    // A thread without any capability calls nothing.
    let has_some = testkit::is_root();
    let engine = start(Mode::Paired, false);
    assert_eq!(matches!(engine, Err(StartError::Capabilities(_))), has_some, "{engine:?}");
    let statistics = start(Mode::Complete, true);
    let is_refused = matches!(statistics, Err(StartError::Stat(StatError::Capabilities(_))));
    assert_eq!(is_refused, has_some, "{statistics:?}");
    assert!(start(Mode::Complete, false).is_ok());
}
