//! Tests of orders about a flow between hosts: both daemons hold the same orders, and the last one
//! applies.

use fable::protocol::Decision;

use super::hosts::LEASE_S;
use super::programs::{TRUSTING, Zone, flow, goes_over};
use systemtests_flows::{Daemon, QUICK_POLICY, within};

/// Returns the decisions of a daemon, oldest first; the last one is its present choice.
pub(crate) fn decisions(daemon: &Daemon, flow: &str) -> Vec<Decision> {
    let text = daemon.fable_says(&["why", flow, "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(answer["decisions"].clone()).unwrap()
}

/// Asserts that the flow is on the transport on both hosts, and still on the same path after many
/// observations of both daemons. Each `fable why` makes a daemon look at the flow, and the messages
/// that continue meanwhile measure the time.
fn stays_on(zone: &Zone, transport: &str) {
    [&zone.a, &zone.b].into_iter().for_each(|daemon| goes_over(daemon, transport));
    let before = flow(&zone.a).unwrap();
    let target = before.messages[0] + 20_000;
    within("20,000 messages have gone through", || {
        flow(&zone.a).filter(|now| now.messages[0] > target)
    });
    for daemon in [&zone.a, &zone.b] {
        let now = flow(daemon).unwrap();
        let shown = (now.transport.as_str(), now.epoch);
        assert_eq!(shown, (transport, before.epoch), "{:#?}", decisions(daemon, &zone.flow));
    }
}

/// Waits until the flow stays on the transport on both hosts for as long as [`stays_on`] checks: an
/// order that was given at the same time may be executed once more before that.
fn comes_to_rest_on(zone: &Zone, transport: &str) {
    within("the flow comes to rest", || {
        let before = flow(&zone.a)?;
        let target = before.messages[0] + 20_000;
        within("20,000 messages have gone through", || {
            flow(&zone.a).filter(|now| now.messages[0] > target)
        });
        let rests = |daemon: &Daemon| {
            let now = flow(daemon).unwrap();
            (now.transport.as_str(), now.epoch) == (transport, before.epoch)
        };
        (rests(&zone.a) && rests(&zone.b)).then_some(())
    });
}

/// Checks that both daemons now choose this transport, for such a reason.
fn both_choose(zone: &Zone, transport: &str, reason: &str) {
    for daemon in [&zone.a, &zone.b] {
        let all = decisions(daemon, &zone.flow);
        let last = all.last().unwrap();
        assert_eq!(last.transport, transport, "{all:#?}");
        assert!(last.reason.contains(reason), "{all:#?}");
    }
}

#[test]
fn two_orders_of_one_host_are_not_undone_by_the_other() {
    let test = "two orders of one host";
    let Some(zone) = Zone::start(test, TRUSTING, "tcp-nodelay", LEASE_S) else { return };
    for daemon in [&zone.a, &zone.b] {
        daemon.fable_says(&["move", &zone.flow, "tcp"]);
        daemon.fable_says(&["move", &zone.flow, "tls"]);
        stays_on(&zone, "tls");
        both_choose(&zone, "tls", "user 0 on ");
        daemon.fable_says(&["move", &zone.flow, "auto"]);
        stays_on(&zone, "tcp-nodelay");
        both_choose(&zone, "tcp-nodelay", "different hosts");
    }
    zone.finish();
}

#[test]
fn the_last_order_wins_and_encryption_is_lifted_by_the_host_that_ordered_it() {
    let test = "orders of two hosts";
    let Some(zone) = Zone::start(test, TRUSTING, "tcp-nodelay", LEASE_S) else { return };
    zone.a.fable_says(&["move", &zone.flow, "tcp"]);
    zone.b.fable_says(&["move", &zone.flow, "mptcp"]);
    stays_on(&zone, "mptcp");
    both_choose(&zone, "mptcp", "user 0 on b");
    zone.a.fable_says(&["move", &zone.flow, "tls"]);
    stays_on(&zone, "tls");
    let refused = zone.b.fable_fails(&["move", &zone.flow, "tcp"]);
    assert!(refused.contains("user 0 on a ordered tls"), "{refused}");
    zone.b.fable_says(&["move", &zone.flow, "auto"]);
    stays_on(&zone, "tls");
    // Both sides have demanded it, and both have to withdraw the demand.
    zone.b.fable_says(&["move", &zone.flow, "tls"]);
    let refused = zone.a.fable_fails(&["move", &zone.flow, "tcp"]);
    assert!(refused.contains("user 0 on b ordered tls"), "{refused}");
    zone.b.fable_says(&["move", &zone.flow, "auto"]);
    zone.a.fable_says(&["move", &zone.flow, "auto"]);
    stays_on(&zone, "tcp-nodelay");
    zone.finish();
}

#[test]
fn orders_of_two_operators_at_the_same_time_leave_one_decision() {
    let test = "orders of two hosts at the same time";
    let Some(zone) = Zone::start(test, TRUSTING, "tcp-nodelay", LEASE_S) else { return };
    for round in 0..6 {
        let [one, other] = [["tcp", "mptcp"], ["mptcp", "auto"], ["auto", "tcp"]][round % 3];
        std::thread::scope(|scope| {
            // One of the two may be refused, because the other order has overtaken it.
            scope.spawn(|| zone.a.fable(&["move", &zone.flow, one]));
            scope.spawn(|| zone.b.fable(&["move", &zone.flow, other]));
        });
        let agreed = within("both daemons choose the same for the same reason", || {
            let [a, b] = [&zone.a, &zone.b].map(|daemon| {
                let last = decisions(daemon, &zone.flow).pop().unwrap();
                (last.transport, last.reason, flow(daemon).unwrap().epoch)
            });
            (a == b).then_some(a)
        });
        assert!(!agreed.1.contains("the application"), "{agreed:?}");
        comes_to_rest_on(&zone, &agreed.0);
    }
    zone.finish();
}

#[test]
fn a_daemon_that_comes_back_learns_what_was_ordered() {
    let test = "orders outlive a daemon";
    let Some(mut zone) = Zone::start(test, TRUSTING, "tcp-nodelay", LEASE_S) else { return };
    zone.a.fable_says(&["move", &zone.flow, "tls"]);
    stays_on(&zone, "tls");
    let mut a = zone.a;
    zone.a = zone.network.hosts[0].run(move || {
        a.crash_and_start_again();
        a
    });
    let mut b = zone.b;
    zone.b = zone.network.hosts[1].run(move || {
        b.crash_and_start_again();
        b
    });
    for daemon in [&zone.a, &zone.b] {
        within("the flow is announced", || flow(daemon));
    }
    stays_on(&zone, "tls");
    both_choose(&zone, "tls", "user 0 on a");
    zone.a.fable_says(&["move", &zone.flow, "auto"]);
    stays_on(&zone, "tcp-nodelay");
    zone.finish();
}

#[test]
fn what_one_hosts_policy_protects_the_other_hosts_policy_leaves_protected() {
    let test = "a policy is read again on one host";
    let Some(zone) = Zone::start(test, TRUSTING, "tcp-nodelay", LEASE_S) else { return };
    let protecting = "[[rule]]\nname = \"fable://kv/*\"\nprotected = true\n";
    for daemon in [&zone.a, &zone.b] {
        daemon.reload(&format!("{TRUSTING}{QUICK_POLICY}{protecting}"));
        stays_on(&zone, "tls");
        daemon.reload(&format!("{TRUSTING}{QUICK_POLICY}"));
        stays_on(&zone, "tcp-nodelay");
    }
    zone.finish();
}
