//! Checks every packet on the wire, between the stacks.

use super::content::Content;
use super::packet::{self, ACK, FIN, RST, SYN, Segment};
use std::collections::HashMap;
use std::net::SocketAddr;

/// The observed state of one end of a connection. Numbers are relative to the initial sequence
/// number of the end that counts them: the SYN is 0, the first byte 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct End {
    /// Its SYNs; several if the answers were cookies, which have different initial numbers. The
    /// last one is valid.
    offers: Vec<Segment>,
    content: Option<Content>,
    /// The end of everything that it has sent.
    pub(crate) sent: i64,
    fin: Option<i64>,
    /// The greatest acknowledgement that it has sent, and the right edge of its window.
    acknowledged: Option<i64>,
    edge: i64,
    timestamp: Option<u32>,
    /// What it has received of the other's acknowledgements, edges and FIN.
    pub(crate) heard: i64,
    heard_edge: i64,
    pub(crate) heard_fin: bool,
    /// Whether it has ended the connection with a reset.
    gone: bool,
}

impl End {
    pub(crate) fn initial(&self) -> Option<u32> {
        self.syn().map(|syn| syn.sequence)
    }

    /// The options of its SYN.
    fn syn(&self) -> Option<&Segment> {
        self.offers.last()
    }

    fn relative(&self, number: u32) -> Option<i64> {
        self.initial().map(|initial| i64::from(number.wrapping_sub(initial) as i32))
    }

    /// Whether a number is before the first one of this connection.
    fn is_before(&self, number: u32) -> bool {
        let is_behind = |offer: &Segment| number.wrapping_sub(offer.sequence) as i32 > 0;
        !self.offers.is_empty() && !self.offers.iter().any(is_behind)
    }

    /// Whether it has acknowledged anything of the other end, at least its SYN.
    pub(crate) fn has_acknowledged(&self) -> bool {
        self.acknowledged.is_some()
    }

    /// Whether it has received acknowledgements of everything that it sent, including its FIN.
    pub(crate) fn end_acknowledged(&self) -> bool {
        self.fin.is_some_and(|fin| self.heard > fin)
    }
}

/// Both ends of a connection, and the fate of its packets.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    /// The index of the connection in the scenario.
    pub(crate) connection: usize,
    pub(crate) addresses: [SocketAddr; 2],
    pub(crate) ends: [End; 2],
    /// The number of consecutive losses that have kept both ends from any progress; losses at one
    /// time count as one. The largest number so far, and the present one.
    pub(crate) fruitless_max: u32,
    fruitless: u32,
    lost_ns: u64,
    /// The last number that each end of the previous connection with this four-tuple has sent, if
    /// there was one.
    before: [Option<u32>; 2],
    /// Whether numbers of the previous connection overlap this one's, so that its late packets
    /// count as packets of this one. Without timestamps they cannot be told apart (RFC 9293,
    /// section 3.4.3).
    pub(crate) overlaps: bool,
    /// Whether a SYN was answered again after the first answer was accepted: a half-open
    /// connection, or a second cookie. From then on numbers prove nothing.
    pub(crate) confused: bool,
}

/// What a packet in flight changes at its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    flow: usize,
    connection: usize,
    receiver: usize,
    acknowledgement: Option<i64>,
    edge: Option<i64>,
    fin: bool,
}

/// All flows; of those with the same four-tuple, the newest.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    flows: Vec<Flow>,
    places: HashMap<(SocketAddr, SocketAddr), usize>,
}

macro_rules! keep {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}

impl Watch {
    /// Starts a connection; `contents` are those of the first and the second address.
    pub(crate) fn open(
        &mut self,
        connection: usize,
        addresses: [SocketAddr; 2],
        contents: [Content; 2],
    ) {
        if self.flow(addresses[0], addresses[1]).is_some_and(|flow| flow.connection == connection) {
            return;
        }
        let before = self.flow(addresses[0], addresses[1]).map(|flow| {
            let turned = flow.addresses[0] != addresses[0];
            let last = |end: &End| Some(end.initial()?.wrapping_add(end.sent as u32));
            [usize::from(turned), usize::from(!turned)].map(|side| last(&flow.ends[side]))
        });
        let ends = contents.map(|content| End { content: Some(content), ..End::default() });
        self.places.insert((addresses[0], addresses[1]), self.flows.len());
        self.places.insert((addresses[1], addresses[0]), self.flows.len());
        self.flows.push(Flow {
            connection,
            addresses,
            ends,
            fruitless_max: 0,
            fruitless: 0,
            lost_ns: 0,
            before: before.unwrap_or_default(),
            overlaps: false,
            confused: false,
        });
    }

    pub(crate) fn flow(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Flow> {
        self.places.get(&(local, remote)).map(|&place| &self.flows[place])
    }

    pub(crate) fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Whether late packets of a previous connection may have counted as packets of this one.
    pub(crate) fn overlaps(&self, connection: usize) -> bool {
        self.flows.iter().any(|flow| flow.connection == connection && flow.overlaps)
    }

    /// Records that a packet of the flow was lost or flipped.
    pub(crate) fn lost(&mut self, note: Option<Note>, now_ns: u64) {
        const APART_NS: u64 = 10_000_000;
        let Some(flow) = note.and_then(|note| self.flows.get_mut(note.flow)) else { return };
        if now_ns >= flow.lost_ns + APART_NS {
            flow.lost_ns = now_ns;
            flow.fruitless += 1;
            flow.fruitless_max = flow.fruitless_max.max(flow.fruitless);
        }
    }

    /// Records that a packet has reached its receiver, in order.
    pub(crate) fn delivered(&mut self, note: Note) {
        let flow = &mut self.flows[note.flow];
        if flow.connection == note.connection {
            let end = &mut flow.ends[note.receiver];
            let before = (end.heard, end.heard_edge, end.heard_fin);
            end.heard = end.heard.max(note.acknowledgement.unwrap_or(0));
            end.heard_edge = end.heard_edge.max(note.edge.unwrap_or(0));
            end.heard_fin |= note.fin;
            if before != (end.heard, end.heard_edge, end.heard_fin) {
                flow.fruitless = 0;
            }
        }
    }

    /// Checks a packet that a stack has sent.
    pub(crate) fn sent(&mut self, bytes: &[u8]) -> Result<Option<Note>, String> {
        if packet::parse_ip(bytes).is_ok_and(|(_, _, protocol, _)| protocol != packet::TCP) {
            return Ok(None);
        }
        let segment = packet::parse(bytes)?;
        let Some(&place) = self.places.get(&(segment.source, segment.destination)) else {
            return Ok(None);
        };
        let flow = &mut self.flows[place];
        let sender = usize::from(segment.source != flow.addresses[0]);
        let mut note = Note {
            flow: place,
            connection: flow.connection,
            receiver: 1 - sender,
            acknowledgement: None,
            edge: None,
            fin: false,
        };
        if segment.has(RST) {
            flow.take_reset(sender, &segment);
            return Ok(Some(note));
        }
        keep!(segment.has(SYN) || segment.has(ACK), "a segment with neither SYN nor ACK");
        if segment.has(ACK) && flow.ends[1 - sender].is_before(segment.acknowledgement) {
            // The packet answers a segment of an earlier connection with this four-tuple.
            return Ok(Some(note));
        }
        if segment.has(SYN) {
            flow.synchronise(sender, &segment)?;
        }
        let end = &flow.ends[sender];
        if end.offers.is_empty() || flow.confused {
            return Ok(Some(note));
        }
        if end.gone || (end.heard_fin && end.end_acknowledged()) {
            // After the FIN, a cookie that arrives a second time starts the connection again;
            // errors of that are ignored.
            let _ = flow.check_acknowledgement(sender, &segment, &mut note);
            return Ok(Some(note));
        }
        let checked = flow
            .check_acknowledgement(sender, &segment, &mut note)
            .and_then(|()| flow.check_options(sender, &segment))
            .and_then(|()| flow.check_data(sender, &segment, &bytes[segment.data_at..]));
        note.fin = segment.has(FIN);
        checked.map(|()| Some(note)).map_err(|what| format!("{what}: {segment:?}"))
    }
}

impl Flow {
    /// Records a reset, which ends this connection only if its number belongs to it. A reset of a
    /// previous connection, which a second copy of a cookie has started again, may follow our SYN.
    fn take_reset(&mut self, sender: usize, segment: &Segment) {
        let within = |end: &End, number: u32, first: i64| {
            end.relative(number).is_some_and(|place| (first..=end.sent).contains(&place))
        };
        let own = within(&self.ends[sender], segment.sequence, 1);
        let peers = within(&self.ends[1 - sender], segment.acknowledgement, 0);
        self.ends[sender].gone |= segment.has(ACK) && own && peers;
    }

    /// Records the options and the initial number of a SYN.
    fn synchronise(&mut self, sender: usize, segment: &Segment) -> Result<(), String> {
        keep!(segment.ecn == 0, "a SYN that is ECN-capable");
        keep!(segment.data_bytes == 0 && !segment.has(FIN), "a SYN with data or FIN");
        keep!(segment.options.maximum_segment.is_some(), "a SYN without a maximum segment");
        let taken = self.ends[1 - sender].acknowledged.is_some();
        let [first, second] = &mut self.ends;
        let (end, peer) = if sender == 0 { (first, second) } else { (second, first) };
        if let (true, Some(offer)) = (segment.has(ACK), peer.syn()) {
            let (ours, theirs) = (&segment.options, &offer.options);
            let more = (ours.window_scale.is_some() && theirs.window_scale.is_none())
                || (ours.timestamps.is_some() && theirs.timestamps.is_none())
                || (ours.sack_permitted && !theirs.sack_permitted);
            keep!(!more, "a SYN-ACK with an option that was not offered");
        }
        let ahead = |last: u32| last.wrapping_sub(segment.sequence) as i32 > 0;
        if segment.options.timestamps.is_none() && self.before[sender].is_some_and(ahead) {
            (self.overlaps, self.confused) = (true, true);
        }
        let other = end.initial().is_some_and(|initial| initial != segment.sequence);
        if (segment.has(ACK) && end.acknowledged > Some(1)) || (taken && other) {
            // A late SYN was answered after its connection had ended.
            self.confused = true;
            return Ok(());
        }
        if !end.offers.iter().any(|offer| offer.sequence == segment.sequence) {
            end.offers.push(segment.clone());
            end.sent = end.sent.max(1);
        }
        Ok(())
    }

    fn check_acknowledgement(
        &mut self,
        sender: usize,
        segment: &Segment,
        note: &mut Note,
    ) -> Result<(), String> {
        let [first, second] = &mut self.ends;
        let (end, peer) = if sender == 0 { (first, second) } else { (second, first) };
        if !segment.has(ACK) {
            note.edge = Some(1 + i64::from(segment.window));
            return Ok(());
        }
        if end.acknowledged.is_none() {
            // Of several answers, the one that the peer acknowledges is valid.
            peer.offers.sort_by_key(|offer| {
                let beyond = segment.acknowledgement.wrapping_sub(offer.sequence);
                std::cmp::Reverse(beyond.wrapping_sub(1))
            });
        }
        let Some(acknowledged) = peer.relative(segment.acknowledgement) else {
            return Err("it acknowledges a SYN that was never sent".into());
        };
        keep!(acknowledged <= peer.sent, "it acknowledges {acknowledged} of {}", peer.sent);
        let before = end.acknowledged.unwrap_or(0);
        keep!(acknowledged >= before, "the acknowledgement goes back from {before}");
        let scale = match (end.syn(), peer.syn()) {
            (Some(ours), Some(theirs))
                if !segment.has(SYN) && theirs.options.window_scale.is_some() =>
            {
                ours.options.window_scale.unwrap_or(0)
            }
            _ => 0,
        };
        let edge = acknowledged + (i64::from(segment.window) << scale);
        (note.acknowledgement, note.edge) = (Some(acknowledged), Some(edge));
        // RFC 7323, section 2.4: less than a unit of the shift may be rounded away. A cookie is
        // sent without memory of the previous one.
        let kept = edge + (1 << scale) > end.edge || segment.has(SYN);
        keep!(kept, "the right edge goes back from {} to {edge}", end.edge);
        end.acknowledged = Some(acknowledged);
        end.edge = if segment.has(SYN) { edge } else { edge.max(end.edge) };
        Ok(())
    }

    fn check_options(&mut self, sender: usize, segment: &Segment) -> Result<(), String> {
        let [first, second] = &mut self.ends;
        let (end, peer) = if sender == 0 { (first, second) } else { (second, first) };
        let options = &segment.options;
        let (Some(ours), Some(theirs)) = (end.syn(), peer.syn()) else { return Ok(()) };
        if !segment.has(SYN) {
            let agreed = ours.options.timestamps.is_some() && theirs.options.timestamps.is_some();
            keep!(options.timestamps.is_some() == agreed, "timestamps, agreed on: {agreed}");
            let late = options.maximum_segment.is_some() || options.window_scale.is_some();
            keep!(!late && !options.sack_permitted, "an option of SYNs");
        }
        if let Some((value, _)) = options.timestamps {
            let back = end.timestamp.is_some_and(|before| (value.wrapping_sub(before) as i32) < 0);
            keep!(!back, "the timestamp goes back from {:?}", end.timestamp);
            end.timestamp = Some(value);
        }
        keep!(
            options.sack_count == 0 || theirs.options.sack_permitted,
            "SACK to one that does not understand it"
        );
        for (at, &(start, stop)) in options.sack.iter().enumerate().take(options.sack_count) {
            let start = peer.relative(start).unwrap_or(0);
            let stop = peer.relative(stop).unwrap_or(0);
            keep!(start < stop && stop <= peer.sent, "SACK of {start}..{stop}");
            // RFC 2883: the first block may repeat acknowledged data.
            let beyond = start > end.acknowledged.unwrap_or(0);
            keep!(at == 0 || beyond, "SACK of {start}..{stop} below the acknowledgement");
        }
        Ok(())
    }

    fn check_data(&mut self, sender: usize, segment: &Segment, data: &[u8]) -> Result<(), String> {
        let [first, second] = &mut self.ends;
        let (end, peer) = if sender == 0 { (first, second) } else { (second, first) };
        let start = end.relative(segment.sequence).unwrap_or(0);
        let stop = start + data.len() as i64;
        if !data.is_empty() {
            let probe = i64::from(data.len() == 1);
            let edge = end.heard_edge;
            keep!(stop <= edge + probe, "data up to {stop}, but the window ends at {edge}");
            let limit = peer.syn().and_then(|syn| syn.options.maximum_segment);
            let bytes = data.len() + segment.option_bytes;
            let limit = usize::from(limit.unwrap_or(536));
            keep!(bytes <= limit, "a segment of {bytes} bytes where {limit} are allowed");
            keep!(start >= 1, "data at {start}");
            let content = end.content.expect("set when the flow was opened");
            let wrong = content.difference((start - 1) as u64, data);
            keep!(wrong.is_none(), "byte {wrong:?} of the stream is wrong");
            keep!(end.fin.is_none_or(|fin| stop <= fin), "data behind the end");
        }
        if segment.ecn != 0 {
            let agreed = end.syn().zip(peer.syn());
            let agreed = agreed.is_some_and(|(ours, theirs)| ours.has(0x40) && theirs.has(0x40));
            keep!(agreed, "ECN without agreement");
            keep!(!data.is_empty() && stop > end.sent, "ECN on an acknowledgement or a repetition");
        }
        let behind = stop + i64::from(segment.has(SYN)) + i64::from(segment.has(FIN));
        if segment.has(FIN) {
            keep!(end.fin.is_none_or(|fin| fin == stop), "the end moves to {stop}");
            keep!(stop >= end.sent || end.fin.is_some(), "the end lies before data that was sent");
            end.fin = Some(stop);
        }
        keep!(behind <= end.sent || start <= end.sent, "a gap: {start} after {}", end.sent);
        end.sent = end.sent.max(behind);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::Draft;
    use super::super::random::Random;
    use super::*;

    /// The state after a handshake, with windows of 1,000 bytes; the first end begins at 100, the
    /// second at 500.
    fn connected() -> (Watch, [SocketAddr; 2], Content) {
        let ends = ["10.0.0.1:5", "10.0.0.2:80"].map(|end| end.parse().unwrap());
        let content = Content::new(&mut Random::new(1));
        let mut watch = Watch::default();
        watch.open(0, ends, [content; 2]);
        for (from, sequence, acknowledgement, flags) in
            [(0, 100, 0, SYN), (1, 500, 101, SYN | ACK), (0, 101, 501, ACK)]
        {
            let options: &[u8] = if flags & SYN != 0 { &[2, 4, 5, 180] } else { &[] };
            let bytes = draft(ends, from, sequence, acknowledgement, flags, options, &[]);
            let note = watch.sent(&bytes).expect("the handshake is right").expect("a flow");
            watch.delivered(note);
        }
        (watch, ends, content)
    }

    fn draft(
        ends: [SocketAddr; 2],
        from: usize,
        sequence: u32,
        acknowledgement: u32,
        flags: u8,
        options: &[u8],
        data: &[u8],
    ) -> Vec<u8> {
        let (source, destination) = (ends[from], ends[1 - from]);
        let window = 1000;
        Draft { source, destination, sequence, acknowledgement, flags, window, options, data }
            .build()
    }

    #[test]
    fn a_reset_of_an_earlier_connection_does_not_end_this_one() {
        for (sequence, acknowledgement, ends_it) in
            [(101, 501, true), (102, 501, false), (99, 501, false), (101, 502, false)]
        {
            let (mut watch, ends, content) = connected();
            let reset = draft(ends, 0, sequence, acknowledgement, RST | ACK, &[], &[]);
            watch.sent(&reset).expect("resets are not checked");
            // After the FIN nothing is checked any more.
            let wrong = draft(ends, 0, 101, 501, ACK, &[], content.slice(1, 10));
            assert_eq!(watch.sent(&wrong).is_ok(), ends_it, "{sequence} {acknowledgement}");
        }
    }

    #[test]
    fn what_is_right_passes_and_what_is_wrong_does_not() {
        let (mut watch, ends, content) = connected();
        let data = content.slice(0, 1000);
        let mut sent = |sequence, acknowledgement, flags, data: &[u8]| {
            watch.sent(&draft(ends, 0, sequence, acknowledgement, flags, &[], data)).map(|_| ())
        };
        assert_eq!(sent(101, 501, ACK, data), Ok(()));
        let wrong = [
            (sent(101, 501, ACK, &data[1..]), "of the stream is wrong"),
            (sent(1101, 501, ACK, content.slice(1000, 2)), "the window ends"),
            (sent(101, 502, ACK, &[]), "it acknowledges"),
            (sent(101, 501, 0, &[]), "neither SYN nor ACK"),
            (sent(601, 501, ACK | FIN, &[]), "the end lies before"),
        ];
        for (result, why) in wrong {
            assert!(result.as_ref().is_err_and(|what| what.contains(why)), "{result:?}: {why}");
        }
        // One byte beyond the window is a window probe.
        assert_eq!(sent(1101, 501, ACK, content.slice(1000, 1)), Ok(()));
    }
}
