//! Tests with peers that violate the protocol of the control link.

use super::*;

/// Opens a follower, and returns the leader's end of its control link, which the test uses
/// directly.
fn follower_of(own_trust: Trust) -> (Opening, OwnedFd) {
    let (ours, link) = packet::pair().unwrap();
    let (spare, _) = packet::pair().unwrap();
    let [_, (mut follower, _)] = parts_over(RING, [spare, link], true);
    follower.own_trust = own_trust;
    follower.timeouts.offer = TIME_LIMIT;
    (Opening::start(follower).unwrap(), ours)
}

fn answer(link: &OwnedFd) -> String {
    let begin = Instant::now();
    loop {
        match packet::receive(std::os::fd::AsFd::as_fd(link)) {
            Ok(Some(packet)) => return String::from_utf8(packet.bytes).unwrap(),
            Ok(None) => return "closed".to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        assert!(begin.elapsed() < TIME_LIMIT, "no answer comes");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn hostile_leaders_are_refused_or_cut_off() {
    use std::os::fd::AsFd;
    let offer = |epoch: u32, transport: &str| {
        format!(
            r#"{{"say":"offer","epoch":{epoch},"transport":"{transport}","reason":"",
            "port":null,"token":null}}"#
        )
    };
    let refused = [
        offer(1, "mempipe-futex-safe"), // without descriptors
        offer(1, "carrier-pigeon"),
        offer(1, "mempipe-futex-unsafe"), // not trusted
        offer(1, "tls"),
    ];
    for says in refused {
        let (opening, link) = follower_of(Trust::Untrusted);
        packet::send(link.as_fd(), says.as_bytes(), &[]).unwrap();
        let answer = answer(&link);
        assert!(answer.contains("refuse"), "{says}: {answer}");
        drop(link);
        let error = opening.finish().unwrap_err();
        assert!(matches!(error, Error::Refused { .. } | Error::PeerDied), "{says}: {error}");
    }
    let cut_off = [
        "nonsense".to_owned(),
        r#"{"say":"accept","epoch":1}"#.to_owned(),
        r#"{"say":"use","epoch":1}"#.to_owned(),
        r#"{"say":"withdraw","epoch":9}"#.to_owned(),
        r#"{"say":"use","epoch":1,"more":true}"#.to_owned(),
        offer(0, "unix"),
        format!("{:20000}", "1"),
    ];
    for says in cut_off {
        let (opening, link) = follower_of(Trust::Trusted);
        packet::send(link.as_fd(), says.as_bytes(), &[]).unwrap();
        assert_eq!(answer(&link), "closed", "{says}");
        let error = opening.finish().unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{says}: {error}");
    }
    let (opening, link) = follower_of(Trust::Trusted);
    let stowaway = [link.as_fd()];
    packet::send(link.as_fd(), br#"{"say":"use","epoch":1}"#, &stowaway).unwrap();
    assert_eq!(answer(&link), "closed");
    assert!(matches!(opening.finish(), Err(Error::Corrupt { .. })));
    // Descriptors that are no ring, in place of a ring's.
    let (_opening, link) = follower_of(Trust::Trusted);
    let wrong = [link.as_fd(), link.as_fd(), link.as_fd()];
    packet::send(link.as_fd(), offer(1, "mempipe-futex-safe").as_bytes(), &wrong).unwrap();
    assert!(answer(&link).contains("refuse"));
}

#[test]
fn an_offer_that_nobody_answers_ends_in_a_timeout() {
    let (_silent, link) = packet::pair().unwrap();
    let (spare, _) = packet::pair().unwrap();
    let [(mut leader, reports), _] = parts_over(RING, [link, spare], true);
    leader.timeouts.offer = Duration::from_millis(20);
    let error = Flow::open(leader).unwrap_err();
    assert!(matches!(error, Error::TimedOut | Error::Refused { .. }), "{error}");
    let begin = Instant::now();
    while !reports.lock().unwrap().iter().any(|report| report.starts_with("ended")) {
        assert!(begin.elapsed() < TIME_LIMIT);
    }
}

/// Sends an offer of a ring to a follower that we lead; the transport is our end.
fn offer_ring(link: &OwnedFd, ring_bytes: usize) -> Box<dyn fable::transport::Transport> {
    use std::os::fd::AsFd;
    let options = fable::transport::PathOptions { ring_bytes, ..Default::default() };
    let (transport, offer) = fable::transport::create(RING, options).unwrap();
    let says = r#"{"say":"offer","epoch":1,"transport":"mempipe-futex-safe","reason":"",
        "port":null,"token":null}"#;
    let descriptors: Vec<_> = offer.descriptors.iter().map(AsFd::as_fd).collect();
    packet::send(link.as_fd(), says.as_bytes(), &descriptors).unwrap();
    transport
}

#[test]
fn a_leader_with_huge_rings_is_refused() {
    let (opening, link) = follower_of(Trust::Untrusted);
    let _transport = offer_ring(&link, 32 << 20);
    let answer = answer(&link);
    assert!(answer.contains("refuse") && answer.contains("larger than this end"), "{answer}");
    drop(link);
    opening.finish().unwrap_err();
}

#[test]
fn a_message_above_a_flow_s_limit_ends_the_flow() {
    use std::os::fd::AsFd;
    let (opening, link) = follower_of(Trust::Untrusted);
    let mut transport = offer_ring(&link, 1 << 20);
    let accepted = answer(&link);
    assert!(accepted.contains("accept"), "{accepted}");
    packet::send(link.as_fd(), br#"{"say":"use","epoch":1}"#, &[]).unwrap();
    let flow = opening.finish().unwrap();
    let limit = flow.message_bytes_max();
    for bytes in [limit, limit + 1, 1] {
        let slot = transport.acquire_write(bytes).unwrap().unwrap();
        transport.commit(slot, bytes, fable::transport::Record::Data).unwrap();
    }
    assert_eq!(flow.read_timeout(TIME_LIMIT).unwrap().unwrap().len(), limit);
    for _ in 0..2 {
        let error = flow.read_timeout(TIME_LIMIT).unwrap_err();
        let Error::Corrupt { what } = error else { panic!("{error}") };
        assert!(what.contains("longer than this end accepts"), "{what}");
    }
}
