//! The known faults of the channel that are let pass, each by a rule of its own. Each function is
//! to be deleted with its rule when the fault is mended.

use crate::rules::Rule;
use crate::script::{LinkKind, Script};
use crate::semantics::{State, What};
use megapipe::DriverChoice;

/// A message that does not fit is cut without a word.
pub(crate) fn cut_message(kind: LinkKind) -> Option<Rule> {
    (kind == LinkKind::Seqpacket).then_some(Rule::KnownFaultSeqpacketCut)
}

/// A reset that is told as an end, beside a write that it has cut or is about to cut.
pub(crate) fn hidden_reset(state: &State, is_writing: bool) -> Option<Rule> {
    (state.is_write_cut || is_writing).then_some(Rule::KnownFaultCutWrite)
}

/// A handle that goes while a single receive of a datagram is pending.
pub(crate) fn stranger_datagram(what: What, repeats: bool) -> Option<Rule> {
    let is_single = what == What::ReceiveFrom && !repeats;
    is_single.then_some(Rule::KnownFaultStrangerDatagram)
}

/// Events of poll(2) that were not asked for.
pub(crate) fn unasked_events(driver: DriverChoice, events: u32) -> Option<Rule> {
    let hang_up = events == libc::POLLRDHUP as u32;
    (driver == DriverChoice::Uring && hang_up).then_some(Rule::KnownFaultPollRdhup)
}

/// A request that the cancellation of another handle with the same open file has ended; a write, in
/// part.
pub(crate) fn foreign_cancel(driver: DriverChoice, shares_file: bool) -> Option<Rule> {
    (driver == DriverChoice::Uring && shares_file).then_some(Rule::KnownFaultForeignCancel)
}

/// Whether a poll has told of a hang-up that it was not asked for.
pub(crate) fn tells_hang_up(told: Option<Result<u64, i32>>, asked: usize) -> Option<Rule> {
    let hang_up = libc::POLLRDHUP as u64 & !(asked as u64);
    let unasked = matches!(told, Some(Ok(events)) if events & hang_up != 0);
    unasked.then_some(Rule::KnownFaultPollRdhup)
}

/// A difference after a connect that has failed.
pub(crate) fn failed_connect(kind: LinkKind, has_failed: bool) -> Option<Rule> {
    (kind == LinkKind::Connecting && has_failed).then_some(Rule::KnownFaultFailedConnect)
}

/// An error that may not be.
pub(crate) fn unexpected_error(
    driver: DriverChoice,
    kind: LinkKind,
    what: What,
    errno: i32,
) -> Option<Rule> {
    let rule = match (kind, what, errno) {
        (LinkKind::Connecting, What::Connect, libc::EINVAL | libc::ECONNABORTED) => {
            Rule::KnownFaultFailedConnect
        }
        (LinkKind::Tty, What::Poll, libc::EINVAL) => Rule::KnownFaultTtyPollInvalid,
        _ => return None,
    };
    (driver == DriverChoice::Uring).then_some(rule)
}

/// A poll that failed on one driver only.
pub(crate) fn invalid_poll(kind: LinkKind, uring: Option<Result<u64, i32>>) -> Option<Rule> {
    let is_invalid = kind == LinkKind::Tty && uring == Some(Err(libc::EINVAL));
    is_invalid.then_some(Rule::KnownFaultTtyPollInvalid)
}

/// A close of a handle that still receives, with a duplicate.
pub(crate) fn late_close(shares_file: bool, receives: bool) -> Option<Rule> {
    (shares_file && receives).then_some(Rule::KnownFaultLateClose)
}

/// A repeating poll that never rests.
pub(crate) fn poll_storm(kind: LinkKind) -> Option<Rule> {
    (kind == LinkKind::Tty).then_some(Rule::KnownFaultTtyPollStorm)
}

/// A write that might fill a terminal's buffer, in which so many bytes are already.
pub(crate) fn full_terminal(kind: LinkKind, bytes: usize) -> Option<Rule> {
    let is_full = kind == LinkKind::Tty && bytes > TERMINAL_BYTES_MAX;
    is_full.then_some(Rule::KnownFaultTtyWriteBlocks)
}

/// Less than what the buffer of a terminal takes.
const TERMINAL_BYTES_MAX: usize = 2500;

/// A channel with a listener whose table of requests may be full when an accept is cancelled.
pub(crate) fn full_table(script: &Script) -> Option<Rule> {
    let listens = script.links.iter().any(|kind| kind.is_listener());
    let is_small = script.settings.max_requests < REQUESTS_ENOUGH;
    (listens && is_small).then_some(Rule::KnownFaultAcceptEndLost)
}

/// More requests than a script files.
pub(crate) const REQUESTS_ENOUGH: u32 = 512;
