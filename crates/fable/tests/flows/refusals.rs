//! Peers that do not keep to the agreement on paths.

use super::*;

/// A follower whose leader we play by hand.
fn follower_of(own_trust: Trust) -> (Opening, OwnedFd) {
    let (ours, link) = packet::pair().unwrap();
    let (spare, _) = packet::pair().unwrap();
    let [_, (mut follower, _)] = parts_over(RING, [spare, link], true);
    follower.own_trust = own_trust;
    follower.timeouts.offer = PATIENCE;
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
        assert!(begin.elapsed() < PATIENCE, "no answer comes");
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
        offer(1, "cacheline"),
        offer(1, "carrier-pigeon"),
        offer(1, "mempipe-spin-unsafe"), // not trusted
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
    // Something that is no ring, in the place of one.
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
        assert!(begin.elapsed() < PATIENCE);
    }
}
