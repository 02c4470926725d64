//! Tests urgent data, and MSG_MORE and TCP_CORK.

use super::by_hand::ByHand;
use super::harness::End;
use crate::config::{Config, Options};
use crate::socket::{SendFlags, Urgent};
use crate::wire::tcp::Flags;
use std::time::Duration;

const URGENT: SendFlags = SendFlags { more: false, urgent: true };
const MORE: SendFlags = SendFlags { more: true, urgent: false };

fn send(end: &mut End, data: &[u8], send_flags: SendFlags) {
    let sent = end.with(|connection, context| connection.send_as(data, send_flags, context));
    assert_eq!(sent, Ok(data.len()));
}

#[test]
fn segments_name_the_urgent_byte_until_it_is_acknowledged() {
    let mut peer = ByHand::new(Config::default());
    // Small segments in flight do not delay the urgent byte.
    assert_eq!(peer.expect(b"before").len(), 1);
    send(&mut peer.end, b"abc", URGENT);
    let sent = peer.end.put();
    assert_eq!((sent.len(), &sent[0].data[..]), (1, &b"abc"[..]));
    assert!(sent[0].has(Flags::URG) && sent[0].header.urgent == 3, "it is behind the byte");
    peer.expected += 3;
    send(&mut peer.end, b"later", SendFlags::default());
    let sent = peer.end.put();
    assert!(!sent[0].has(Flags::URG), "it lies before");
    peer.expected += 5;
    peer.acknowledge();
    send(&mut peer.end, &[1; 4000], URGENT);
    let sent = peer.end.put();
    let ahead: Vec<u16> = sent.iter().map(|seen| seen.header.urgent).collect();
    assert_eq!(ahead, [4000, 4000 - 1448, 4000 - 2 * 1448]);
    assert!(sent.iter().all(|seen| seen.segment_bytes.is_none()));
}

#[test]
fn the_urgent_byte_is_found_in_the_stream() {
    let mut peer = ByHand::new(Config::default());
    peer.data(b"12345");
    let place = |peer: &ByHand| peer.end.connection.urgent();
    assert_eq!(place(&peer), None);
    let announce = |peer: &mut ByHand, data: &[u8], pointer| {
        let mut segment = peer.segment(Flags::ACK.with(Flags::URG), data);
        segment.header.urgent = pointer;
        peer.next += data.len() as u32;
        peer.end.take(&segment);
    };
    announce(&mut peer, b"abc", 5);
    assert_eq!(place(&peer), Some(Urgent { position: 9, byte: None }));
    peer.data(b"de");
    assert_eq!(place(&peer), Some(Urgent { position: 9, byte: Some(b'e') }));
    announce(&mut peer, b"fg", 2);
    assert_eq!(place(&peer), Some(Urgent { position: 11, byte: Some(b'g') }));
    // An older urgent pointer changes nothing.
    announce(&mut peer, b"h", 0);
    assert_eq!(place(&peer), Some(Urgent { position: 12, byte: Some(b'h') }));
    assert_eq!(peer.end.receive_all(), b"12345abcdefgh");
    assert_eq!(peer.end.connection.taken_bytes(), 13);
}

/// Lets time pass until a segment is sent.
fn pass_until_put(peer: &mut ByHand) -> Duration {
    let mut waited = Duration::ZERO;
    while peer.end.put().is_empty() {
        waited += Duration::from_millis(10);
        assert!(waited < Duration::from_secs(2), "it waits for ever");
        peer.end.pass(Duration::from_millis(10));
    }
    waited
}

#[test]
fn what_waits_for_more_goes_with_it_with_an_answer_or_after_a_while() {
    for cork in [false, true] {
        let options = Options { no_delay: true, cork, ..Options::default() };
        let mut peer = ByHand::new(Config { options, ..Config::default() });
        let send_flags = if cork { SendFlags::default() } else { MORE };
        send(&mut peer.end, b"head", send_flags);
        assert!(peer.end.put().is_empty());
        send(&mut peer.end, &[1; 1448], send_flags);
        let sent = peer.end.put();
        assert_eq!((sent.len(), sent[0].data.len()), (1, 1448), "what is full goes");
        peer.expected += 1448;
        send(&mut peer.end, b"tail", send_flags);
        assert!(peer.end.put().is_empty());
        let answered = peer.acknowledge();
        if cork {
            assert!(answered.is_empty());
            let waited = pass_until_put(&mut peer);
            assert!(waited >= Duration::from_millis(100), "{waited:?}");
        } else {
            assert_eq!(answered.len(), 1, "the peer has said something");
            assert_eq!(answered[0].data.len(), 8);
        }
        peer.expected += 8;
        peer.acknowledge();
        send(&mut peer.end, b"lone", send_flags);
        let waited = pass_until_put(&mut peer);
        assert!(waited >= Duration::from_millis(100), "{waited:?}");
        peer.expected += 4;
        peer.acknowledge();
        send(&mut peer.end, b"head", send_flags);
        assert!(peer.end.put().is_empty());
        if cork {
            let options = Options { cork: false, ..options };
            peer.end.with(|connection, context| connection.set_options(&options, context));
        } else {
            send(&mut peer.end, b"tail", SendFlags::default());
        }
        let sent = peer.end.put();
        assert_eq!((sent.len(), sent[0].data.len()), (1, if cork { 4 } else { 8 }));
    }
}
