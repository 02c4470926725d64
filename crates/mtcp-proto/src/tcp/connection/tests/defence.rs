//! Tests RFC 5961, PAWS, ICMP, and segments that do not belong to the connection.

use super::by_hand::ByHand;
use super::harness::End;
use crate::config::Config;
use crate::error::Error;
use crate::socket::{Readiness, State};
use crate::tcp::Failure;
use crate::wire::tcp::{Flags, Timestamps};
use std::time::Duration;

#[test]
fn only_an_exact_reset_ends_a_connection() {
    let mut peer = ByHand::new(Config::default());
    let answers = peer.odd(|reset| {
        reset.header.flags = Flags::RST;
        reset.header.sequence += 1;
    });
    assert_eq!(answers.len(), 1, "a challenge");
    assert_eq!(answers[0].header.flags, Flags::ACK);
    assert_eq!(answers[0].header.acknowledgement, peer.next);
    assert_eq!(peer.end.counters.challenge_acks_sent, 1);
    let outside = peer.odd(|reset| {
        reset.header.flags = Flags::RST;
        reset.header.sequence += 1 << 30;
    });
    assert!(outside.is_empty() && peer.end.state() == State::Established);
    peer.odd(|reset| reset.header.flags = Flags::RST);
    assert_eq!(peer.end.state(), State::Closed);
    assert_eq!(peer.end.connection.take_error(), Some(Error::Reset));
    assert_eq!(peer.end.counters.connections_reset, 1);
}

#[test]
fn a_syn_in_a_connection_is_challenged_within_the_budget() {
    let mut peer = ByHand::new(Config::default());
    peer.end.budget = 2;
    let mut answered = 0;
    for step in 0..5 {
        answered += peer
            .odd(|syn| {
                syn.header.flags = Flags::SYN;
                syn.header.sequence += step * 1000;
            })
            .len();
    }
    assert_eq!((answered, peer.end.state()), (2, State::Established));
}

#[test]
fn an_acknowledgement_of_the_future_or_the_far_past_is_challenged() {
    let mut peer = ByHand::new(Config::default());
    let future = peer.odd(|seen| {
        seen.header.acknowledgement += 1;
        seen.data = vec![1; 10];
    });
    assert_eq!(future.len(), 1);
    let past = peer.odd(|seen| {
        seen.header.acknowledgement = seen.header.acknowledgement - 70_000;
        seen.data = vec![1; 10];
    });
    assert_eq!(past.len(), 1);
    assert_eq!(peer.end.counters.drop_bad_ack, 2);
    assert!(peer.end.receive_all().is_empty(), "their data does not count");
}

#[test]
fn a_guessed_number_does_not_set_the_clock_that_the_peer_is_measured_by() {
    let mut peer = ByHand::new(Config::default());
    let heard_at = peer.end.connection.alive.heard_at;
    peer.end.pass(Duration::from_secs(1));
    let forged = peer.odd(|seen| {
        seen.header.acknowledgement = seen.header.acknowledgement - (1 << 30);
        seen.header.options.timestamps = Some(Timestamps { value: 1 << 30, echo: 0 });
        seen.data = vec![6; 10];
    });
    assert_eq!(forged.len(), 1, "it is challenged");
    assert_eq!(peer.end.connection.alive.heard_at, heard_at, "nor is it a sign of life");
    peer.odd(|seen| seen.data = vec![1; 10]);
    assert_eq!((peer.end.receive_all(), peer.end.counters.drop_paws), (vec![1; 10], 0));
}

#[test]
fn an_old_timestamp_is_refused_until_24_days_have_passed() {
    let mut peer = ByHand::new(Config::default());
    let old = |seen: &mut super::harness::Seen| {
        let echo = seen.header.options.timestamps.map_or(0, |stamps| stamps.echo);
        seen.header.options.timestamps = Some(Timestamps { value: 4990, echo });
        seen.data = vec![1; 10];
    };
    assert_eq!(peer.odd(old).len(), 1, "it is answered");
    assert_eq!(peer.end.counters.drop_paws, 1);
    assert!(peer.end.receive_all().is_empty());
    let without = peer.odd(|seen| seen.header.options.timestamps = None);
    assert!(without.len() <= 1);
    assert_eq!(peer.end.counters.drop_paws, 2);
    peer.end.pass(Duration::from_secs(25 * 24 * 3600));
    peer.odd(old);
    assert_eq!(peer.end.receive_all(), vec![1; 10]);
}

#[test]
fn the_echoed_timestamp_is_that_of_the_oldest_segment_not_acknowledged() {
    let mut peer = ByHand::new(Config::default());
    peer.clock = Some(6000);
    assert!(peer.data(&[1; 10]).is_empty(), "its acknowledgement is delayed");
    peer.clock = Some(6007);
    peer.data(&[2; 10]);
    peer.end.wait();
    let ack = peer.end.put();
    assert_eq!(ack[0].header.options.timestamps.map(|stamps| stamps.echo), Some(6000));
}

#[test]
fn empty_strangers_are_not_answered_forever() {
    let mut peer = ByHand::new(Config::default());
    let mut answers = 0;
    for _ in 0..100 {
        answers += peer.odd(|seen| seen.header.sequence = seen.header.sequence - 5000).len();
        peer.end.pass(Duration::from_millis(1));
    }
    assert!((1..=3).contains(&answers), "{answers}");
}

#[test]
fn icmp_ends_only_a_connection_that_is_not_yet_one() {
    let mut client = End::client(Config::default());
    client.put();
    let syn = super::harness::CLIENT_START;
    client.with(|connection, context| {
        connection.unreachable(Failure::Unreachable, syn + 1000, context);
    });
    assert_eq!((client.state(), client.counters.drop_icmp), (State::SynSent, 1));
    client.with(|connection, context| connection.unreachable(Failure::Refused, syn, context));
    assert_eq!(client.connection.take_error(), Some(Error::Refused));

    let mut peer = ByHand::new(Config::default());
    let place = peer.expected;
    peer.expect(&[1; 100]);
    peer.end.with(|connection, context| {
        connection.unreachable(Failure::Unreachable, place, context);
    });
    assert_eq!(peer.end.state(), State::Established);
    for _ in 0..100 {
        if peer.end.state() == State::Closed {
            break;
        }
        peer.end.wait();
        peer.end.put();
    }
    assert!(peer.end.is(Readiness::ERROR));
    assert_eq!(peer.end.connection.take_error(), Some(Error::Unreachable), "the likely cause");
}

#[test]
fn an_answer_for_another_connection_is_reset_in_syn_sent() {
    let mut client = End::client(Config::default());
    let syn = client.put().remove(0);
    let mut stale = syn.clone();
    stale.header.flags = Flags::ACK;
    stale.header.acknowledgement = syn.header.sequence + 500;
    client.take(&stale);
    let sent = client.put();
    assert_eq!(sent[0].header.flags, Flags::RST);
    assert_eq!(sent[0].header.sequence, syn.header.sequence + 500);
    assert_eq!(client.state(), State::SynSent);
}
