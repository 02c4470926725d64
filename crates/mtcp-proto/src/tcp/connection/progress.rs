//! Processes acknowledgements (RFC 9293, section 3.10.7.4, fifth step).

use super::{Connection, Context};
use crate::sequence::Sequence;
use crate::tcp::recovery::Phase;
use crate::tcp::scoreboard::{Acknowledged, Sacked};
use crate::tcp::timers::NEVER;
use crate::tcp::timestamps::CLOCK_TICK;
use crate::wire::tcp::TcpHeader;
use std::time::Duration;

impl Connection {
    /// Processes the acknowledgement, window and SACK blocks of a segment whose acknowledgement was
    /// checked; `length` is the number of sequence numbers in the segment.
    pub(super) fn take_acknowledgement(
        &mut self,
        header: &TcpHeader,
        length: usize,
        context: &mut Context<'_>,
    ) {
        let ack = header.acknowledgement;
        let before = self.send.unacknowledged;
        let window = u32::from(header.window) << self.send.scale;
        let opened = ack >= before && self.send.update_window(window, header.sequence, ack);
        if ack == before && self.send.outstanding() == 0 {
            if opened {
                self.watch_window(context);
            }
            return;
        }
        let in_flight = self.send.scoreboard.in_flight();
        let fin_acknowledged = ack > before && self.advance_sent(ack, context);
        let minimum = self.send.rtt.minimum();
        let told = self.send.scoreboard.acknowledge(ack, context.now, minimum);
        let sacked = if self.send.sack && header.options.sack_count > 0 {
            let blocks = header.options.sack_blocks();
            self.send.scoreboard.sack(blocks, ack, context.now, minimum)
        } else {
            Sacked::default()
        };
        let repeats = ack == before && length == 0 && !opened && header.options.sack_count == 0;
        let mut duplicates = 0;
        if repeats && !self.send.sack {
            let full = u32::from(self.send.full);
            duplicates = self.send.scoreboard.duplicate_ack(full);
        }
        self.measure(header, &told, &sacked, context);
        self.judge(header, &told, &sacked);
        self.hear_of_probe(&sacked, repeats);
        let recovered = ack > before && self.end_recovery();
        let lost = self.look_for_losses(&told, duplicates, context);
        if !recovered {
            self.pace(&told, &sacked, (lost, duplicates), in_flight, context);
        }
        if ack > before {
            self.restart_loss_timer(context);
        }
        if fin_acknowledged {
            self.fin_was_acknowledged(context);
        }
    }

    /// Removes acknowledged data from the buffer. True if our FIN was acknowledged too.
    fn advance_sent(&mut self, ack: Sequence, context: &mut Context<'_>) -> bool {
        let send = &mut self.send;
        if ack > send.next {
            // The peer has accepted the byte of the window probe.
            send.next = ack;
        }
        send.probed = false;
        let fin = send.fin_sent() && !send.fin_acknowledged && ack == send.next;
        send.fin_acknowledged |= fin;
        let data = ack.since(send.unacknowledged) - u32::from(fin);
        send.ring.consume(data as usize);
        send.ring.release_if_empty(context.pool);
        send.unacknowledged = ack;
        send.bytes_acknowledged += u64::from(data);
        self.timers.memory = NEVER;
        self.alive.progress(context.now);
        if send.ring.is_empty() || data >= u32::from(send.full) {
            self.alive.moved_at = context.now;
        }
        if data >= u32::from(self.send.full) {
            self.path.passed();
        }
        fin
    }

    /// Measures the round trip from data that was sent once or, with timestamps, also from data
    /// that was sent again (RFC 7323, section 4), unless the echo is ambiguous. The back-off stays
    /// until there is a measurement (RFC 6298, section 5): on a path that takes longer than the
    /// time-out, every segment would be sent again, and none could ever be measured.
    fn measure(
        &mut self,
        header: &TcpHeader,
        told: &Acknowledged,
        sacked: &Sacked,
        context: &mut Context<'_>,
    ) {
        if let Some(round_trip) = told.round_trip.or(sacked.round_trip) {
            self.send.rtt.sample(context.now, round_trip);
        } else if told.bytes > 0
            && let Some(age) = self.stamps.round_trip(header, context.now)
            && !self.measures_a_wait(age, told)
        {
            self.send.rtt.sample(context.now, age);
        }
    }

    /// Whether the echo is older than every acknowledged retransmission although the
    /// acknowledgement may answer a retransmission. This happens when the first acknowledgement was
    /// lost: a segment that arrives again is old for the peer and does not change its echo. The
    /// measured age is then that of a time-out, and must not cause a longer one. An acknowledgement
    /// that arrives too early for the retransmission answers the first copy, and measures a path
    /// that has become slow.
    fn measures_a_wait(&self, age: Duration, told: &Acknowledged) -> bool {
        let Some(repeated) = told.resent_for else { return false };
        let answers_repetition = self.send.rtt.minimum().is_none_or(|least| repeated >= least);
        age > repeated + CLOCK_TICK && answers_repetition
    }

    /// Reports a loss that a tail loss probe has repaired to the congestion control (RFC 8985,
    /// section 7.4).
    fn hear_of_probe(&mut self, sacked: &Sacked, repeats: bool) {
        let reported = sacked.duplicate.is_some();
        let repaired = self.recovery.hear_of_probe(self.send.unacknowledged, reported, repeats);
        if repaired && self.recovery.phase == Phase::Open {
            self.send.congestion.on_loss(self.send.outstanding());
            self.send.congestion.on_recovery_end();
        }
    }

    /// Updates the congestion window after an acknowledgement.
    fn pace(
        &mut self,
        told: &Acknowledged,
        sacked: &Sacked,
        (lost, duplicates): (u32, u32),
        in_flight_before: u32,
        context: &mut Context<'_>,
    ) {
        let send = &mut self.send;
        if send.congestion.in_recovery() {
            let beyond = if duplicates > 0 { u32::from(send.full) } else { sacked.bytes };
            let delivered = told.delivered.saturating_add(beyond);
            let safe = told.bytes > 0 && lost == 0;
            let in_flight = send.scoreboard.in_flight();
            send.congestion.recovery_allowance(delivered, in_flight, safe);
            return;
        }
        let round_trip = told.round_trip.or(sacked.round_trip);
        let used = in_flight_before.saturating_add(2 * u32::from(send.full));
        let used = if send.congestion.in_slow_start() { used.saturating_mul(2) } else { used };
        let limited_by_application = used < send.congestion.window();
        let outstanding = send.outstanding();
        send.congestion.on_ack(
            context.now,
            told.bytes,
            round_trip,
            outstanding,
            limited_by_application,
        );
    }
}
