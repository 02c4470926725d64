//! Tickets: the daemon of the connecting end signs one for the daemon of the listening end. It
//! identifies the connecting process; only a daemon of the zone can sign one.
//!
//! A ticket is one line of JSON: `{"ticket": TEXT, "signature": BASE64}`. TEXT is itself JSON, and
//! the signature covers its bytes, so its formatting does not matter. The signature is HMAC-SHA256
//! (RFC 2104) with a key of the zone, which is derived from the file of --zone-secret and never in
//! etcd. In a zone without that file the key is in etcd, and a process that can read it there can
//! sign tickets for every host of the zone. A ticket is valid for one minute and can be used once.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::records::SECRET_BYTES;
use crate::cluster_link::Ticket;

/// How long a ticket is valid.
const LIFE: Duration = Duration::from_secs(60);
/// The largest accepted difference between the clocks of two hosts.
const SKEW: Duration = Duration::from_secs(30);
/// The longest line, with its end.
pub(super) const LINE_BYTES_MAX: usize = 4096;
/// How long a used ticket is remembered at least: longer than it is valid, even if the wall clock
/// steps forth and back.
const MEMORY: Duration = LIFE.saturating_add(SKEW);
/// The most used tickets that are remembered.
const REMEMBERED_MAX: usize = 64 * 1024;

/// Why a ticket is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadTicket {
    #[error("it is no ticket")]
    Malformed,
    #[error("its signature is wrong; do both hosts use the same zone, and the same --zone-secret?")]
    Signature,
    #[error("it is for host `{0}`")]
    Target(String),
    #[error("it has expired; do the hosts' clocks agree?")]
    Expired,
    #[error("it is good for longer than a ticket may be; do the hosts' clocks agree?")]
    TooLong,
    #[error("it was used before")]
    Replayed,
    #[error("too many tickets were used within their life")]
    TooMany,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    ticket: String,
    signature: String,
}

#[derive(Serialize, Deserialize)]
struct Text {
    #[serde(flatten)]
    ticket: Ticket,
    target: String,
    /// Seconds since 1970.
    expires_s: u64,
    /// 128 random bits in base64.
    nonce: String,
}

/// Makes and signs a ticket for the daemon of `target`, without the end of the line. Returns `None`
/// if the line would be too long.
pub(super) fn seal(
    ticket: &Ticket,
    target: &str,
    secret: &[u8; SECRET_BYTES],
    nonce: [u8; 16],
    now: SystemTime,
) -> Option<String> {
    let text = Text {
        ticket: ticket.clone(),
        target: target.to_owned(),
        expires_s: seconds(now + LIFE),
        nonce: STANDARD.encode(nonce),
    };
    let line = sign(&serde_json::to_string(&text).ok()?, secret);
    (line.len() < LINE_BYTES_MAX).then_some(line)
}

/// Returns the line with this content, without its end.
pub(super) fn sign(content: &str, secret: &[u8; SECRET_BYTES]) -> String {
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), content.as_bytes());
    let line = Line { ticket: content.to_owned(), signature: STANDARD.encode(signature) };
    serde_json::to_string(&line).expect("strings can be written")
}

/// Checks tickets, and remembers used ones.
#[derive(Default)]
pub(super) struct Inspector {
    used: HashSet<Nonce>,
    /// The same tickets in the order of their use.
    in_order: VecDeque<Used>,
}

type Nonce = [u8; 16];

struct Used {
    nonce: Nonce,
    at: Instant,
    /// On the wall clock, in seconds since 1970.
    expires_s: u64,
}

impl Inspector {
    /// Checks a line, without its end, that has to be signed with one of these secrets for `host`.
    /// The ticket was presented at `shown`, which is `now` on the wall clock.
    pub(super) fn open(
        &mut self,
        line: &[u8],
        host: &str,
        secrets: &[[u8; SECRET_BYTES]],
        now: SystemTime,
        shown: Instant,
    ) -> Result<Ticket, BadTicket> {
        if line.len() > LINE_BYTES_MAX {
            return Err(BadTicket::Malformed);
        }
        let line: Line = serde_json::from_slice(line).map_err(|_| BadTicket::Malformed)?;
        let signature = STANDARD.decode(&line.signature).map_err(|_| BadTicket::Malformed)?;
        let genuine = secrets.iter().any(|secret| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
            hmac::verify(&key, line.ticket.as_bytes(), &signature).is_ok()
        });
        if !genuine {
            return Err(BadTicket::Signature);
        }
        let text: Text = serde_json::from_str(&line.ticket).map_err(|_| BadTicket::Malformed)?;
        if text.target != host {
            return Err(BadTicket::Target(text.target));
        }
        let now_s = seconds(now);
        if text.expires_s <= now_s {
            return Err(BadTicket::Expired);
        }
        if text.expires_s > now_s + (LIFE + SKEW).as_secs() {
            return Err(BadTicket::TooLong);
        }
        let nonce = STANDARD.decode(&text.nonce).ok().and_then(|nonce| nonce.try_into().ok());
        let nonce = nonce.ok_or(BadTicket::Malformed)?;
        self.remember(Used { nonce, at: shown, expires_s: text.expires_s }, now_s)?;
        Ok(text.ticket)
    }

    /// Records a used ticket, and removes those that have expired by both clocks: the monotonic
    /// clock does not step back; the wall clock, by which a ticket expires, may.
    fn remember(&mut self, new: Used, now_s: u64) -> Result<(), BadTicket> {
        let is_old =
            |used: &Used| new.at.duration_since(used.at) >= MEMORY && used.expires_s <= now_s;
        while self.in_order.front().is_some_and(is_old) {
            if let Some(old) = self.in_order.pop_front() {
                self.used.remove(&old.nonce);
            }
        }
        if self.used.contains(&new.nonce) {
            return Err(BadTicket::Replayed);
        }
        if self.used.len() >= REMEMBERED_MAX {
            return Err(BadTicket::TooMany);
        }
        self.used.insert(new.nonce);
        self.in_order.push_back(new);
        Ok(())
    }
}

/// Returns the seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use fable::protocol::{FlowId, Peer, Trust};

    const SECRET: [u8; SECRET_BYTES] = [5; SECRET_BYTES];

    pub(in crate::cluster) fn ticket() -> Ticket {
        let (host, program) = ("a".to_owned(), "client".to_owned());
        Ticket {
            flow: FlowId(u64::MAX - 1),
            name: "fable://kv/1".parse().unwrap(),
            peer: Peer { host, pid: 10, uid: 1000, gid: 100, program },
            trust: Trust::Untrusted,
            protected: true,
        }
    }

    fn sealed(nonce: u8) -> String {
        seal(&ticket(), "b", &SECRET, [nonce; 16], SystemTime::now()).unwrap()
    }

    fn open(line: &str) -> Result<Ticket, BadTicket> {
        let now = SystemTime::now();
        Inspector::default().open(line.as_bytes(), "b", &[SECRET], now, Instant::now())
    }

    #[test]
    fn a_ticket_says_what_was_signed() {
        assert_eq!(open(&sealed(1)).unwrap(), ticket());
        let old_secret_too = [[6; SECRET_BYTES], SECRET];
        let line = sealed(1);
        let mut inspector = Inspector::default();
        let (now, shown) = (SystemTime::now(), Instant::now());
        let mut open = |line: &str, secrets: &[[u8; SECRET_BYTES]]| {
            inspector.open(line.as_bytes(), "b", secrets, now, shown)
        };
        assert!(open(&line, &old_secret_too).is_ok());
        assert_eq!(open(&sealed(2), &[[6; SECRET_BYTES]]), Err(BadTicket::Signature));
        assert_eq!(open(&sealed(2), &[]), Err(BadTicket::Signature));
    }

    #[test]
    fn no_field_can_be_changed() {
        let line: Line = serde_json::from_str(&sealed(1)).unwrap();
        let text: serde_json::Value = serde_json::from_str(&line.ticket).unwrap();
        let changes: [(&str, serde_json::Value); 12] = [
            ("/flow", 1.into()),
            ("/name", "fable://other/1".into()),
            ("/peer/host", "c".into()),
            ("/peer/pid", 1.into()),
            ("/peer/uid", 0.into()),
            ("/peer/gid", 0.into()),
            ("/peer/program", "root".into()),
            ("/trust", "trusted".into()),
            ("/protected", false.into()),
            ("/target", "c".into()),
            ("/expires_s", u64::MAX.into()),
            ("/nonce", "x".into()),
        ];
        for (path, value) in changes {
            let mut tampered = text.clone();
            let place = tampered.pointer_mut(path).unwrap_or_else(|| panic!("no {path}"));
            assert_ne!(*place, value);
            *place = value;
            let line = Line { ticket: tampered.to_string(), signature: line.signature.clone() };
            let line = serde_json::to_string(&line).unwrap();
            assert_eq!(open(&line), Err(BadTicket::Signature), "{path}");
        }
    }

    #[test]
    fn a_ticket_is_good_for_one_host_one_minute_and_one_time() {
        let now = SystemTime::now();
        let mut inspector = Inspector::default();
        let line = seal(&ticket(), "b", &SECRET, [1; 16], now).unwrap();
        let shown = Instant::now();
        let mut open =
            |host: &str, now| inspector.open(line.as_bytes(), host, &[SECRET], now, shown);
        assert_eq!(open("a", now), Err(BadTicket::Target("b".to_owned())));
        assert_eq!(open("b", now + LIFE), Err(BadTicket::Expired));
        assert_eq!(open("b", now - SKEW - Duration::from_secs(1)), Err(BadTicket::TooLong));
        assert!(open("b", now - SKEW).is_ok());
        assert_eq!(open("b", now), Err(BadTicket::Replayed));
        assert_eq!(open("b", now + LIFE - Duration::from_secs(1)), Err(BadTicket::Replayed));
        assert_eq!(open("b", now + LIFE), Err(BadTicket::Expired));
    }

    #[test]
    fn a_clock_that_steps_there_and_back_makes_no_used_ticket_good_again() {
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        let mut inspector = Inspector::default();
        let [line, later] = [(1, now), (2, now + day)]
            .map(|(nonce, at)| seal(&ticket(), "b", &SECRET, [nonce; 16], at).unwrap());
        let shown = Instant::now();
        let mut open =
            |line: &str, now| inspector.open(line.as_bytes(), "b", &[SECRET], now, shown);
        assert!(open(&line, now).is_ok());
        assert!(open(&later, now + day).is_ok());
        assert_eq!(open(&line, now), Err(BadTicket::Replayed));
    }

    #[test]
    fn a_clock_that_steps_back_makes_no_used_ticket_good_again() {
        let (now, shown) = (SystemTime::now(), Instant::now());
        let line = seal(&ticket(), "b", &SECRET, [1; 16], now).unwrap();
        let mut inspector = Inspector::default();
        let mut open =
            |now, shown| inspector.open(line.as_bytes(), "b", &[SECRET], now, shown).map(drop);
        assert_eq!(open(now, shown), Ok(()));
        // The clock has been set back by as much time as has passed.
        let later = shown + MEMORY + Duration::from_secs(1);
        assert_eq!(open(now, later), Err(BadTicket::Replayed));
        assert_eq!(open(now + LIFE, later), Err(BadTicket::Expired));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_forgotten() {
        let mut inspector = Inspector::default();
        let (shown, second, expires_s) = (Instant::now(), Duration::from_secs(1), 100);
        for number in 0..REMEMBERED_MAX {
            let nonce = (number as u128).to_le_bytes();
            inspector.remember(Used { nonce, at: shown, expires_s }, 40).unwrap();
        }
        let mut more =
            |at, now_s| inspector.remember(Used { nonce: [9; 16], at, expires_s }, now_s);
        assert_eq!(more(shown + MEMORY - second, 100), Err(BadTicket::TooMany));
        assert_eq!(more(shown + MEMORY, 99), Err(BadTicket::TooMany));
        assert_eq!(more(shown + MEMORY, 100), Ok(()));
        assert_eq!((inspector.used.len(), inspector.in_order.len()), (1, 1));
    }

    #[test]
    fn what_is_no_ticket_is_refused() {
        let mut line: Line = serde_json::from_str(&sealed(1)).unwrap();
        line.signature = "?".to_owned();
        let no_base64 = serde_json::to_string(&line).unwrap();
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        for line in ["", "{}", "[]", "GET / HTTP/1.1", "\u{0}", &no_base64, &long] {
            assert_eq!(open(line), Err(BadTicket::Malformed), "{line}");
        }
        let mut endless = ticket();
        endless.peer.program = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(seal(&endless, "b", &SECRET, [1; 16], SystemTime::now()), None);
    }
}
