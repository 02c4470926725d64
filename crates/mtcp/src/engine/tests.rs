use crate::config::{Config, Mode};
use crate::start::Mtcp;
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
