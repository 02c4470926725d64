//! Implements proportional rate reduction (RFC 6937, with the safe acknowledgement of its
//! successor, RFC 9937): during recovery, bytes are sent in proportion to the bytes that arrive.

/// The state of one recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateReduction {
    /// Bytes outstanding when recovery began (RecoverFS).
    flight: u32,
    delivered: u32,
    sent: u32,
}

impl RateReduction {
    /// Starts a recovery with this number of bytes outstanding.
    pub(super) fn new(flight: u32) -> RateReduction {
        RateReduction { flight: flight.max(1), delivered: 0, sent: 0 }
    }

    /// The number of bytes that may be sent after an acknowledgement by which `delivered` more
    /// bytes have arrived. `safe`: it advanced and showed no further loss (section 3).
    pub(super) fn allowance(
        &mut self,
        delivered: u32,
        in_flight: u32,
        safe: bool,
        threshold: u32,
        maximum_segment: u32,
    ) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        let allowed = if in_flight > threshold {
            let share =
                (u64::from(self.delivered) * u64::from(threshold)).div_ceil(u64::from(self.flight));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.sent)
        } else {
            let arrived = self.delivered.saturating_sub(self.sent).max(delivered);
            let growth = if safe { maximum_segment } else { 0 };
            arrived.saturating_add(growth).min(threshold - in_flight)
        };
        // The first lost segment is sent again at once.
        if self.sent == 0 { allowed.max(maximum_segment) } else { allowed }
    }

    /// Records that bytes were sent, for the first time or again.
    pub(super) fn on_sent(&mut self, bytes: u32) {
        self.sent = self.sent.saturating_add(bytes);
    }
}
