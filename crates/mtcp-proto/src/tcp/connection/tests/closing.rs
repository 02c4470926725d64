//! Tests unusual ends of connections.

use super::by_hand::ByHand;
use super::harness::{End, Pair, pattern};
use crate::config::{Config, Options};
use crate::error::Error;
use crate::socket::{Readiness, Shutdown, State};
use crate::wire::tcp::Flags;
use std::time::Duration;

#[test]
fn unread_data_and_late_data_reset_an_abandoned_connection() {
    let mut peer = ByHand::new(Config::default());
    peer.data(&[1; 10]);
    peer.end.close();
    let sent = peer.end.put();
    assert!(sent[0].has(Flags::RST) && sent[0].header.sequence == peer.expected);
    assert_eq!(peer.end.state(), State::Closed);
    assert_eq!(peer.end.pool.used_bytes(), 0);

    let mut peer = ByHand::new(Config::default());
    peer.end.close();
    assert!(peer.end.put()[0].has(Flags::FIN));
    peer.expected += 1;
    peer.acknowledge();
    assert_eq!(peer.end.state(), State::FinWait2);
    let answers = peer.data(&[1; 10]);
    assert!(answers[0].has(Flags::RST));
    assert_eq!((peer.end.state(), peer.end.counters.resets_sent), (State::Closed, 1));
}

#[test]
fn lingering_for_no_time_resets() {
    let options = Options { linger_reset: true, ..Options::default() };
    let mut peer = ByHand::new(Config { options, ..Config::default() });
    peer.end.close();
    assert!(peer.end.put()[0].has(Flags::RST));
}

#[test]
fn a_fin_that_is_lost_is_sent_again_with_the_data_before_it() {
    let mut pair = Pair::new(&Config::default());
    pair.loses = Box::new(|number, _, _| number < 2);
    pair.client.send(&pattern(100));
    pair.client.close();
    let first = pair.client.connection.plan();
    assert!(matches!(first, Some(crate::tcp::due::Plan::Fresh(fresh)) if fresh.fin));
    pair.run();
    assert_eq!(pair.client.state(), State::FinWait2);
    assert_eq!(pair.server.receive_all(), pattern(100));
    assert_eq!(pair.server.state(), State::CloseWait);
}

#[test]
fn fin_wait_2_ends_only_if_nobody_waits() {
    let mut peer = ByHand::new(Config::default());
    let shut = peer.end.with(|connection, context| connection.shut_down(Shutdown::Send, context));
    assert_eq!(shut, Ok(()));
    peer.end.put();
    peer.expected += 1;
    peer.acknowledge();
    assert_eq!((peer.end.state(), peer.end.connection.deadline()), (State::FinWait2, None));
    peer.end.close();
    peer.end.pass(Duration::from_secs(61));
    assert_eq!(peer.end.state(), State::Closed);
}

#[test]
fn a_fin_before_its_data_waits_for_them() {
    let mut peer = ByHand::new(Config::default());
    peer.odd(|seen| {
        seen.header.flags = Flags::ACK.with(Flags::FIN);
        seen.header.sequence += 10;
        seen.data = vec![2; 10];
    });
    assert_eq!(peer.end.state(), State::Established);
    let answers = peer.odd(|seen| seen.data = vec![1; 10]);
    assert_eq!(answers[0].header.acknowledgement, peer.next + 21);
    assert_eq!(peer.end.state(), State::CloseWait);
    assert_eq!(peer.end.receive_all().len(), 20);
    assert!(peer.end.is(Readiness::PEER_CLOSED));
}

#[test]
fn data_before_a_reset_are_received_then_the_error_then_the_end() {
    let mut peer = ByHand::new(Config::default());
    peer.data(&[5; 10]);
    peer.odd(|seen| seen.header.flags = Flags::RST);
    let mut room = [0; 100];
    let mut receive =
        |end: &mut End| end.with(|connection, context| connection.receive(&mut room, context));
    assert_eq!(receive(&mut peer.end), Ok(10));
    assert!(peer.end.is(Readiness::ERROR));
    assert_eq!(receive(&mut peer.end), Err(Error::Reset));
    assert_eq!(receive(&mut peer.end), Ok(0));
    assert!(!peer.end.is(Readiness::ERROR) && peer.end.is(Readiness::CLOSED));
    let sent = peer.end.with(|connection, context| connection.send(b"x", context));
    assert_eq!(sent, Err(Error::Shutdown));
}

#[test]
fn time_wait_answers_a_repeated_fin_and_no_reset() {
    let mut peer = ByHand::new(Config::default());
    peer.end.close();
    peer.end.put();
    peer.expected += 1;
    let fin = peer.segment(Flags::ACK.with(Flags::FIN), &[]);
    peer.end.take(&fin);
    peer.end.put();
    assert_eq!(peer.end.state(), State::TimeWait);
    let before = peer.end.connection.deadline();
    peer.end.pass(Duration::from_secs(20));
    peer.end.take(&fin);
    assert_eq!(peer.end.put().len(), 1);
    assert!(peer.end.connection.deadline() > before, "it waits anew");
    peer.next += 1;
    peer.odd(|seen| seen.header.flags = Flags::RST);
    assert_eq!(peer.end.state(), State::TimeWait, "RFC 1337");
}

#[test]
fn what_comes_after_receiving_was_shut_down_is_received_before_the_end() {
    let mut peer = ByHand::new(Config::default());
    let how = Shutdown::Receive;
    assert_eq!(peer.end.with(|connection, context| connection.shut_down(how, context)), Ok(()));
    for _ in 0..40 {
        peer.data(&[0; 1448]);
    }
    assert_eq!(peer.end.connection.receive.acknowledged, peer.next);
    assert!(peer.end.is(Readiness::READABLE));
    assert_eq!(peer.end.receive_all().len(), 40 * 1448);
    let mut room = [0; 8];
    let end = peer.end.with(|connection, context| connection.receive(&mut room, context));
    assert_eq!(end, Ok(0), "the end, and no waiting");
    assert!(peer.end.is(Readiness::READABLE) && !peer.end.is(Readiness::PEER_CLOSED));
}

#[test]
fn data_after_both_directions_were_shut_down_reset_the_connection() {
    for shutdowns in [&[Shutdown::Both][..], &[Shutdown::Receive, Shutdown::Send]] {
        let mut peer = ByHand::new(Config::default());
        for how in shutdowns {
            let done = peer.end.with(|connection, context| connection.shut_down(*how, context));
            assert_eq!(done, Ok(()));
        }
        assert!(peer.end.put()[0].has(Flags::FIN));
        peer.expected += 1;
        peer.acknowledge();
        let answers = peer.data(&[1; 10]);
        assert!(answers[0].has(Flags::RST));
        assert_eq!(peer.end.state(), State::Closed);
        assert_eq!(peer.end.connection.take_error(), Some(Error::Reset));
    }
}

#[test]
fn a_reset_behind_the_peer_s_end_is_told_to_who_sends() {
    let mut peer = ByHand::new(Config::default());
    let fin = peer.segment(Flags::ACK.with(Flags::FIN), &[]);
    peer.end.take(&fin);
    peer.next += 1;
    peer.odd(|seen| seen.header.flags = Flags::RST);
    assert_eq!(peer.end.state(), State::Closed);
    let mut room = [0; 8];
    let mut receive =
        |end: &mut End| end.with(|connection, context| connection.receive(&mut room, context));
    assert_eq!(receive(&mut peer.end), Ok(0), "the end came first");
    assert!(peer.end.is(Readiness::ERROR), "the error is kept");
    let send = |end: &mut End| end.with(|connection, context| connection.send(b"x", context));
    assert_eq!(send(&mut peer.end), Err(Error::Shutdown), "EPIPE");
    assert!(!peer.end.is(Readiness::ERROR));
    assert_eq!(receive(&mut peer.end), Ok(0));
}

#[test]
fn handshakes_survive_loss_and_end_at_last() {
    let mut client = End::client(Config::default());
    let mut syns = 0;
    while client.state() != State::Closed {
        syns += client.put().len();
        if client.state() == State::SynSent {
            client.wait();
        }
    }
    assert_eq!(syns, 7);
    assert_eq!(client.connection.take_error(), Some(Error::TimedOut));

    for lost in 0..4_usize {
        let mut pair = Pair::opening(&Config::default(), &Config::default());
        pair.loses = Box::new(move |number, _, _| number < lost);
        pair.client.send(&pattern(500));
        pair.run();
        pair.run();
        assert_eq!(pair.server.receive_all(), pattern(500), "after {lost} lost packets");
        assert_eq!(pair.server.state(), State::Established);
    }
}

#[test]
fn no_memory_drops_data_and_loses_none() {
    let mut config = Config { max_buffer_bytes: 12 << 10, ..Config::default() };
    config.options.no_delay = true;
    let mut pair = Pair::new(&config);
    let data = pattern(60_000);
    let (mut sent, mut got) = (0, Vec::new());
    for _ in 0..2000 {
        let rest = &data[sent..];
        let call = pair.client.with(|connection, context| connection.send(rest, context));
        sent += call.unwrap_or(0);
        pair.run();
        assert!(pair.server.pool.used_bytes() <= 12 << 10);
        got.extend(pair.server.receive_all());
        if got.len() == data.len() {
            break;
        }
    }
    assert!(got == data);
}
