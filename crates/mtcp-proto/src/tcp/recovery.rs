//! Tracks loss recovery: RACK and tail loss probes (RFC 8985), fast recovery without SACK (RFC
//! 6582), and the retransmission timer (RFC 6298). Reverts spurious reductions of the window: by
//! timestamps (the Eifel algorithm, RFC 3522) or without (F-RTO, RFC 5682).

use super::rack::TailLossProbe;
use super::scoreboard::{Acknowledged, Sacked};
use crate::sequence::Sequence;
use crate::time::Instant;

/// The phase of a connection that has detected a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Acknowledgements have shown a loss.
    Recovery,
    /// The retransmission timer has expired.
    Loss,
}

/// The state of loss recovery and retransmission.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// When the retransmission timer started; before the connection is established, when our SYN
    /// was last sent.
    pub(super) base: Instant,
    /// Segments that were sent again.
    pub(super) retransmissions: u32,
    /// The state of the present phase, or of a tail loss probe in flight.
    episode: Option<Box<Episode>>,
}

#[derive(Debug)]
struct Episode {
    /// Whether the next acknowledgement shows if this phase was spurious.
    judging: bool,
    /// The first retransmission of this phase: its timestamp and its first number.
    stamp: Option<(u32, Sequence)>,
    /// The end of all data that was sent when the phase began; its acknowledgement ends the phase.
    point: Sequence,
    probe: TailLossProbe,
}

impl Recovery {
    pub(super) fn new() -> Recovery {
        Recovery { phase: Phase::Open, base: Instant::ZERO, retransmissions: 0, episode: None }
    }

    /// Begins a phase; `point` is the end of all data sent.
    pub(super) fn enter(&mut self, phase: Phase, point: Sequence) {
        self.phase = phase;
        let probe = TailLossProbe::default();
        self.episode = Some(Box::new(Episode { judging: true, stamp: None, point, probe }));
    }

    /// Whether all data that was sent when the last phase began is acknowledged.
    pub(super) fn is_past(&self, acknowledged: Sequence) -> bool {
        self.episode.as_ref().is_none_or(|episode| acknowledged >= episode.point)
    }

    pub(super) fn is_probing(&self) -> bool {
        self.episode.as_ref().is_some_and(|episode| episode.probe.is_under_way())
    }

    /// Enters the phase of an expired retransmission timer; `point` is the end of all data sent.
    pub(super) fn enter_loss(&mut self, point: Sequence) {
        if self.phase != Phase::Loss {
            self.enter(Phase::Loss, point);
        } else if let Some(episode) = &mut self.episode {
            episode.point = point;
        }
    }

    /// Ends the phase. True if exactly the data that was sent when it began is acknowledged.
    pub(super) fn end(&mut self, acknowledged: Sequence) -> bool {
        self.phase = Phase::Open;
        self.episode.take().is_some_and(|ended| ended.point == acknowledged)
    }

    /// Records that data from `start` on was sent again, with this timestamp.
    pub(super) fn note_stamp(&mut self, stamp: u32, start: Sequence) {
        if let Some(episode) = &mut self.episode
            && episode.judging
            && episode.stamp.is_none()
        {
            episode.stamp = Some((stamp, start));
        }
    }

    /// Decides which copy the first acknowledgement after a retransmission answers. It uses the
    /// echoed timestamp (RFC 3522, section 3.2). Without timestamps, it checks whether data is
    /// acknowledged that was sent only once although the timer had declared all of it lost (RFC
    /// 5682, section 3). True if the phase was spurious; it has then ended.
    pub(super) fn judge(
        &mut self,
        acknowledgement: Sequence,
        echo: Option<u32>,
        sack: bool,
        (told, sacked): (&Acknowledged, &Sacked),
    ) -> bool {
        let Some(episode) = &mut self.episode else { return false };
        if !episode.judging || (told.bytes == 0 && sacked.bytes == 0) {
            return false;
        }
        let needless = match (episode.stamp, echo) {
            (Some((stamp, start)), Some(echo)) => {
                if told.bytes == 0 || acknowledgement <= start {
                    return false;
                }
                (echo.wrapping_sub(stamp) as i32) < 0
            }
            _ => self.phase == Phase::Loss && sack && (told.original || sacked.original),
        };
        episode.judging = false;
        if needless {
            self.phase = Phase::Open;
            self.episode = None;
        }
        needless
    }

    /// Records that a tail loss probe was sent; `end` is the end of all data sent.
    pub(super) fn probed(&mut self, acknowledged: Sequence, end: Sequence, repeated: bool) {
        let episode = self.episode.get_or_insert_with(|| {
            let probe = TailLossProbe::default();
            Box::new(Episode { judging: false, stamp: None, point: acknowledged, probe })
        });
        episode.probe.on_sent(end, repeated);
    }

    /// Handles an acknowledgement; true if a tail loss probe has repaired a loss (RFC 8985, section
    /// 7.4).
    pub(super) fn hear_of_probe(&mut self, ack: Sequence, reported: bool, repeats: bool) -> bool {
        let Some(episode) = &mut self.episode else { return false };
        if !episode.probe.is_under_way() {
            return false;
        }
        let repaired = episode.probe.on_ack(ack, reported, repeats);
        if self.phase == Phase::Open && !self.is_probing() && self.is_past(ack) {
            self.episode = None;
        }
        repaired
    }
}
