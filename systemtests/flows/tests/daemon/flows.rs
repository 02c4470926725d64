//! Tests of flows from the first path to the end: reports, orders, and moves by the policy.

use std::os::fd::AsFd;

use fable::Kind;
use fable::orders::Orders;
use fable::page::{Counter, Page};
use fable::protocol::{
    Access, Answer, Decision, FlowEntry, FlowId, Operation, Role, ToDaemon, ToProcess,
};
use systemtests_flows::{Daemon, Process, flow, within};

fn flows(process: &mut Process) -> Vec<FlowEntry> {
    match process.operate(Operation::Flows) {
        Ok(Answer::Flows { flows, more: false }) => flows,
        other => panic!("{other:?}"),
    }
}

fn why(process: &mut Process, flow: FlowId) -> (FlowEntry, Vec<Decision>) {
    match process.operate(Operation::Why { flow }) {
        Ok(Answer::Why { flow, decisions }) => (*flow, decisions),
        other => panic!("{other:?}"),
    }
}

/// Sends an order without waiting for its result.
fn order(operator: &mut Process, flow: FlowId, transport: &str) -> u64 {
    let request = operator.next_request();
    let operation = Operation::Move { flow, transport: transport.to_owned() };
    operator.say(&ToDaemon::Operate { request, operation });
    request
}

#[test]
fn an_order_goes_to_the_leader_and_its_outcome_to_the_operator() {
    let daemon = Daemon::start();
    let (server, client, end, _) = flow(&daemon);
    let mut operator = Process::connect(&daemon);
    let request = order(&mut operator, end.flow, "tcp-nodelay");
    let (transport, reason) = server.ordered_move(end.flow);
    assert_eq!(transport, "tcp-nodelay");
    assert!(reason.contains("ordered"), "{reason}");
    server.moved(end.flow, 2, "tcp-nodelay");
    client.moved(end.flow, 2, "tcp-nodelay");
    match operator.hear() {
        ToProcess::Answer { request: answered, answer: Answer::Done { what } } => {
            assert_eq!(answered, request);
            assert!(what.contains("tcp-nodelay") && what.contains("epoch 2"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    let (entry, decisions) = why(&mut operator, end.flow);
    assert_eq!((entry.transport.as_str(), entry.epoch, entry.pinned), ("tcp-nodelay", 2, true));
    let outcomes: Vec<_> = decisions
        .iter()
        .map(|decision| (decision.transport.as_str(), decision.outcome.as_str()))
        .collect();
    let expected = [
        ("mempipe-futex-safe", "in use"),
        ("tcp-nodelay", "in use"),
        ("tcp-nodelay", "the choice now"),
    ];
    assert_eq!(outcomes, expected);
    assert!(decisions.iter().all(|decision| !decision.reason.is_empty()));
    // The choice is the policy's again, and the flow returns.
    order(&mut operator, end.flow, "auto");
    assert!(matches!(operator.hear(), ToProcess::Answer { answer: Answer::Done { .. }, .. }));
    assert_eq!(server.ordered_move(end.flow).0, "mempipe-futex-safe");
}

#[test]
fn a_failed_order_is_told_and_does_not_pin() {
    let daemon = Daemon::start();
    let (server, _client, end, _) = flow(&daemon);
    let mut operator = Process::connect(&daemon);
    order(&mut operator, end.flow, "tcp");
    let (transport, _) = server.ordered_move(end.flow);
    assert_eq!(transport, "tcp");
    let reason = "no\x1b[2J memory".to_owned();
    server.say(&ToDaemon::MoveFailed { flow: end.flow, transport, reason });
    match operator.hear() {
        ToProcess::Refused { reason, .. } => {
            assert!(reason.contains("memory") && !reason.contains('\x1b'), "{reason:?}");
        }
        other => panic!("{other:?}"),
    }
    let (entry, decisions) = why(&mut operator, end.flow);
    assert_eq!((entry.transport.as_str(), entry.pinned), ("mempipe-futex-safe", false));
    assert!(decisions.iter().any(|decision| decision.outcome.starts_with("failed: no")));
}

#[test]
fn an_order_that_fails_does_not_undo_a_later_one_for_the_same() {
    let daemon = Daemon::start();
    let (server, _client, end, _) = flow(&daemon);
    let mut operator = Process::connect(&daemon);
    order(&mut operator, end.flow, "tcp-nodelay");
    assert_eq!(server.ordered_move(end.flow).0, "tcp-nodelay");
    // The other host's operator has given the same order meanwhile, which the end knows.
    let mut orders = Orders::default();
    orders.order(Role::Leader, "user 0 here", None);
    orders.order(Role::Follower, "user 0 there", Some(Kind::TcpNodelay));
    server.say(&ToDaemon::Orders { flow: end.flow, orders });
    let (transport, reason) = ("tcp-nodelay".to_owned(), "a later order".to_owned());
    server.say(&ToDaemon::MoveFailed { flow: end.flow, transport, reason });
    assert!(matches!(operator.hear(), ToProcess::Refused { .. }));
    let (entry, decisions) = why(&mut operator, end.flow);
    assert!(entry.pinned, "{decisions:?}");
}

#[test]
fn orders_that_cannot_be_are_refused_with_the_reason() {
    let daemon = Daemon::start();
    let (_server, _client, end, _) = flow(&daemon);
    let mut operator = Process::connect(&daemon);
    for (transport, word) in
        [("pigeon", "mempipe-futex-safe"), ("mempipe-futex-unsafe", "trust each other")]
    {
        let operation = Operation::Move { flow: end.flow, transport: transport.to_owned() };
        let refused = operator.operate(operation).unwrap_err();
        assert!(refused.contains(word), "{transport}: {refused}");
    }
    let operation = Operation::Move { flow: FlowId(1), transport: "unix".to_owned() };
    let refused = operator.operate(operation).unwrap_err();
    assert!(refused.contains("no flow 0000000000000001"), "{refused}");
    let operation = Operation::Move { flow: end.flow, transport: "mempipe-futex-safe".to_owned() };
    let Ok(Answer::Done { what }) = operator.operate(operation) else { panic!("not done") };
    assert!(what.contains("already"), "{what}");
}

#[test]
fn rates_and_cpus_are_read_off_the_page() {
    let daemon = Daemon::start();
    let (_server, _client, end, _) = flow(&daemon);
    let page = Page::open(end.page.as_fd()).unwrap();
    page.write(Role::Leader, Counter::Cpu, 1);
    page.write(Role::Follower, Counter::Cpu, 2);
    let mut operator = Process::connect(&daemon);
    let send = |messages: u64| {
        for role in [Role::Leader, Role::Follower] {
            let sent = page.read(role, Counter::MessagesSent) + messages;
            page.write(role, Counter::MessagesSent, sent);
            page.write(role, Counter::BytesSent, sent * 64);
        }
    };
    within("the rates are high", || {
        send(100_000);
        let flow = flows(&mut operator).remove(0);
        let busy = flow.messages_s.iter().all(|&rate| rate > 50_000.0);
        (busy && flow.bytes_s[0] > flow.messages_s[0]).then_some(())
    });
    let flow = flows(&mut operator).remove(0);
    assert_eq!((flow.cpus, flow.pinned), ([Some(0), Some(1)], false));
}

#[test]
fn where_the_application_has_gone_by_itself_the_policy_leaves_it() {
    let daemon = Daemon::start();
    let (server, client, end, _) = flow(&daemon);
    let mut orders = Orders::default();
    orders.insist(Role::Follower, "the application that connects", Kind::TcpNodelay);
    client.say(&ToDaemon::Orders { flow: end.flow, orders });
    client.moved(end.flow, 2, "tcp-nodelay");
    let mut operator = Process::connect(&daemon);
    within("the policy knows", || {
        let (entry, decisions) = why(&mut operator, end.flow);
        let last = decisions.last().unwrap();
        (entry.epoch == 2 && last.reason.contains("application")).then_some(())
    });
    // An operator still can, and when that order ends, the application's choice applies again.
    order(&mut operator, end.flow, "unix");
    assert_eq!(server.ordered_move(end.flow).0, "unix");
    server.moved(end.flow, 3, "unix");
    operator.hear();
    order(&mut operator, end.flow, "auto");
    assert_eq!(server.ordered_move(end.flow).0, "tcp-nodelay");
}

#[test]
fn an_order_that_another_has_overtaken_is_not_taken_for_the_applications_wish() {
    let daemon = Daemon::start();
    let (server, _client, end, _) = flow(&daemon);
    let (mut one, mut other) = (Process::connect(&daemon), Process::connect(&daemon));
    order(&mut one, end.flow, "tcp-nodelay");
    assert_eq!(server.ordered_move(end.flow).0, "tcp-nodelay");
    order(&mut other, end.flow, "unix");
    assert_eq!(server.ordered_move(end.flow).0, "unix");
    let ToProcess::Refused { reason, .. } = one.hear() else { panic!("overtaken") };
    assert!(reason.contains("overtaken"), "{reason}");
    // The ends execute both orders.
    server.moved(end.flow, 2, "tcp-nodelay");
    server.moved(end.flow, 3, "unix");
    assert!(matches!(other.hear(), ToProcess::Answer { answer: Answer::Done { .. }, .. }));
    order(&mut other, end.flow, "auto");
    assert!(matches!(other.hear(), ToProcess::Answer { answer: Answer::Done { .. }, .. }));
    assert_eq!(server.ordered_move(end.flow).0, "mempipe-futex-safe");
    let (_, decisions) = why(&mut other, end.flow);
    let last = decisions.last().unwrap();
    assert!(!last.reason.contains("application"), "{decisions:#?}");
}

#[test]
fn a_flow_that_goes_to_and_fro_is_shown_as_flapping() {
    let daemon = Daemon::start();
    let (server, _client, end, _) = flow(&daemon);
    let mut operator = Process::connect(&daemon);
    assert!(!daemon.fable_says(&["top", "--once"]).contains("flapping"));
    for (epoch, transport) in (2..).zip(["tcp-nodelay", "unix"].into_iter().cycle().take(8)) {
        order(&mut operator, end.flow, transport);
        assert_eq!(server.ordered_move(end.flow).0, transport);
        server.moved(end.flow, epoch, transport);
        assert!(matches!(operator.hear(), ToProcess::Answer { .. }));
    }
    let shown = daemon.fable_says(&["top", "--once"]);
    assert!(shown.contains("flapping"), "{shown}");
    assert!(flows(&mut operator)[0].is_flapping);
}

#[test]
fn flows_vanish_with_either_end() {
    let daemon = Daemon::start();
    let mut operator = Process::connect(&daemon);
    let (server, client, end, _) = flow(&daemon);
    client.say(&ToDaemon::Ended { flow: end.flow, reason: "closed".to_owned() });
    within("the ended flow is gone", || flows(&mut operator).is_empty().then_some(()));
    // The other end's report comes late, and must not affect the next flow.
    server.say(&ToDaemon::Ended { flow: end.flow, reason: "peer ended".to_owned() });
    drop((server, client));
    let (server, client, end, _) = flow(&daemon);
    assert_eq!(flows(&mut operator).len(), 1);
    drop(server);
    // Its process is alive: the other end reports the end of the flow.
    client.say(&ToDaemon::Ended { flow: end.flow, reason: "peer died".to_owned() });
    within("the flow without server is gone", || flows(&mut operator).is_empty().then_some(()));
    let (server, client, ..) = flow(&daemon);
    drop((server, client));
    within("the flow without ends is gone", || flows(&mut operator).is_empty().then_some(()));
}

#[test]
fn users_see_and_move_their_own_flows_only() {
    let daemon = Daemon::start();
    let mut server = Process::connect_as(&daemon, 4242, &[]);
    let access = Access { users: vec![4243], groups: Vec::new() };
    server.try_register("fable://kv/1", access).unwrap();
    let mut client = Process::connect_as(&daemon, 4243, &[]);
    let (_, _, end) = client.try_connect("fable://kv", None).unwrap();
    let (_, _leading) = server.incoming();
    server.moved(end.flow, 1, &end.transport);
    for uid in [4242, 4243, 0] {
        let mut user = Process::connect_as(&daemon, uid, &[]);
        assert_eq!(flows(&mut user).len(), 1, "user {uid}");
    }
    let mut stranger = Process::connect_as(&daemon, 4244, &[]);
    assert!(flows(&mut stranger).is_empty());
    let protect = |protected| Operation::Protect { flow: end.flow, protected };
    let over_tcp = || Operation::Move { flow: end.flow, transport: "tcp-nodelay".to_owned() };
    for operation in [over_tcp(), Operation::Why { flow: end.flow }, protect(true)] {
        let refused = stranger.operate(operation).unwrap_err();
        assert!(refused.contains("no flow"), "{refused}");
    }
    // Another process's reports about the flow change nothing.
    stranger.moved(end.flow, 9, "unix");
    stranger.say(&ToDaemon::Ended { flow: end.flow, reason: String::new() });
    let keys = stranger.next_request();
    stranger.say(&ToDaemon::GetKeys { request: keys, flow: end.flow, role: Role::Leader });
    assert!(matches!(stranger.hear(), ToProcess::Refused { request, .. } if request == keys));
    let mut owner = Process::connect_as(&daemon, 4243, &[]);
    assert_eq!(flows(&mut owner)[0].epoch, 1);
    order(&mut owner, end.flow, "tcp-nodelay");
    assert_eq!(server.ordered_move(end.flow).0, "tcp-nodelay");
    server.moved(end.flow, 2, "tcp-nodelay");
    assert!(matches!(owner.hear(), ToProcess::Answer { answer: Answer::Done { .. }, .. }));
    // Either user can demand protection; the withdrawal needs both, or an operator.
    assert!(owner.operate(protect(true)).is_ok());
    for end in [&server, &client] {
        let told = end.hear();
        assert!(matches!(told, ToProcess::Protect { protected: true, .. }), "{told:?}");
    }
    assert!(flows(&mut owner)[0].protected);
    assert!(owner.operate(protect(false)).unwrap_err().contains("two users"));
    assert!(Process::connect(&daemon).operate(protect(false)).is_ok());
}

#[test]
fn events_are_told_with_their_reasons() {
    let daemon = Daemon::start();
    let mut watcher = Process::connect(&daemon);
    let request = watcher.next_request();
    watcher.say(&ToDaemon::Operate { request, operation: Operation::Events });
    // Requests are still answered, which shows that the subscription exists.
    let question = watcher.next_request();
    watcher.say(&ToDaemon::Operate { request: question, operation: Operation::Flows });
    watcher.hear();
    let (server, client, ..) = flow(&daemon);
    drop((server, client));
    let mut told = Vec::new();
    within("the end is told", || {
        match watcher.hear() {
            ToProcess::Answer { request: of, answer: Answer::Event { time_s, what } } => {
                assert_eq!(of, request);
                assert!(time_s > 1.6e9);
                told.push(what);
            }
            other => panic!("{other:?}"),
        }
        told.last().is_some_and(|what| what.contains("has ended")).then_some(())
    });
    for part in ["is registered by", "connects to fable://kv/1 over mempipe-futex-safe: ", "uses "]
    {
        assert!(told.iter().any(|what| what.contains(part)), "{part}: {told:?}");
    }
}
