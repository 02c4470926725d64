use super::*;
use crate::orders::Encryption;
use proptest::prelude::*;
use std::collections::VecDeque;

const KINDS: [Kind; 4] =
    [Kind::MempipeFutex(Form::Safe), Kind::MempipeFutex(Form::Unsafe), Kind::Tcp, Kind::Unix];

fn rules() -> Rules {
    let trusted = Trust::Trusted;
    Rules { local: true, protected: false, own_trust: trusted, peer_trust: trusted }
}

/// A daemon's request without conditions.
const ANY: Basis = Basis { sequence: None, epoch: None };

/// Two state machines, the messages between them, and the actions that each still has to execute.
struct Pair {
    ends: [Moves; 2],
    /// `links[i]` leads to end `i`.
    links: [VecDeque<Message>; 2],
    installed: [Vec<(u32, Kind)>; 2],
    /// Epochs that the leader makes, that wait for a connection, and that the follower opens.
    making: Vec<u32>,
    connecting: Vec<u32>,
    opening: Vec<u32>,
    alive: bool,
    /// The application's wish that each daemon was last informed of, and when the last path came.
    told: [Option<String>; 2],
    insisted: [Option<String>; 2],
    /// The two daemons' orders, if the ends are on two hosts.
    far: Option<[Orders; 2]>,
}

/// The transports that a flow between hosts may use.
const FAR_KINDS: [Kind; 3] = [Kind::Tcp, Kind::Tls, Kind::Mptcp];

impl Pair {
    fn far() -> Pair {
        let rules = Rules { local: false, ..rules() };
        let ends = [Moves::new(Role::Leader, rules), Moves::new(Role::Follower, rules)];
        Pair { ends, far: Some(Default::default()), ..Pair::new() }
    }

    /// Gives a daemon's order: a transport, a demand for encryption, or its withdrawal.
    fn order(&mut self, side: usize, argument: u8) {
        let Some(known) = &mut self.far else { return };
        let (role, who) = ([Role::Leader, Role::Follower][side], ["a", "b"][side]);
        known[side].merge(self.ends[side].orders());
        match argument % 5 {
            3 => known[side].demand(role, who, Encryption::Ordered),
            4 => known[side].demand(role, who, Encryption::Free),
            kind => known[side].order(role, who, Some(FAR_KINDS[kind as usize])),
        }
        let (orders, sequence) = (known[side].clone(), known[side].operator_sequence());
        self.ends[side].adopt(&orders);
        let kind = FAR_KINDS[argument as usize % 3];
        self.ends[side].want(kind, "test", Basis { sequence: Some(sequence), epoch: None });
        self.act(side);
    }

    fn new() -> Pair {
        Pair {
            told: Default::default(),
            insisted: Default::default(),
            far: None,
            ends: [Moves::new(Role::Leader, rules()), Moves::new(Role::Follower, rules())],
            links: [VecDeque::new(), VecDeque::new()],
            installed: [Vec::new(), Vec::new()],
            making: Vec::new(),
            connecting: Vec::new(),
            opening: Vec::new(),
            alive: true,
        }
    }

    fn act(&mut self, side: usize) {
        for action in self.ends[side].take_actions() {
            match action {
                Action::Make { epoch, .. } => self.making.push(epoch),
                Action::Open { epoch, .. } => self.opening.push(epoch),
                Action::Offer { epoch, kind, reason } => {
                    let transport = kind.to_string();
                    let offer =
                        Message::Offer { epoch, transport, reason, port: None, token: None };
                    self.links[1 - side].push_back(offer);
                }
                Action::Send(message) => self.links[1 - side].push_back(message),
                Action::Install { epoch, kind, .. } => {
                    // The leader may die right after this, so `Use` must already be on its way.
                    let told = self.links[1].contains(&Message::Use { epoch });
                    assert!(side == 1 || told, "the leader uses {epoch} and has told nobody");
                    let allowed =
                        side == 1 || self.far.is_none() || self.ends[0].check(kind).is_ok();
                    assert!(allowed, "the leader lets {kind} stand: {:?}", self.ends[0].orders());
                    self.installed[side].push((epoch, kind));
                    self.insisted[side] = self.told[side].clone();
                }
                Action::Ordered => {
                    let application = self.ends[side].orders().application.clone();
                    self.told[side] = application.and_then(|order| order.transport);
                }
                Action::Discard { .. } | Action::Failed { .. } => {}
            }
        }
    }

    /// Executes one step; returns false if it changes nothing.
    fn step(&mut self, choice: u8, argument: u8) -> bool {
        let argument = argument as usize;
        let side = match choice {
            0 | 1 => {
                let side = usize::from(choice);
                self.ends[side].want(KINDS[argument % KINDS.len()], "test", ANY);
                side
            }
            2 | 3 if !self.making.is_empty() => {
                let epoch = self.making.remove(argument % self.making.len());
                if choice == 2 {
                    self.ends[0].make_failed(epoch, "test");
                } else {
                    let ready = argument.is_multiple_of(2);
                    if !ready {
                        self.connecting.push(epoch);
                    }
                    self.ends[0].made(epoch, ready);
                }
                0
            }
            4 if !self.connecting.is_empty() => {
                let epoch = self.connecting.remove(argument % self.connecting.len());
                self.ends[0].connected(epoch);
                0
            }
            5 | 6 if !self.opening.is_empty() => {
                let epoch = self.opening.remove(argument % self.opening.len());
                match choice {
                    5 => self.ends[1].open_failed(epoch, "test"),
                    _ => self.ends[1].opened(epoch),
                }
                1
            }
            7 => {
                self.ends[argument % 2].expired();
                argument % 2
            }
            8 | 9 if self.alive => {
                let side = usize::from(choice - 8);
                let Some(message) = self.links[side].pop_front() else { return false };
                self.ends[side].receive(message).expect("honest ends break no rule");
                side
            }
            _ => return false,
        };
        self.act(side);
        let [leader, follower] = &self.installed;
        assert!(leader.starts_with(follower), "{leader:?} {follower:?}");
        assert!(leader.windows(2).all(|two| two[0].0 < two[1].0), "epochs only grow");
        true
    }

    /// Delivers all messages and executes all actions, without failures.
    fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            let done = [3, 4, 6, 8, 9].map(|choice| self.step(choice, 0));
            if done == [false; 5] {
                return;
            }
        }
        panic!("two ends never come to rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn both_ends_agree_on_the_order_of_epochs(
        steps in proptest::collection::vec((0_u8..10, any::<u8>()), 0..300),
        death in proptest::option::of(0_usize..300),
    ) {
        let mut pair = Pair::new();
        for (number, (choice, argument)) in steps.into_iter().enumerate() {
            pair.alive &= death != Some(number);
            pair.step(choice, argument);
        }
        if pair.alive {
            pair.deliver_all();
            prop_assert_eq!(&pair.installed[0], &pair.installed[1]);
            prop_assert!(!pair.ends[0].is_busy() && !pair.ends[1].is_busy());
            prop_assert!(pair.ends[1].asked.is_empty(), "every request is answered");
        }
    }

    #[test]
    fn two_hosts_hold_the_same_orders_and_keep_what_is_encrypted(
        steps in proptest::collection::vec((0_u8..12, any::<u8>()), 0..300),
    ) {
        let mut pair = Pair::far();
        pair.ends[0].want(Kind::Tcp, "the first path", ANY);
        pair.act(0);
        for (choice, argument) in steps {
            match choice {
                10 | 11 => pair.order(usize::from(choice - 10), argument),
                // Between hosts the other choices of transports are refused.
                0 | 1 => {
                    let kind = FAR_KINDS[argument as usize % 3];
                    pair.ends[usize::from(choice)].want_as_application(kind, "test");
                    pair.act(usize::from(choice));
                }
                _ => drop(pair.step(choice, argument)),
            }
        }
        pair.deliver_all();
        prop_assert_eq!(&pair.installed[0], &pair.installed[1]);
        if !pair.installed[0].is_empty() {
            prop_assert_eq!(pair.ends[0].orders(), pair.ends[1].orders());
        }
    }

    /// Whatever a hostile peer sends, an end does a bounded number of things for it.
    #[test]
    fn a_hostile_peer_gets_nothing_but_refusals(
        says in proptest::collection::vec((0_u8..7, 0_u32..6, 0_usize..4), 0..200),
        leads in any::<bool>(),
    ) {
        let role = if leads { Role::Leader } else { Role::Follower };
        let rules = Rules { peer_trust: Trust::Untrusted, own_trust: Trust::Untrusted, ..rules() };
        let mut moves = Moves::new(role, rules);
        for (what, epoch, kind) in says {
            let (transport, reason) = (KINDS[kind].to_string(), "x".repeat(4096));
            let message = match what {
                0 => Message::Offer { epoch, transport, reason, port: None, token: None },
                1 => Message::Accept { epoch },
                2 => Message::Refuse { epoch, reason },
                3 => Message::Use { epoch },
                4 => Message::Withdraw { epoch },
                5 => Message::Request { transport, reason, sequence: None, by_application: true },
                _ => Message::Decline { transport, reason },
            };
            let broken = moves.receive(message).is_err();
            let actions = moves.take_actions();
            prop_assert!(actions.len() <= 4, "{:?}", actions);
            for action in &actions {
                let bad = matches!(action, Action::Open { kind, .. } | Action::Make { kind, .. }
                    | Action::Install { kind, .. }
                    if kind.form() == Some(Form::Unsafe));
                prop_assert!(!bad, "{:?}", action);
            }
            if broken {
                break;
            }
        }
    }
}

#[test]
fn an_offer_that_is_not_answered_is_withdrawn_and_the_late_answer_ignored() {
    let mut leader = Moves::new(Role::Leader, rules());
    leader.want(Kind::Tcp, "test", ANY);
    leader.made(1, true);
    leader.expired();
    leader.receive(Message::Accept { epoch: 1 }).unwrap();
    let actions = leader.take_actions();
    assert!(actions.contains(&Action::Send(Message::Withdraw { epoch: 1 })), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Install { .. })));
    leader.want(Kind::Tcp, "again", ANY);
    assert!(leader.take_actions().contains(&Action::Make { epoch: 2, kind: Kind::Tcp }));
}

#[test]
fn a_leader_says_that_a_path_stands_before_it_uses_the_path() {
    let mut leader = Moves::new(Role::Leader, rules());
    leader.want(Kind::Tcp, "test", ANY);
    leader.made(1, true);
    leader.take_actions();
    leader.receive(Message::Accept { epoch: 1 }).unwrap();
    let reason = "test".to_owned();
    assert_eq!(
        leader.take_actions(),
        [
            Action::Send(Message::Use { epoch: 1 }),
            Action::Install { epoch: 1, kind: Kind::Tcp, reason },
        ]
    );
}

/// A daemon that saw the move first would move the flow back to the application's earlier choice.
#[test]
fn daemons_are_told_what_an_application_wants_before_the_flow_moves() {
    for side in [0, 1] {
        let mut pair = Pair::new();
        pair.ends[0].want(Kind::Tcp, "the first path", ANY);
        pair.act(0);
        pair.deliver_all();
        for kind in [Kind::Unix, Kind::TcpNodelay] {
            pair.ends[side].want_as_application(kind, "test");
            pair.act(side);
            pair.deliver_all();
            assert_eq!(pair.installed.each_ref().map(|all| all.last().unwrap().1), [kind; 2]);
            assert_eq!(pair.insisted, [Some(kind.to_string()), Some(kind.to_string())], "{side}");
        }
        assert_eq!(pair.ends[0].orders(), pair.ends[1].orders());
    }
}

#[test]
fn what_the_daemon_chose_before_the_last_move_is_not_carried_out() {
    let mut leader = Moves::new(Role::Leader, rules());
    let chosen_at = |epoch| Basis { sequence: None, epoch: Some(epoch) };
    let go = |leader: &mut Moves, epoch| {
        leader.made(epoch, true);
        leader.receive(Message::Accept { epoch }).unwrap();
        leader.take_actions()
    };
    leader.want(Kind::Tcp, "test", ANY);
    go(&mut leader, 1);
    leader.want_as_application(Kind::Unix, "test");
    // The request arrives during the application's move.
    leader.want(Kind::TcpNodelay, "the application insists on it", chosen_at(1));
    let actions = go(&mut leader, 2);
    assert!(actions.iter().any(|action| matches!(action, Action::Install { epoch: 2, .. })));
    let is_made = |action: &Action| matches!(action, Action::Make { epoch: 3, .. });
    assert!(!actions.iter().any(is_made), "{actions:?}");
    // The request arrives after that move.
    leader.want(Kind::TcpNodelay, "the application insists on it", chosen_at(1));
    assert_eq!(leader.take_actions(), []);
    // The request would replace the application's next move.
    leader.want(Kind::TcpNodelay, "test", chosen_at(2));
    leader.want_as_application(Kind::Tcp, "test");
    leader.take_actions();
    leader.want(Kind::Unix, "test", chosen_at(2));
    assert_eq!(leader.take_actions(), []);
}

/// An end keeps an order for encryption by itself, whatever the other end knows.
#[test]
fn an_end_that_knows_of_a_demand_refuses_other_offers_with_its_origin() {
    let far = Rules { local: false, ..rules() };
    let mut orders = Orders::default();
    orders.demand(Role::Follower, "user 0 on b", Encryption::Ordered);
    let mut follower = Moves::new(Role::Follower, far);
    follower.adopt(&orders);
    let told = Message::Orders { orders: Box::new(orders) };
    assert_eq!(follower.take_actions(), [Action::Send(told)], "before there is a path, too");
    let (transport, reason) = (Kind::Tcp.to_string(), String::new());
    let offer = Message::Offer { epoch: 1, transport, reason, port: None, token: None };
    follower.receive(offer).unwrap();
    let says = follower.take_actions();
    let refuses = |action: &Action| {
        matches!(action, Action::Send(Message::Refuse { reason, .. })
        if reason.contains("user 0 on b ordered tls"))
    };
    assert!(says.iter().any(refuses), "{says:?}");
}

#[test]
fn rules_say_why() {
    let far = Rules { local: false, protected: true, ..rules() };
    assert!(far.check(Kind::Unix).unwrap_err().contains("another host"));
    assert!(far.check(Kind::Tcp).unwrap_err().contains("tls"));
    assert_eq!(far.check(Kind::Tls), Ok(()));
    let wary = Rules { own_trust: Trust::Untrusted, ..rules() };
    assert!(wary.check(Kind::MempipeFutex(Form::Unsafe)).unwrap_err().contains("safe form"));
    assert_eq!(wary.check(Kind::MempipeFutex(Form::Safe)), Ok(()));
}
