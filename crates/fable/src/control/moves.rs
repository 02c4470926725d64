//! State machine of one end of a control link: agrees with the peer on paths, without I/O.
//!
//! Invariants:
//! - Both ends install the epochs that the leader has decided on, in that order. When no message is
//!   in flight, they have installed the same ones. The leader offers one path at a time, with
//!   increasing epochs; an offer that fails leaves a gap.
//! - The leader sends `Use` for a path before it gives the path to its own flow.
//! - What an application wants is recorded on both ends before they install the path.
//! - An end that knows of a demand for encryption agrees to no path without encryption.

use super::message::{Message, bounded};
use crate::identity::{Role, Trust};
use crate::kind::{Form, Kind};
use crate::orders::Orders;
pub(crate) use ordered::Basis;

/// The most unanswered requests of a follower.
const ASKED_MAX: usize = 8;

/// The reason of every failure after the peer is gone.
pub(crate) const PEER_GONE: &str = "the peer is gone";

/// The transports that a flow may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) local: bool,
    pub(crate) protected: bool,
    pub(crate) own_trust: Trust,
    pub(crate) peer_trust: Trust,
}

impl Rules {
    /// # Errors
    /// The reason why this flow may not use the transport.
    pub(crate) fn check(&self, kind: Kind) -> Result<(), String> {
        let no = |why: &str| Err(format!("{kind}: {why}"));
        if !self.local && !kind.crosses_hosts() {
            return no("the peer is on another host");
        }
        if !self.local && self.protected && kind != Kind::Tls {
            return no("the flow must be protected when it leaves the host: use tls");
        }
        if kind.form() == Some(Form::Unsafe) && self.own_trust != Trust::Trusted {
            return no("this end does not trust the peer: use the safe form");
        }
        if kind.form() == Some(Form::Unsafe) && self.peer_trust != Trust::Trusted {
            return no("the peer does not trust this end: use the safe form");
        }
        Ok(())
    }
}

/// An action that the state machine requests from its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Leader: make this end of a path; report by `made` or `make_failed`.
    Make { epoch: u32, kind: Kind },
    /// Leader: send the offer, with the descriptors that `Make` produced.
    Offer { epoch: u32, kind: Kind, reason: String },
    /// Follower: open the offered path; report by `opened` or `open_failed`.
    Open { epoch: u32, kind: Kind },
    /// Send this message.
    Send(Message),
    /// The path is confirmed: give it to the flow.
    Install { epoch: u32, kind: Kind, reason: String },
    /// Drop the path.
    Discard { epoch: u32 },
    /// Report the failure to the flow and to the daemon.
    Failed { kind: Kind, reason: String },
    /// Report the orders to the daemon: a message of the peer or a move has changed them.
    Ordered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MoveRequest {
    kind: Kind,
    reason: String,
    from_peer: bool,
    by_application: bool,
    basis: Basis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Leader: its end of the path is being made.
    Making {
        epoch: u32,
        wish: MoveRequest,
    },
    /// Leader: waits for the answer, and for the peer's connection if the path needs one.
    Offered {
        epoch: u32,
        wish: MoveRequest,
        accepted: bool,
        ready: bool,
    },
    /// Follower: its end of the path is being opened.
    Opening {
        epoch: u32,
        kind: Kind,
        reason: String,
    },
    /// Follower: waits for the leader's decision.
    Accepted {
        epoch: u32,
        kind: Kind,
        reason: String,
    },
}

/// A message that a correct peer never sends: the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// The state machine of one end.
#[derive(Debug)]
pub(crate) struct Moves {
    role: Role,
    pub(crate) rules: Rules,
    state: State,
    /// The last offered epoch.
    offered: u32,
    /// The transport of the last confirmed path.
    current: Option<Kind>,
    /// The epoch of that path; 0 before the first.
    epoch: u32,
    /// Leader: the next move.
    next: Option<MoveRequest>,
    /// Follower: its unanswered requests.
    asked: Vec<Kind>,
    /// The orders that this end knows.
    orders: Orders,
    actions: Vec<Action>,
}

impl Moves {
    /// Creates the state machine of an end that has no path yet.
    pub(crate) fn new(role: Role, rules: Rules) -> Moves {
        Moves {
            role,
            rules,
            state: State::Idle,
            offered: 0,
            current: None,
            epoch: 0,
            next: None,
            asked: Vec::new(),
            orders: Orders::default(),
            actions: Vec::new(),
        }
    }

    /// Takes the requested actions, in the order in which they are to be executed.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Returns whether this end waits for an answer or a result. A timeout should limit that.
    pub(crate) fn is_busy(&self) -> bool {
        self.state != State::Idle
    }

    /// Handles a move that the daemon requests. It is ignored or refused if this end has newer
    /// information than `basis`.
    pub(crate) fn want(&mut self, kind: Kind, reason: &str, basis: Basis) {
        if self.has_moved_since(basis) || basis.epoch.is_some() && self.application_is_next() {
            return;
        }
        self.ask(kind, reason, basis, false);
    }

    fn ask(&mut self, kind: Kind, reason: &str, basis: Basis, by_application: bool) {
        if let Err(why) = self.check(kind).and_then(|()| self.check_sequence(basis.sequence)) {
            self.fail(kind, why);
            return;
        }
        let reason = bounded(reason);
        match self.role {
            Role::Leader => {
                self.plan(MoveRequest { kind, reason, from_peer: false, by_application, basis });
            }
            Role::Follower if self.asked.len() >= ASKED_MAX => {
                let reason = "too many requests wait for the peer".to_owned();
                self.fail(kind, reason);
            }
            Role::Follower => {
                self.asked.push(kind);
                let (transport, sequence) = (kind.to_string(), basis.sequence);
                self.say(Message::Request { transport, reason, sequence, by_application });
            }
        }
    }

    /// Leader: its end of the path exists. `ready` is false if the peer must connect to it first.
    pub(crate) fn made(&mut self, epoch: u32, ready: bool) {
        match self.take_state() {
            State::Making { epoch: making, wish } if making == epoch => {
                let (kind, reason) = (wish.kind, wish.reason.clone());
                self.act(Action::Offer { epoch, kind, reason });
                self.state = State::Offered { epoch, wish, accepted: false, ready };
            }
            other => self.state = other,
        }
    }

    /// Leader: the peer has connected to its end.
    pub(crate) fn connected(&mut self, epoch: u32) {
        if let State::Offered { epoch: offered, ready, .. } = &mut self.state
            && *offered == epoch
        {
            *ready = true;
            self.decide();
        }
    }

    /// Leader: its end cannot be made, or the peer did not connect to it, for the reason `why`.
    pub(crate) fn make_failed(&mut self, epoch: u32, why: &str) {
        match self.take_state() {
            State::Making { epoch: making, wish } if making == epoch => self.give_up(wish, why),
            State::Offered { epoch: offered, wish, .. } if offered == epoch => {
                self.say(Message::Withdraw { epoch });
                self.act(Action::Discard { epoch });
                self.give_up(wish, why);
            }
            other => self.state = other,
        }
    }

    /// Follower: its end is open.
    pub(crate) fn opened(&mut self, epoch: u32) {
        match self.take_state() {
            State::Opening { epoch: opening, kind, reason } if opening == epoch => {
                self.state = State::Accepted { epoch, kind, reason };
                self.say(Message::Accept { epoch });
            }
            other => self.state = other,
        }
    }

    /// Follower: its end cannot be opened, for the reason `why`.
    pub(crate) fn open_failed(&mut self, epoch: u32, why: &str) {
        match self.take_state() {
            State::Opening { epoch: opening, kind, .. } if opening == epoch => {
                self.refuse(epoch, kind, why);
            }
            other => self.state = other,
        }
    }

    /// Handles the time-out of the present move. A follower continues to wait, because the leader
    /// decides.
    pub(crate) fn expired(&mut self) {
        if let State::Making { epoch, .. } | State::Offered { epoch, .. } = self.state {
            self.make_failed(epoch, "the peer has not answered in time");
        }
    }

    /// Handles the end of the peer: fails the present and the next move. A caller that waits for
    /// the first path is notified by other means.
    pub(crate) fn peer_gone(&mut self) {
        let under_way = match self.take_state() {
            State::Making { wish, .. } | State::Offered { wish, .. } => Some(wish),
            _ => None,
        };
        let wishes = under_way.into_iter().chain(self.next.take());
        let own = wishes.filter(|wish| !wish.from_peer).map(|wish| wish.kind);
        let wanted: Vec<Kind> = own.chain(std::mem::take(&mut self.asked)).collect();
        if self.current.is_some() {
            for kind in wanted {
                self.fail(kind, PEER_GONE.to_owned());
            }
        }
    }

    /// Handles a message of the peer.
    ///
    /// # Errors
    /// [`Violation`] if a correct peer would not have sent it.
    pub(crate) fn receive(&mut self, message: Message) -> Result<(), Violation> {
        match (self.role, message) {
            (Role::Follower, Message::Offer { epoch, transport, reason, .. }) => {
                self.consider(epoch, &transport, &reason)
            }
            (Role::Leader, Message::Accept { epoch }) => self.answered(epoch, None),
            (Role::Leader, Message::Refuse { epoch, reason }) => {
                self.answered(epoch, Some(&reason))
            }
            (Role::Follower, Message::Use { epoch }) => self.stand(epoch),
            (Role::Follower, Message::Withdraw { epoch }) => self.withdrawn(epoch),
            (Role::Leader, Message::Request { transport, reason, sequence, by_application }) => {
                self.requested(&transport, &reason, sequence, by_application);
                Ok(())
            }
            (_, Message::Orders { orders }) => self.told_orders(&orders),
            (Role::Follower, Message::Decline { transport, reason }) => {
                self.declined(&transport, &reason);
                Ok(())
            }
            _ => Err(Violation("a message of the other role")),
        }
    }

    fn consider(&mut self, epoch: u32, transport: &str, reason: &str) -> Result<(), Violation> {
        if epoch <= self.offered {
            return Err(Violation("an offer of an old epoch"));
        }
        if self.state != State::Idle {
            return Err(Violation("a second offer at the same time"));
        }
        self.offered = epoch;
        let Ok(kind) = transport.parse::<Kind>() else {
            let reason = format!("there is no transport {}", bounded(transport));
            self.say(Message::Refuse { epoch, reason });
            return Ok(());
        };
        match self.check(kind) {
            Ok(()) => {
                self.state = State::Opening { epoch, kind, reason: bounded(reason) };
                self.act(Action::Open { epoch, kind });
            }
            Err(why) => self.refuse(epoch, kind, &why),
        }
        Ok(())
    }

    fn refuse(&mut self, epoch: u32, kind: Kind, why: &str) {
        self.say(Message::Refuse { epoch, reason: bounded(why) });
        if self.current.is_none() {
            // The flow cannot be opened; the caller that waits for it gets the reason.
            self.act(Action::Failed { kind, reason: bounded(why) });
        }
    }

    fn answered(&mut self, epoch: u32, refusal: Option<&str>) -> Result<(), Violation> {
        if epoch > self.offered {
            return Err(Violation("an answer to what was not offered"));
        }
        match self.take_state() {
            State::Offered { epoch: offered, wish, ready, accepted } if offered == epoch => {
                match refusal {
                    Some(why) => {
                        self.act(Action::Discard { epoch });
                        self.give_up(wish, &format!("the peer refuses: {}", bounded(why)));
                    }
                    None if accepted => return Err(Violation("a second answer to one offer")),
                    None => {
                        self.state = State::Offered { epoch, wish, ready, accepted: true };
                        self.decide();
                    }
                }
            }
            State::Making { epoch: making, .. } if making == epoch => {
                return Err(Violation("an answer to what was not offered"));
            }
            // The message has crossed this end's withdrawal.
            other => self.state = other,
        }
        Ok(())
    }

    fn decide(&mut self) {
        match self.take_state() {
            State::Offered { epoch, wish, accepted: true, ready: true } => {
                if let Err(why) = self.check(wish.kind) {
                    // The order arrived while the path was being made.
                    self.say(Message::Withdraw { epoch });
                    self.act(Action::Discard { epoch });
                    return self.give_up(wish, &why);
                }
                let kind = wish.kind;
                if wish.by_application {
                    let side = if wish.from_peer { Role::Follower } else { Role::Leader };
                    self.note_insistence(side, kind);
                }
                // `Use` goes first: the flow writes to the path at once, and if this process died
                // before `Use` was sent, the peer would discard what is in the path.
                self.say(Message::Use { epoch });
                self.act(Action::Install { epoch, kind, reason: wish.reason });
                (self.epoch, self.current) = (epoch, Some(kind));
                self.go_on();
            }
            other => self.state = other,
        }
    }

    fn stand(&mut self, epoch: u32) -> Result<(), Violation> {
        match self.take_state() {
            State::Accepted { epoch: accepted, kind, reason } if accepted == epoch => {
                self.no_longer_asked(kind);
                self.act(Action::Install { epoch, kind, reason });
                (self.epoch, self.current) = (epoch, Some(kind));
                Ok(())
            }
            _ => Err(Violation("an order to use what was not accepted")),
        }
    }

    fn withdrawn(&mut self, epoch: u32) -> Result<(), Violation> {
        match self.take_state() {
            State::Opening { epoch: own, kind, .. } | State::Accepted { epoch: own, kind, .. }
                if own == epoch =>
            {
                self.act(Action::Discard { epoch });
                if self.current.is_none() {
                    let reason = "the peer has withdrawn its offer".to_owned();
                    self.act(Action::Failed { kind, reason });
                }
                Ok(())
            }
            // The message has crossed this end's refusal.
            State::Idle if epoch == self.offered => Ok(()),
            _ => Err(Violation("a withdrawal of what was not offered")),
        }
    }

    fn requested(
        &mut self,
        transport: &str,
        reason: &str,
        sequence: Option<u64>,
        by_application: bool,
    ) {
        let Ok(kind) = transport.parse::<Kind>() else {
            let reason = format!("there is no transport {}", bounded(transport));
            self.say(Message::Decline { transport: bounded(transport), reason });
            return;
        };
        match self.check(kind).and_then(|()| self.check_sequence(sequence)) {
            Ok(()) => {
                let (reason, basis) = (bounded(reason), Basis { sequence, epoch: None });
                self.plan(MoveRequest { kind, reason, from_peer: true, by_application, basis });
            }
            Err(why) => {
                self.say(Message::Decline { transport: kind.to_string(), reason: why });
            }
        }
    }

    fn declined(&mut self, transport: &str, reason: &str) {
        let Ok(kind) = transport.parse::<Kind>() else { return };
        if self.no_longer_asked(kind) || self.current.is_none() {
            self.fail(kind, bounded(reason));
        }
    }

    fn no_longer_asked(&mut self, kind: Kind) -> bool {
        let found = self.asked.iter().position(|asked| *asked == kind);
        found.map(|index| self.asked.remove(index)).is_some()
    }

    /// Leader: schedules a move, in place of one that has not begun.
    fn plan(&mut self, wish: MoveRequest) {
        if let Some(replaced) = self.next.replace(wish) {
            self.disappoint(replaced, "a later order has replaced it");
        }
        if self.state == State::Idle {
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        let Some(wish) = self.next.take().filter(|wish| !self.has_moved_since(wish.basis)) else {
            return;
        };
        if self.current == Some(wish.kind) {
            self.disappoint(wish, "the flow is there already");
            return;
        }
        if let Err(why) = self.check(wish.kind) {
            // The order arrived while the wish waited.
            return self.disappoint(wish, &why);
        }
        let Some(epoch) = self.offered.checked_add(1) else {
            self.disappoint(wish, "the flow has used up its epochs");
            return;
        };
        self.offered = epoch;
        self.act(Action::Make { epoch, kind: wish.kind });
        self.state = State::Making { epoch, wish };
    }

    fn give_up(&mut self, wish: MoveRequest, why: &str) {
        self.disappoint(wish, why);
        self.go_on();
    }

    fn disappoint(&mut self, wish: MoveRequest, why: &str) {
        if wish.from_peer || self.current.is_none() {
            let transport = wish.kind.to_string();
            self.say(Message::Decline { transport, reason: bounded(why) });
        }
        if !wish.from_peer {
            self.fail(wish.kind, bounded(why));
        }
    }

    fn take_state(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Idle)
    }

    /// Reports that a move which this side requested has failed.
    fn fail(&mut self, kind: Kind, reason: String) {
        self.act(Action::Failed { kind, reason });
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn say(&mut self, message: Message) {
        self.actions.push(Action::Send(message));
    }
}

mod ordered;

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
