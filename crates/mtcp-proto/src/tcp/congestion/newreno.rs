//! Implements NewReno congestion avoidance (RFC 5681, RFC 6582), counting bytes (RFC 3465).

/// The part of the window that remains after a loss, in percent: one half (RFC 5681, equation 4).
pub(super) const LEFT_PERCENT: u32 = 50;

/// Congestion avoidance: the window grows by one segment for each acknowledged window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    acknowledged: u32,
}

impl NewReno {
    /// Returns the window after an acknowledgement (RFC 3465, section 2.1).
    pub(super) fn avoid(&mut self, window: u32, acknowledged: u32, maximum_segment: u32) -> u32 {
        self.acknowledged = self.acknowledged.saturating_add(acknowledged);
        if self.acknowledged < window {
            return window;
        }
        self.acknowledged = (self.acknowledged - window).min(window);
        window.saturating_add(maximum_segment)
    }

    /// Restarts the count of acknowledged bytes, because the window has shrunk.
    pub(super) fn restart(&mut self) {
        self.acknowledged = 0;
    }
}
