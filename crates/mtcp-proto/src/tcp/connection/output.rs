//! Builds waiting segments, in the memory from which the device takes them.

use super::{Connection, Context};
use crate::packet::{Packet, PartialChecksum, Sink, SinkCapabilities};
use crate::sequence::Sequence;
use crate::socket::State;
use crate::tcp::due::Plan;
use crate::tcp::sender::Fresh;
use crate::tcp::timers::NEVER;
use crate::wire::ip::{Ecn, IpHeader};
use crate::wire::tcp::{Flags, Options, TcpHeader};
use crate::wire::{PROTOCOL_TCP, checksum};

/// Offset of the checksum in the TCP header.
const CHECKSUM_OFFSET: u16 = 16;

/// A segment to write.
struct Segment {
    sequence: Sequence,
    /// Data bytes, which begin at `sequence`.
    bytes: u32,
    fin: bool,
    /// Whether the data was never sent before.
    new: bool,
}

impl Connection {
    /// Whether at most an acknowledgement has to be sent, which is nearly always so.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.due.is_nothing() && !self.has_unsent() && self.send.scoreboard.lost_bytes() == 0
    }

    /// Whether an acknowledgement has to be sent.
    #[inline]
    pub(super) fn acknowledges(&self) -> bool {
        self.acks.due && self.state != State::Closed
    }

    /// The next segment to send, if any.
    pub(super) fn plan(&self) -> Option<Plan> {
        let due = &self.due;
        if due.reset {
            return Some(Plan::Reset);
        }
        if due.stray_reset {
            return Some(Plan::StrayReset(due.stray));
        }
        if due.syn {
            return Some(Plan::Syn);
        }
        if self.state == State::Closed {
            return None;
        }
        if self.may_send_again() {
            return Some(Plan::Again);
        }
        if due.tail_probe
            && let Some(plan) = self.tail_probe()
        {
            return Some(plan);
        }
        if let Some(fresh) = self.fresh() {
            return Some(Plan::Fresh(fresh));
        }
        if due.window_probe
            && let Some(fresh) = self.window_probe()
        {
            return Some(Plan::WindowProbe(fresh));
        }
        if due.keepalive {
            return Some(Plan::Keepalive);
        }
        self.acks.due.then_some(Plan::Acknowledgement)
    }

    /// Writes one segment. False if the sink is full; then nothing has changed.
    pub(super) fn transmit(
        &mut self,
        plan: Plan,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        match plan {
            Plan::Reset => self.transmit_reset(sink, context),
            Plan::StrayReset(sequence) => self.transmit_stray_reset(sequence, sink, context),
            Plan::Syn => self.transmit_syn(sink, context),
            Plan::Again => {
                let lost = self.send.scoreboard.next_lost();
                self.transmit_again(lost, sink, context)
            }
            Plan::TailProbe => {
                let last = self.send.scoreboard.last_segment(u32::from(self.send.full));
                let sent = self.transmit_again(last, sink, context);
                if sent {
                    self.sent_tail_probe(true, context);
                }
                sent
            }
            Plan::Fresh(fresh) => self.transmit_fresh(fresh, sink, context),
            Plan::FreshProbe(fresh) => {
                let sent = self.transmit_fresh(fresh, sink, context);
                if sent {
                    self.sent_tail_probe(false, context);
                }
                sent
            }
            Plan::WindowProbe(fresh) => self.transmit_window_probe(fresh, sink, context),
            Plan::Keepalive => self.transmit_empty(self.send.next - 1, sink, context),
            Plan::Acknowledgement => {
                let sent = self.transmit_empty(self.send.next, sink, context);
                if sent {
                    self.acknowledged_alone();
                }
                sent
            }
        }
    }

    fn transmit_reset(&mut self, sink: &mut dyn Sink, context: &mut Context<'_>) -> bool {
        let header = TcpHeader {
            sequence: self.send.next,
            acknowledgement: self.receive.next,
            flags: Flags::RST.with(Flags::ACK),
            ..TcpHeader::default()
        };
        let sent = self.write_bare(&header, sink);
        if sent {
            self.due.reset = false;
            context.counters.resets_sent += 1;
            context.counters.packets_sent += 1;
        }
        sent
    }

    fn transmit_stray_reset(
        &mut self,
        sequence: Sequence,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        let header = TcpHeader { sequence, flags: Flags::RST, ..TcpHeader::default() };
        let sent = self.write_bare(&header, sink);
        if sent {
            self.due.stray_reset = false;
            context.counters.resets_sent += 1;
            context.counters.packets_sent += 1;
        }
        sent
    }

    fn transmit_syn(&mut self, sink: &mut dyn Sink, context: &mut Context<'_>) -> bool {
        let header = self.syn_header(context);
        let sent = self.write_bare(&header, sink);
        if sent {
            context.counters.packets_sent += 1;
            self.sent_syn(context);
            if self.state == State::SynReceived {
                self.acknowledged_all();
            }
        }
        sent
    }

    /// Writes a segment without data, which acknowledges.
    fn transmit_empty(
        &mut self,
        sequence: Sequence,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        let segment = Segment { sequence, bytes: 0, fin: false, new: false };
        let sent = self.write_segment(&segment, sink, context).is_some();
        if sent && self.due.keepalive {
            self.due.keepalive = false;
            context.counters.keepalive_probes += 1;
        }
        sent
    }

    fn transmit_fresh(
        &mut self,
        fresh: Fresh,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        let start = self.send.next;
        // The byte of an earlier window probe was sent before (RFC 3168, section 6.1.5).
        let new = !(self.send.probed && fresh.bytes == 1);
        let segment = Segment { sequence: start, bytes: fresh.bytes, fin: fresh.fin, new };
        let Some(end) = self.write_segment(&segment, sink, context) else { return false };
        self.send.probed = false;
        if !end.since(start).is_multiple_of(u32::from(self.send.full)) {
            self.send.small_end = end;
        }
        self.sent_fresh(start, end, context);
        true
    }

    /// Writes a window probe. Its byte does not count as sent, because a peer whose window is
    /// closed need not accept it. A peer that accepts it acknowledges it (RFC 9293, section
    /// 3.8.6.1).
    fn transmit_window_probe(
        &mut self,
        fresh: Fresh,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        if self.send.window > 0 {
            let sent = self.transmit_fresh(fresh, sink, context);
            if sent {
                self.due.window_probe = false;
            }
            return sent;
        }
        let segment =
            Segment { sequence: self.send.next, bytes: fresh.bytes, fin: fresh.fin, new: false };
        if self.write_segment(&segment, sink, context).is_none() {
            return false;
        }
        self.send.probed = true;
        self.sent_window_probe(context);
        true
    }

    fn transmit_again(
        &mut self,
        range: Option<(Sequence, u32)>,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> bool {
        let Some((start, length)) = range else { return true };
        let end = start + length;
        let data_end = self.send.data_end();
        let bytes = end.min(data_end).distance(start).max(0) as u32;
        let segment = Segment { sequence: start, bytes, fin: end > data_end, new: false };
        let Some(end) = self.write_segment(&segment, sink, context) else { return false };
        self.sent_again(start, end, context);
        true
    }

    /// Writes a segment with acknowledgement and window. Returns the end of its data, which is less
    /// than requested if one packet cannot hold it.
    fn write_segment(
        &mut self,
        segment: &Segment,
        sink: &mut dyn Sink,
        context: &mut Context<'_>,
    ) -> Option<Sequence> {
        let new_data = segment.new && segment.bytes > 0;
        let mut options = Options::default();
        if self.stamps.on {
            options.timestamps = Some(self.stamps.option(context.now));
        }
        let capabilities = sink.capabilities();
        let ip = self.ip_header(self.ecn.codepoint(new_data));
        if self.send.sack && self.receive.reassembly.has_blocks() {
            let most = if self.stamps.on { 3 } else { 4 };
            options.sack_count = self.receive.reassembly.block_count(most) as u8;
        }
        let mut header = TcpHeader {
            source_port: self.flow.local_port(),
            destination_port: self.flow.remote_port(),
            sequence: segment.sequence,
            acknowledgement: self.receive.next,
            flags: Flags::ACK,
            options,
            ..TcpHeader::default()
        };
        let header_bytes = header.bytes();
        let all_headers = ip.bytes() + header_bytes;
        let single = u32::from(self.send.segment).saturating_sub(header_bytes as u32 - 20).max(1);
        let bytes = self.packet_payload(segment, single, capabilities, all_headers);
        let fin = segment.fin && bytes == segment.bytes;
        let total = all_headers + bytes as usize;
        let room = sink.room(total)?;
        self.acknowledged_all();
        if header.options.sack_count > 0 {
            self.report_blocks(&mut header.options);
        }
        let limit = self.receive_limit();
        header.window = self.receive.announce(limit, context.pool.pressed());
        header.flags = header.flags.with(self.ecn.flags(new_data));
        if fin {
            header.flags = header.flags.with(Flags::FIN);
        }
        if let Some(pointer) =
            self.options.urgent().pointer(segment.sequence, self.send.unacknowledged)
        {
            header.flags = header.flags.with(Flags::URG);
            header.urgent = pointer;
        }
        let offset = segment.sequence.since(self.send.unacknowledged);
        let end = segment.sequence + bytes;
        if bytes > 0 {
            if end == self.send.data_end() {
                header.flags = header.flags.with(Flags::PSH);
            }
            context.counters.data_segments_sent += 1;
        }
        ip.write(header_bytes + bytes as usize, room);
        header.write(&mut room[ip.bytes()..]);
        if bytes > 0 {
            let data = &mut room[all_headers..total];
            self.send.ring.copy_out(offset as usize, data);
        }
        let segment_bytes = (bytes > single).then_some(single as u16);
        seal(&ip, &mut room[..total], capabilities.checksum || segment_bytes.is_some());
        sink.commit(packet(&ip, total, capabilities.checksum, segment_bytes));
        context.counters.packets_sent += 1;
        Some(end + u32::from(fin))
    }

    /// Records that a segment with an acknowledgement is sent.
    fn acknowledged_all(&mut self) {
        self.acks.sent(self.due.repeats > 0);
        self.timers.acknowledgement = NEVER;
        self.receive.acknowledged = self.receive.next;
    }

    /// Records that an acknowledgement without data was sent, one of the duplicates to send.
    fn acknowledged_alone(&mut self) {
        if self.due.repeats > 0 {
            self.due.repeats -= 1;
            self.acks.due = self.due.repeats > 0;
        }
    }

    /// Writes the SACK blocks for which there is room. If not all new ranges fit, another
    /// acknowledgement is sent.
    fn report_blocks(&mut self, options: &mut Options) {
        let reassembly = &mut self.receive.reassembly;
        reassembly.blocks(&mut options.sack, usize::from(options.sack_count));
        self.acks.due |= reassembly.has_untold();
    }

    /// The data bytes of a segment that go into one packet: at most `single`, or several times as
    /// many if the device cuts packets into segments.
    fn packet_payload(
        &self,
        segment: &Segment,
        single: u32,
        capabilities: SinkCapabilities,
        all_headers: usize,
    ) -> u32 {
        let device = (capabilities.segmentation_bytes.min(65_535) as usize)
            .saturating_sub(all_headers) as u32;
        // Each segment has its own distance to the urgent byte, so the device must not cut the
        // packet.
        let joined = segment.new && !self.is_sending_urgent();
        let most = if joined { device.max(single) } else { single };
        let bytes = segment.bytes.min(most);
        if bytes < segment.bytes && bytes > single { bytes - bytes % single } else { bytes }
    }

    /// Writes a segment that has only a header: SYN or RST.
    fn write_bare(&mut self, header: &TcpHeader, sink: &mut dyn Sink) -> bool {
        let header = TcpHeader {
            source_port: self.flow.local_port(),
            destination_port: self.flow.remote_port(),
            ..*header
        };
        let capabilities = sink.capabilities();
        let ip = self.ip_header(Ecn::NotCapable);
        let total = ip.bytes() + header.bytes();
        let Some(room) = sink.room(total) else { return false };
        ip.write(header.bytes(), room);
        header.write(&mut room[ip.bytes()..]);
        seal(&ip, &mut room[..total], capabilities.checksum);
        sink.commit(packet(&ip, total, capabilities.checksum, None));
        true
    }

    fn ip_header(&self, ecn: Ecn) -> IpHeader {
        IpHeader {
            source: self.flow.local_address(),
            destination: self.flow.remote_address(),
            protocol: PROTOCOL_TCP,
            ecn,
            hop_limit: 64,
        }
    }
}

/// Writes the checksum, or the partial one if the device completes it.
fn seal(ip: &IpHeader, packet: &mut [u8], partial: bool) {
    let segment = &mut packet[ip.bytes()..];
    if partial {
        checksum::fill_tcp_partial(ip.source, ip.destination, segment);
    } else {
        checksum::fill_tcp(ip.source, ip.destination, segment);
    }
}

fn packet(ip: &IpHeader, bytes: usize, partial: bool, segment_bytes: Option<u16>) -> Packet {
    let partial = partial || segment_bytes.is_some();
    Packet {
        bytes,
        destination: ip.destination,
        partial_checksum: partial
            .then_some(PartialChecksum { start: ip.bytes() as u16, offset: CHECKSUM_OFFSET }),
        segment_bytes,
    }
}
