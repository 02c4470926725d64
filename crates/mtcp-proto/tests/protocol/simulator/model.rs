//! Implements the reference state machine (RFC 9293, section 3.3.2, figure 5).

use super::watch::{End, Flow};
use mtcp_proto::State;

/// The application's actions that determine states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    /// Whether it has ended its direction, or closed.
    pub(crate) ended: bool,
    /// Whether it has aborted, failed, or was reset.
    pub(crate) gone: bool,
}

/// The transitions of the figure. Those to CLOSED by reset, failure and time-out are omitted,
/// because they exist for every state.
fn next(state: State) -> &'static [State] {
    match state {
        State::SynSent => &[State::SynReceived, State::Established],
        State::SynReceived => &[State::Established, State::FinWait1],
        State::Established => &[State::FinWait1, State::CloseWait],
        State::FinWait1 => &[State::FinWait2, State::Closing, State::TimeWait],
        State::FinWait2 | State::Closing => &[State::TimeWait],
        State::CloseWait => &[State::LastAck],
        State::LastAck | State::TimeWait => &[State::Closed],
        State::Closed => &[],
    }
}

/// Whether any number of transitions leads there: several segments may arrive at once.
pub(crate) fn reaches(from: State, to: State) -> bool {
    from == to || to == State::Closed || next(from).iter().any(|&step| reaches(step, to))
}

/// Checks a state against the packets on the wire and the application's actions.
pub(crate) fn check(state: State, local: Local, flow: &Flow, side: usize) -> Result<(), String> {
    if flow.confused {
        return Ok(());
    }
    let (own, peer): (&End, &End) = (&flow.ends[side], &flow.ends[1 - side]);
    let ended = matches!(
        state,
        State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait
    );
    let peer_ended =
        matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
    let open = matches!(state, State::Established | State::CloseWait);
    let rules = [
        (ended && !local.ended, "the application has not ended its direction"),
        (open && local.ended && !local.gone, "the application has ended its direction"),
        (peer_ended && !own.heard_fin, "no FIN of the peer has come"),
        (state == State::FinWait2 && !own.end_acknowledged(), "our FIN is not acknowledged"),
        (open && peer.initial().is_none(), "the peer has sent no SYN"),
        (open && own.heard < 1, "our SYN is not acknowledged"),
    ];
    match rules.iter().find(|(broken, _)| *broken) {
        Some((_, why)) => Err(format!("state {state:?}, but {why}")),
        None => Ok(()),
    }
}

#[test]
fn the_figure_has_its_ways_and_no_others() {
    assert!(reaches(State::SynSent, State::TimeWait));
    assert!(reaches(State::FinWait1, State::Closed));
    assert!(!reaches(State::CloseWait, State::FinWait1));
    assert!(!reaches(State::FinWait2, State::Closing));
    assert!(!reaches(State::Closed, State::Established));
    assert!(!reaches(State::Established, State::SynReceived));
}
