//! Models the bytes and messages of one link, in each direction.

use fuzzkit::pattern;

/// The direction from the peer to the channel.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// The number of the contents.
    pub(crate) stream: u64,
    /// Bytes of a stream that the peer has written and that the channel has received.
    pub(crate) written: u64,
    pub(crate) received: u64,
    /// Bytes before this position may have been lost with a withdrawn receive.
    pub(crate) lost_until: u64,
    /// The peer's messages.
    pub(crate) messages: Vec<Sent>,
}

/// A message of the peer.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: usize,
    pub(crate) is_delivered: bool,
    /// Whether it may have been lost with a withdrawn receive.
    pub(crate) may_be_lost: bool,
}

impl Inbound {
    /// Records that receives in flight were withdrawn, with the data that they may have taken.
    pub(crate) fn withdraw(&mut self) {
        self.lost_until = self.written;
        self.messages.iter_mut().for_each(|sent| sent.may_be_lost = true);
    }

    /// Checks and records received bytes of a stream.
    pub(crate) fn came(&mut self, found: &[u8]) -> Result<(), String> {
        self.received = self.saw(found)? + found.len() as u64;
        Ok(())
    }

    /// Returns the position of bytes that must be the next ones of a stream.
    pub(crate) fn saw(&self, found: &[u8]) -> Result<u64, String> {
        let fits = |start: u64| {
            start + found.len() as u64 <= self.written
                && pattern::mismatch(self.stream, start, found).is_none()
        };
        let last = self.lost_until.max(self.received);
        if let Some(start) = (self.received..=last).find(|start| fits(*start)) {
            return Ok(start);
        }
        let (at, written, count) = (self.received, self.written, found.len());
        let earlier = (0..at).find(|start| fits(*start));
        let what = match pattern::mismatch(self.stream, at, found) {
            None => "more than the peer has written".to_string(),
            Some(_) if earlier.is_some() => format!("bytes of position {earlier:?} again"),
            Some(wrong) => match (at..written).find(|start| fits(*start)) {
                Some(later) => format!("{} bytes were lost before them", later - at),
                None => format!("byte {wrong} is wrong"),
            },
        };
        Err(format!("{count} bytes after position {at} of {written}: {what}"))
    }

    /// Checks and records a received message for which there was `room`; returns its number.
    pub(crate) fn came_message(&mut self, found: &[u8], room: usize) -> Result<u32, String> {
        let number = self.saw_message(found, room)?;
        let is_again = |sent: &mut Sent| std::mem::replace(&mut sent.is_delivered, true);
        if self.messages.get_mut(number as usize).is_some_and(is_again) {
            return Err(format!("message {number} came twice"));
        }
        Ok(number)
    }

    /// Returns the number of a peeked message for which there was `room`.
    pub(crate) fn saw_message(&self, found: &[u8], room: usize) -> Result<u32, String> {
        let Some((number, bytes)) = pattern::message_header(found) else {
            return Err(format!("a message of {} bytes, which has no number", found.len()));
        };
        let count = self.messages.len();
        let Some(sent) = self.messages.get(number as usize) else {
            return Err(format!("a message {number}, but only {count} were sent"));
        };
        let whole = pattern::message(self.stream, number, sent.bytes);
        if bytes != sent.bytes || found.len() > whole.len() || found != &whole[..found.len()] {
            return Err(format!("message {number} has wrong contents"));
        }
        if found.len() != sent.bytes.min(room) {
            let (came, sent) = (found.len(), sent.bytes);
            return Err(format!("{came} bytes of message {number} of {sent}; room was {room}"));
        }
        Ok(number)
    }

    /// Returns the number of bytes or messages that neither arrived nor may have been lost.
    pub(crate) fn missing(&self) -> u64 {
        let lost = |sent: &&Sent| !sent.is_delivered && !sent.may_be_lost;
        self.written.saturating_sub(self.received.max(self.lost_until))
            + self.messages.iter().filter(lost).count() as u64
    }
}

/// What is known of the delivery of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Pending,
    /// That many of its bytes were written.
    Known(usize),
    /// Any number of its bytes may have been written.
    Unknown,
}

/// A write of the channel.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) bytes: Vec<u8>,
    pub(crate) member: usize,
    pub(crate) delivery: Delivery,
}

/// The direction from the channel to the peer.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    pub(crate) stream: u64,
    pub(crate) segments: Vec<Segment>,
    /// Bytes of a stream that the peer has received.
    pub(crate) got: Vec<u8>,
    pub(crate) got_messages: Vec<Vec<u8>>,
    /// The position of the next byte in the pattern.
    pub(crate) position: u64,
}

impl Outbound {
    /// Returns the next contents of a stream.
    pub(crate) fn next_bytes(&mut self, count: usize) -> Vec<u8> {
        let made = pattern::bytes(self.stream, self.position, count);
        self.position += count as u64;
        made
    }

    /// Returns the next message.
    pub(crate) fn next_message(&self, count: usize) -> Vec<u8> {
        pattern::message(self.stream, self.segments.len() as u32, count)
    }

    /// Records a submitted write; returns its number.
    pub(crate) fn file(&mut self, member: usize, bytes: Vec<u8>) -> usize {
        self.segments.push(Segment { bytes, member, delivery: Delivery::Pending });
        self.segments.len() - 1
    }

    /// Checks what the peer has received of a stream: all of it if `is_whole`, else the beginning.
    pub(crate) fn check_stream(&self, is_whole: bool) -> Result<(), String> {
        if follows(&self.segments, &self.got, is_whole) {
            return Ok(());
        }
        let writes: Vec<String> = self
            .segments
            .iter()
            .map(|segment| format!("{:?} of {}", segment.delivery, segment.bytes.len()))
            .collect();
        let (got, which) = (self.got.len(), if is_whole { "all" } else { "the beginning" });
        Err(format!("the peer got {got} bytes, which are not {which} of {}", writes.join(", ")))
    }

    /// Checks the messages that the peer has received: all that were written if `is_whole`.
    pub(crate) fn check_messages(&self, is_whole: bool) -> Result<(), String> {
        let mut last = [None; 2];
        let mut is_got = vec![false; self.segments.len()];
        for message in &self.got_messages {
            let number = pattern::message_header(message).map(|(number, _)| number as usize);
            let segment = number.and_then(|number| Some((number, self.segments.get(number)?)));
            let Some((number, segment)) = segment else {
                return Err(format!("the peer got a message {number:?} that was not written"));
            };
            let previous = last[segment.member % 2].replace(number);
            if previous >= Some(number) {
                return Err(format!("the peer got message {number} after {previous:?}"));
            }
            if segment.delivery == Delivery::Known(0) || segment.bytes != *message {
                let (delivery, bytes) = (segment.delivery, message.len());
                return Err(format!(
                    "the peer got {bytes} bytes of message {number} ({delivery:?})"
                ));
            }
            is_got[number] = true;
        }
        let lost = (0..self.segments.len()).find(|number| {
            let written = matches!(self.segments[*number].delivery, Delivery::Known(1..));
            written && !is_got[*number]
        });
        match lost {
            Some(number) if is_whole => Err(format!("message {number} did not reach the peer")),
            _ => Ok(()),
        }
    }
}

/// Returns whether `got` is the writes one after the other, each as far as it was written.
fn follows(segments: &[Segment], got: &[u8], is_whole: bool) -> bool {
    let Some((first, rest)) = segments.split_first() else { return got.is_empty() };
    if got.is_empty() && !is_whole {
        return true;
    }
    let common = first.bytes.iter().zip(got).take_while(|(a, b)| a == b).count();
    match first.delivery {
        Delivery::Known(bytes) if bytes <= common => follows(rest, &got[bytes..], is_whole),
        Delivery::Known(_) => !is_whole && common == got.len(),
        _ => (0..=common).rev().any(|bytes| follows(rest, &got[bytes..], is_whole)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_received_once_and_in_order() {
        let mut inbound = Inbound { stream: 5, written: 100, ..Inbound::default() };
        inbound.came(&pattern::bytes(5, 0, 10)).unwrap();
        let again = inbound.came(&pattern::bytes(5, 0, 10)).unwrap_err();
        assert!(again.contains("again"), "{again}");
        assert_eq!(inbound.saw(&pattern::bytes(5, 10, 4)), Ok(10));
        let lost = inbound.came(&pattern::bytes(5, 20, 10)).unwrap_err();
        assert!(lost.contains("10 bytes were lost"), "{lost}");
        let more = inbound.came(&pattern::bytes(5, 10, 91)).unwrap_err();
        assert!(more.contains("more than"), "{more}");
        inbound.withdraw();
        inbound.came(&pattern::bytes(5, 20, 10)).unwrap();
        assert_eq!((inbound.received, inbound.missing()), (30, 0));
    }

    #[test]
    fn messages_come_once_and_whole() {
        let mut inbound = Inbound { stream: 5, ..Inbound::default() };
        let sent = |bytes| Sent { bytes, is_delivered: false, may_be_lost: false };
        inbound.messages.extend([sent(20), sent(30)]);
        assert_eq!(inbound.missing(), 2);
        let second = pattern::message(5, 1, 30);
        assert!(inbound.came_message(&second[..20], 25).is_err());
        assert_eq!(inbound.saw_message(&second[..25], 25), Ok(1));
        assert_eq!(inbound.came_message(&second[..25], 25), Ok(1));
        assert!(inbound.came_message(&second, 50).unwrap_err().contains("twice"));
        assert_eq!(inbound.missing(), 1);
    }

    #[test]
    fn the_peer_gets_what_was_written() {
        let mut outbound = Outbound { stream: 1, ..Outbound::default() };
        for delivery in
            [Delivery::Known(10), Delivery::Unknown, Delivery::Known(0), Delivery::Known(3)]
        {
            let bytes = outbound.next_bytes(10);
            let number = outbound.file(0, bytes);
            outbound.segments[number].delivery = delivery;
        }
        outbound.got = pattern::bytes(1, 0, 14);
        assert!(outbound.check_stream(false).is_ok());
        assert!(outbound.check_stream(true).is_err());
        outbound.got.extend(pattern::bytes(1, 30, 3));
        assert!(outbound.check_stream(true).is_ok());
        outbound.got.extend(pattern::bytes(1, 33, 1));
        assert!(outbound.check_stream(false).is_err());
    }

    #[test]
    fn a_lost_message_is_found() {
        let mut outbound = Outbound { stream: 1, ..Outbound::default() };
        for _ in 0..2 {
            let bytes = outbound.next_message(20);
            let number = outbound.file(0, bytes);
            outbound.segments[number].delivery = Delivery::Known(20);
        }
        outbound.got_messages.push(outbound.segments[1].bytes.clone());
        assert!(outbound.check_messages(false).is_ok());
        assert!(outbound.check_messages(true).unwrap_err().contains("message 0"));
    }
}
