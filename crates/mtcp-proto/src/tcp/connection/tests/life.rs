//! Tests opening and closing: every transition of RFC 9293, figure 5.

use super::harness::{End, Pair, Seen, pattern};
use crate::config::Config;
use crate::error::Error;
use crate::socket::{Readiness, Shutdown, State};
use crate::wire::tcp::Flags;

fn shut(end: &mut End) {
    let done = end.with(|connection, context| connection.shut_down(Shutdown::Send, context));
    assert_eq!(done, Ok(()));
}

#[test]
fn a_record_is_small() {
    let bytes = std::mem::size_of::<crate::tcp::Connection>();
    assert!(bytes <= 480, "{bytes}");
}

#[test]
fn request_reply_and_close_take_seven_packets() {
    let config = Config::default();
    let mut pair = Pair::opening(&config, &config);
    assert_eq!(pair.client.send(&pattern(64)), 64);
    let end = pair.client.now + std::time::Duration::from_secs(1);
    let mut replied = false;
    let mut asked = false;
    while pair.step(end) {
        if !replied && pair.server.receive_all() == pattern(64) {
            replied = true;
            assert_eq!(pair.server.send(&pattern(64)), 64);
        }
        if !asked && pair.client.receive_all() == pattern(64) {
            asked = true;
            pair.client.close();
        }
        if pair.server.is(Readiness::PEER_CLOSED) && pair.server.state() == State::CloseWait {
            pair.server.close();
        }
    }
    assert_eq!(pair.client.state(), State::TimeWait);
    assert_eq!(pair.server.state(), State::Closed);
    // The SYN was sent before the pair existed.
    let flags: Vec<_> =
        pair.seen.iter().map(|(_, seen)| (seen.header.flags.0, seen.data.len())).collect();
    let (ack, psh, fin) = (Flags::ACK.0, Flags::PSH.0, Flags::FIN.0);
    assert_eq!(
        flags,
        [
            (Flags::SYN.0 | ack, 0),
            (ack | psh, 64),
            (ack | psh, 64),
            (ack | fin, 0),
            (ack | fin, 0),
            (ack, 0)
        ]
    );
    assert_eq!(pair.client.pool.used_bytes() + pair.server.pool.used_bytes(), 0);
}

#[test]
fn the_active_side_goes_through_fin_wait_to_time_wait() {
    let mut pair = Pair::new(&Config::default());
    shut(&mut pair.client);
    assert_eq!(pair.client.state(), State::FinWait1);
    pair.run();
    assert_eq!(pair.client.state(), State::FinWait2);
    assert_eq!(pair.server.state(), State::CloseWait);
    assert!(pair.server.is(Readiness::PEER_CLOSED) && !pair.server.is(Readiness::CLOSED));
    // The other direction still works.
    assert_eq!(pair.server.send(&pattern(3000)), 3000);
    pair.run();
    assert_eq!(pair.client.receive_all(), pattern(3000));
    shut(&mut pair.server);
    assert_eq!(pair.server.state(), State::LastAck);
    pair.run();
    assert_eq!(pair.client.state(), State::TimeWait);
    assert_eq!(pair.server.state(), State::Closed);
    assert!(pair.client.is(Readiness::CLOSED));
    let remains = pair.client.connection.remains().expect("TIME-WAIT");
    assert_eq!(remains.next, super::harness::CLIENT_START + 2);
    assert_eq!(remains.expected, super::harness::SERVER_START + 3002);
    pair.client.wait();
    assert_eq!(pair.client.state(), State::Closed);
}

#[test]
fn both_sides_close_at_once() {
    let mut pair = Pair::new(&Config::default());
    shut(&mut pair.client);
    shut(&mut pair.server);
    let from_client = pair.client.put();
    let from_server = pair.server.put();
    assert!(from_client[0].has(Flags::FIN) && from_server[0].has(Flags::FIN));
    pair.client.take(&from_server[0]);
    pair.server.take(&from_client[0]);
    assert_eq!(pair.client.state(), State::Closing);
    assert_eq!(pair.server.state(), State::Closing);
    pair.run();
    assert_eq!(pair.client.state(), State::TimeWait);
    assert_eq!(pair.server.state(), State::TimeWait);
}

#[test]
fn both_sides_open_at_once() {
    let mut one = End::client(Config::default());
    let mut other = End::other_client(Config::default());
    one.send(&pattern(100));
    let (first, second) = (one.put(), other.put());
    one.take(&second[0]);
    other.take(&first[0]);
    assert_eq!((one.state(), other.state()), (State::SynReceived, State::SynReceived));
    for _ in 0..3 {
        let (first, second) = (one.put(), other.put());
        second.iter().for_each(|packet| one.take(packet));
        first.iter().for_each(|packet| other.take(packet));
    }
    assert_eq!((one.state(), other.state()), (State::Established, State::Established));
    assert_eq!(other.receive_all(), pattern(100));
    assert!(one.put().is_empty() && other.put().is_empty());
}

#[test]
fn a_refused_connection_says_so_once() {
    let mut client = End::client(Config::default());
    let syn = client.put().remove(0);
    let mut reset = Seen { segment_bytes: None, ..syn.clone() };
    reset.header.flags = Flags::RST.with(Flags::ACK);
    reset.header.acknowledgement = syn.header.sequence;
    client.take(&reset);
    assert_eq!(client.state(), State::SynSent, "it acknowledges nothing");
    reset.header.acknowledgement = syn.header.sequence + 1;
    client.take(&reset);
    assert_eq!(client.state(), State::Closed);
    assert!(client.is(Readiness::ERROR) && client.is(Readiness::WRITABLE));
    let sent = client.with(|connection, context| connection.send(b"x", context));
    assert_eq!(sent, Err(Error::Refused));
    assert_eq!(client.connection.take_error(), None);
    assert!(client.put().is_empty() && client.connection.deadline().is_none());
}

#[test]
fn a_repeated_syn_is_answered_but_not_forever() {
    let mut client = End::client(Config::default());
    let syn = client.put().remove(0);
    let mut server = End::server(Config::default(), &syn, client.now);
    let mut answers = server.put().len();
    for _ in 0..100 {
        server.take(&syn);
        let answer = server.put();
        assert!(answer.iter().all(|seen| seen.has(Flags::SYN.with(Flags::ACK))));
        answers += answer.len();
    }
    assert_eq!(answers, 7);
    server.wait();
    assert_eq!(server.state(), State::Closed);
}

#[test]
fn congestion_notification_is_offered_once_and_agreed_on_by_both() {
    let with = Config { ecn: true, ..Config::default() };
    let both = Flags::ECE.with(Flags::CWR);
    let mut client = End::client(with.clone());
    let offer = client.put().remove(0);
    assert!(offer.has(both));
    client.wait();
    let again = client.put().remove(0);
    assert!(!again.header.flags.intersects(both), "some routers drop such SYNs");
    for (config, agreed) in [(with.clone(), true), (Config::default(), false)] {
        let mut client = End::client(with.clone());
        client.put();
        let mut server = End::server(config, &offer, client.now);
        let answer = server.put().remove(0);
        assert_eq!(answer.has(Flags::ECE), agreed);
        assert!(!answer.has(Flags::CWR));
        client.take(&answer);
        client.put();
        client.send(&pattern(10));
        assert_eq!(client.put()[0].ecn == crate::wire::ip::Ecn::Capable0, agreed);
    }
}
