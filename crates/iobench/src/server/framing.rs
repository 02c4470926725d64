//! Splits one connection's stream into requests and produces their answers, without I/O: which
//! bytes to send next, and which to keep until they can be sent.

use crate::server::response::{Reply, Responder};
use crate::server::shared::Counters;

/// Why answering stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Every complete request was answered.
    Done,
    /// The socket is full.
    Blocked,
    /// The server is ending.
    Stopping,
}

/// The outstanding answers of a connection. Feed it again only after `Flow::Done`: then it never
/// keeps more than one incomplete request and one read.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Bytes of the incomplete request that have arrived.
    partial: usize,
    /// Complete requests whose work has not been done.
    owed: usize,
    /// Bytes left of the answers whose work has been done.
    begun: usize,
    /// Bytes left of an answer that is an echo of one whole read.
    raw_bytes: usize,
    /// Bytes to be echoed that could not be sent yet; `held[taken..]` is still to be sent.
    held: Vec<u8>,
    taken: usize,
}

/// Sends bytes: returns how many the socket took, or the errno; `EAGAIN` if it is full.
pub(crate) trait Sink {
    fn send(&mut self, bytes: &[u8], counters: &mut Counters) -> Result<usize, i32>;
}

impl Answers {
    /// Returns whether the socket was full at the last attempt.
    pub(crate) fn are_blocked(&self) -> bool {
        self.begun > 0
    }

    /// Takes the bytes of one read, and answers the requests that they complete.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        responder: &Responder,
        sink: &mut impl Sink,
        counters: &mut Counters,
    ) -> Result<Flow, i32> {
        match responder.reply() {
            Reply::Raw => (self.owed, self.raw_bytes) = (1, bytes.len()),
            Reply::Echo { request_bytes } | Reply::Filler { request_bytes, .. } => {
                let arrived = self.partial + bytes.len();
                self.owed += arrived / request_bytes;
                self.partial = arrived % request_bytes;
            }
        }
        if let Reply::Filler { bytes: filler, .. } = responder.reply() {
            return self.send_filler(filler, responder, sink, counters);
        }
        if self.held.is_empty() {
            // The usual case: sends from the thread's buffer; only a rest is copied.
            let (flow, sent) = self.send_echo(bytes, responder, sink, counters)?;
            self.held.extend_from_slice(&bytes[sent..]);
            return Ok(flow);
        }
        self.held.extend_from_slice(bytes);
        self.send_held(responder, sink, counters)
    }

    /// Continues after the socket was full.
    pub(crate) fn resume(
        &mut self,
        responder: &Responder,
        sink: &mut impl Sink,
        counters: &mut Counters,
    ) -> Result<Flow, i32> {
        match responder.reply() {
            Reply::Filler { bytes, .. } => self.send_filler(bytes, responder, sink, counters),
            _ => self.send_held(responder, sink, counters),
        }
    }

    fn send_held(
        &mut self,
        responder: &Responder,
        sink: &mut impl Sink,
        counters: &mut Counters,
    ) -> Result<Flow, i32> {
        let held = std::mem::take(&mut self.held);
        let sent = self.send_echo(&held[self.taken..], responder, sink, counters);
        self.held = held;
        let (flow, sent) = sent?;
        self.taken += sent;
        if flow == Flow::Done {
            self.held.drain(..self.taken);
            self.taken = 0;
        }
        Ok(flow)
    }

    /// Sends from `bytes`, which begin with the next bytes to send; returns how many were sent.
    fn send_echo(
        &mut self,
        bytes: &[u8],
        responder: &Responder,
        sink: &mut impl Sink,
        counters: &mut Counters,
    ) -> Result<(Flow, usize), i32> {
        let mut sent = 0;
        loop {
            if self.begun == 0 {
                if self.owed == 0 {
                    return Ok((Flow::Done, sent));
                }
                let answer_bytes = match responder.reply() {
                    Reply::Echo { request_bytes } => request_bytes,
                    _ => self.raw_bytes,
                };
                if !responder.works() {
                    (self.begun, self.owed) = (self.owed * answer_bytes, 0);
                } else if responder.work(counters) {
                    (self.begun, self.owed) = (answer_bytes, self.owed - 1);
                } else {
                    return Ok((Flow::Stopping, sent));
                }
            }
            match send_some(&bytes[sent..sent + self.begun], sink, counters)? {
                0 => return Ok((Flow::Blocked, sent)),
                count => {
                    sent += count;
                    self.begun -= count;
                }
            }
        }
    }

    fn send_filler(
        &mut self,
        filler: &[u8],
        responder: &Responder,
        sink: &mut impl Sink,
        counters: &mut Counters,
    ) -> Result<Flow, i32> {
        loop {
            if self.begun == 0 {
                if self.owed == 0 {
                    return Ok(Flow::Done);
                }
                if !responder.work(counters) {
                    return Ok(Flow::Stopping);
                }
                (self.begun, self.owed) = (filler.len(), self.owed - 1);
            }
            match send_some(&filler[filler.len() - self.begun..], sink, counters)? {
                0 => return Ok(Flow::Blocked),
                count => self.begun -= count,
            }
        }
    }
}

/// Returns the number of bytes sent; 0 if the sink is full.
fn send_some(bytes: &[u8], sink: &mut impl Sink, counters: &mut Counters) -> Result<usize, i32> {
    loop {
        match sink.send(bytes, counters) {
            Err(libc::EAGAIN) => return Ok(0),
            Err(libc::EINTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exchange::{Exchange, Service, Work};

    /// Takes as many bytes at a time as its script says, 0 for "full", and all after its end.
    struct Scripted {
        script: Vec<usize>,
        taken: Vec<u8>,
    }

    impl Sink for Scripted {
        fn send(&mut self, bytes: &[u8], _: &mut Counters) -> Result<usize, i32> {
            let room = self.script.pop().unwrap_or(usize::MAX).min(bytes.len());
            if room == 0 {
                return Err(libc::EAGAIN);
            }
            self.taken.extend_from_slice(&bytes[..room]);
            Ok(room)
        }
    }

    /// Feeds a stream in pieces to a connection whose socket is sometimes full.
    fn answers_to(responder: &Responder, pieces: &[&[u8]], script: Vec<usize>) -> Vec<u8> {
        let (mut answers, mut counters) = (Answers::default(), Counters::default());
        let mut sink = Scripted { script, taken: Vec::new() };
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let mut flow = answers.feed(piece, responder, &mut sink, &mut counters).unwrap();
            while flow == Flow::Blocked {
                flow = answers.resume(responder, &mut sink, &mut counters).unwrap();
            }
            assert_eq!(flow, Flow::Done);
        }
        sink.taken
    }

    fn responder(exchange: Option<(usize, usize)>, works: bool) -> Responder {
        let exchange = exchange
            .map(|(request_bytes, response_bytes)| Exchange { request_bytes, response_bytes });
        let work = if works { Work::Burn(std::time::Duration::ZERO) } else { Work::None };
        Responder::new(Service { exchange, work })
    }

    proptest! {
        #[test]
        fn any_split_of_the_stream_gives_the_same_answers(
            stream in prop::collection::vec(any::<u8>(), 1..400),
            mut cuts in prop::collection::vec(0..400_usize, 0..12),
            script in prop::collection::vec(0..70_usize, 0..40),
            request_bytes in 1..60_usize,
            response_bytes in 1..90_usize,
            works in any::<bool>(),
        ) {
            for cut in &mut cuts {
                *cut = (*cut).min(stream.len());
            }
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            let whole = stream.len() / request_bytes * request_bytes;

            let raw = responder(None, works);
            prop_assert_eq!(&answers_to(&raw, &pieces, script.clone()), &stream);
            let echo = responder(Some((request_bytes, request_bytes)), works);
            prop_assert_eq!(&answers_to(&echo, &pieces, script.clone()), &stream[..whole]);
            let sized = responder(Some((request_bytes, response_bytes)), works);
            let answers = answers_to(&sized, &pieces, script);
            if request_bytes == response_bytes {
                prop_assert_eq!(&answers, &stream[..whole]);
            } else {
                prop_assert_eq!(answers.len(), whole / request_bytes * response_bytes);
                let Reply::Filler { bytes, .. } = sized.reply() else { unreachable!() };
                prop_assert!(answers.chunks(response_bytes).all(|answer| answer == bytes));
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded_by_a_request_and_a_read() {
        let responder = responder(Some((10, 10)), false);
        let (mut answers, mut counters) = (Answers::default(), Counters::default());
        let mut sink = Scripted { script: Vec::new(), taken: Vec::new() };
        for _ in 0..1_000 {
            answers.feed(&[7; 13], &responder, &mut sink, &mut counters).unwrap();
            assert!(answers.held.len() < 10);
        }
        assert_eq!(sink.taken.len(), 13_000);
    }

    #[test]
    fn an_error_of_the_socket_is_passed_on() {
        struct Broken;
        impl Sink for Broken {
            fn send(&mut self, _: &[u8], _: &mut Counters) -> Result<usize, i32> {
                Err(libc::EPIPE)
            }
        }
        let fed = Answers::default().feed(
            b"request",
            &responder(None, false),
            &mut Broken,
            &mut Counters::default(),
        );
        assert_eq!(fed, Err(libc::EPIPE));
    }
}
