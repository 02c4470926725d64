//! Models the results of requests on connected pairs.

use super::outcome;
use megapipe::{Event, Lease};

/// A write and the known number of its written bytes.
struct Sent {
    number: u64,
    bytes: Vec<u8>,
    delivery: Delivery,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Pending,
    /// That many of its bytes were written.
    Known(usize),
    /// Its handle was unregistered before it completed.
    Unknown,
}

/// One direction of a connection.
#[derive(Default)]
pub struct Direction {
    sent: Vec<Sent>,
    received: Vec<u8>,
    /// Whether data may have been lost with a receive that was unregistered.
    pub lossy: bool,
    /// Whether the sender may have ended the stream.
    pub cut: bool,
    /// Whether the receiver has seen the end.
    pub ended: bool,
    pub sender_gone: bool,
    pub receiver_gone: bool,
}

/// Requests of one side that have not completed, by kind: cancelled and others.
#[derive(Debug, Default)]
pub struct Pending {
    live: [usize; KINDS],
    cancelled: [usize; KINDS],
}

pub const READ: usize = 0;
pub const RECEIVE: usize = 1;
pub const REPEAT: usize = 2;
pub const WRITE: usize = 3;
pub const DISCONNECT: usize = 4;
const KINDS: usize = 5;

impl Pending {
    pub fn file(&mut self, kind: usize) {
        self.live[kind] += 1;
    }

    pub fn cancel(&mut self) {
        for kind in 0..KINDS {
            self.cancelled[kind] += std::mem::take(&mut self.live[kind]);
        }
    }

    pub fn count(&self, kinds: std::ops::RangeInclusive<usize>) -> usize {
        kinds.map(|kind| self.live[kind] + self.cancelled[kind]).sum()
    }

    /// Counts the last completion of a request; returns whether it had been cancelled.
    pub fn finish(&mut self, kind: usize) -> bool {
        if self.cancelled[kind] > 0 {
            self.cancelled[kind] -= 1;
            return true;
        }
        assert!(self.live[kind] > 0, "a completion of kind {kind} that was not asked for");
        self.live[kind] -= 1;
        false
    }
}

/// Creates content to receive, and a name for it.
pub fn message(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut made = number.to_le_bytes().to_vec();
    while made.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        made.extend_from_slice(&state.to_le_bytes());
    }
    made.truncate(bytes.max(8));
    made
}

impl Direction {
    pub fn file(&mut self, number: u64, bytes: Vec<u8>) {
        self.sent.push(Sent { number, bytes, delivery: Delivery::Pending });
    }

    /// Handles that the sender's handle is unregistered.
    pub fn forget_pending(&mut self) {
        for sent in self.sent.iter_mut().filter(|sent| sent.delivery == Delivery::Pending) {
            sent.delivery = Delivery::Unknown;
        }
    }

    /// Records a completed write.
    pub fn wrote(&mut self, pending: &mut Pending, event: &Event) {
        let first = match event {
            Event::Write(_, buffer) => &buffer[..8],
            Event::WriteVectored(_, buffers) => &buffers[0][..8],
            other => panic!("no write: {other:?}"),
        };
        let cancelled = pending.finish(WRITE);
        let number = u64::from_le_bytes(first.try_into().unwrap());
        let before = self
            .sent
            .iter()
            .any(|sent| sent.number < number && sent.delivery == Delivery::Pending && !cancelled);
        assert!(!before, "write {number} completes before an earlier one");
        let sent = self.sent.iter_mut().find(|sent| sent.number == number).expect("its write");
        assert!(sent.delivery == Delivery::Pending, "write {number} completes twice");
        let all = sent.bytes.len();
        let excused = self.receiver_gone || self.cut;
        let written = match outcome(event) {
            Ok(count) if count as usize == all => all,
            Ok(count) => {
                assert!(cancelled || excused, "{count} of {all} bytes were written");
                assert!((count as usize) < all);
                count as usize
            }
            Err(libc::ECANCELED) => {
                assert!(cancelled, "write {number} ends as cancelled and was not");
                0
            }
            Err(errno) => {
                assert!(excused, "write {number} failed with errno {errno}");
                assert!([libc::EPIPE, libc::ECONNRESET].contains(&errno), "errno {errno}");
                0
            }
        };
        sent.delivery = Delivery::Known(written);
    }

    /// Records received data; returns a lease of it.
    pub fn came(&mut self, pending: &mut Pending, event: Event, more: bool) -> Option<Lease> {
        let result = outcome(&event);
        let kind = match &event {
            Event::Read(..) => READ,
            _ if more => REPEAT,
            // The pending requests show whether it was a single or a repeating receive.
            _ => pending.kind_of_receive(),
        };
        let cancelled = !more && pending.finish(kind);
        match result {
            Ok(0) => {
                assert!(self.cut || self.sender_gone, "an end that the sender has not made");
                assert!(!more, "more after the end");
                self.ended = true;
            }
            Ok(_) => assert!(!self.ended, "data after the end"),
            Err(libc::ECANCELED) => assert!(cancelled, "a receive ends as cancelled and was not"),
            Err(errno) => {
                assert!(self.sender_gone && errno == libc::ECONNRESET, "errno {errno}");
                self.ended = true;
            }
        }
        match event {
            Event::Read(Ok(_), bytes) => self.received.extend_from_slice(&bytes),
            Event::Receive(Ok(lease)) => {
                self.received.extend_from_slice(&lease);
                return Some(lease);
            }
            _ => {}
        }
        None
    }

    /// Checks, after the end, that everything that was written has been received, in order.
    pub fn check(&self) {
        assert!(
            self.sent.iter().all(|sent| sent.delivery != Delivery::Pending),
            "a write is pending"
        );
        if self.receiver_gone || self.lossy {
            return;
        }
        let written: Vec<String> = self
            .sent
            .iter()
            .map(|sent| match sent.delivery {
                Delivery::Known(bytes) => {
                    format!("{}: {bytes} of {}", sent.number, sent.bytes.len())
                }
                _ => format!("{}: some of {}", sent.number, sent.bytes.len()),
            })
            .collect();
        let total = self.received.len();
        assert!(matches(&self.sent, &self.received), "{total} bytes received of {written:?}");
    }
}

impl Pending {
    fn kind_of_receive(&self) -> usize {
        let filed = |kind: usize| self.cancelled[kind] + self.live[kind] > 0;
        match (filed(RECEIVE), filed(REPEAT)) {
            (true, false) => RECEIVE,
            (false, true) => REPEAT,
            // In a lane, the request that was submitted first ends first; the model submits only
            // one kind.
            _ => panic!("a receive completes that was not asked for"),
        }
    }
}

/// Returns whether `received` is the writes one after the other, each as far as it was written.
fn matches(sent: &[Sent], received: &[u8]) -> bool {
    let Some((first, rest)) = sent.split_first() else { return received.is_empty() };
    match first.delivery {
        Delivery::Known(bytes) => {
            received.starts_with(&first.bytes[..bytes]) && matches(rest, &received[bytes..])
        }
        _ => {
            let common = first.bytes.iter().zip(received).take_while(|(a, b)| a == b).count();
            (0..=common).rev().any(|bytes| matches(rest, &received[bytes..]))
        }
    }
}
