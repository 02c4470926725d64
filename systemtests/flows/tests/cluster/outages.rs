//! Tests that a failure of etcd, or of the network to it, affects nothing else.

use std::time::Duration;

use fabled::cluster::Options;
use fabled::cluster_link::{Cluster, ClusterEvent};

use super::etcd::{Etcd, slow_relay};
use super::hosts::{Host, LEASE_S, SHORT_LEASE_S, join, join_with, options, ticket};
use super::network::Network;

/// Makes two hosts; the first has a name that the second knows.
fn two_hosts(test: &str) -> Option<(Network, Etcd, Host, Host)> {
    two_hosts_with_lease(test, LEASE_S)
}

fn two_hosts_with_lease(test: &str, lease_ttl_s: u32) -> Option<(Network, Etcd, Host, Host)> {
    let network = Network::start(test, 2)?;
    let etcd = Etcd::start(&network);
    let [mut a, b] = [0, 1].map(|index| {
        let options = Options { lease_ttl_s, ..options(["a", "b"][index]) };
        join_with(&network, index, options)
    });
    a.publish_well("fable://kv/1");
    b.found("fable://kv/1");
    Some((network, etcd, a, b))
}

/// Asserts what must work while etcd does not.
fn assert_serves(b: &mut Host) {
    assert_eq!(b.find("fable://kv/1").len(), 1, "what was known is still used");
    b.member.ticket(&ticket("fable://kv/1", "b"), "a").unwrap();
    b.member.keys(fable::protocol::FlowId(1), fable::protocol::Role::Leader).unwrap();
}

fn lost_names(host: &mut Host) -> usize {
    let events = host.take_events();
    events.iter().filter(|event| matches!(event, ClusterEvent::NameGone { .. })).count()
}

#[test]
fn etcd_that_hangs_is_not_waited_for() {
    let Some((_network, etcd, mut a, mut b)) = two_hosts("etcd hangs") else { return };
    etcd.signal(libc::SIGSTOP);
    assert_serves(&mut b);
    a.publish("fable://kv/2");
    a.expect_down();
    b.expect_down();
    assert_serves(&mut b);
    etcd.signal(libc::SIGCONT);
    a.expect_up();
    b.expect_up();
    a.published("fable://kv/2");
    b.found("fable://kv/2");
    b.found("fable://kv/1");
}

#[test]
fn etcd_restarts_with_its_data() {
    let Some((network, mut etcd, mut a, mut b)) = two_hosts("etcd restarts") else { return };
    for round in 0..3 {
        let name = format!("fable://new/{round}");
        etcd.kill();
        a.expect_down();
        b.expect_down();
        assert_serves(&mut b);
        a.publish(&name);
        etcd.start_again(&network);
        a.expect_up();
        a.published(&name);
        b.expect_up();
        b.found(&name);
        assert_eq!(lost_names(&mut b), 0);
        assert_serves(&mut b);
    }
}

#[test]
fn etcd_restarts_without_its_data() {
    let Some(network) = Network::start("etcd loses its data", 2) else { return };
    let mut etcd = Etcd::start(&network);
    // Records that etcd has lost are kept for two leases: longer than a host needs to reconnect,
    // even on a busy machine.
    let [mut a, mut b] = [0, 1].map(|index| join(&network, index, ["a", "b"][index]));
    for name in ["fable://kv/1", "fable://kv/2"] {
        a.publish_well(name);
        b.found(name);
    }
    let from_before = b.member.ticket(&ticket("fable://kv/1", "b"), "a").unwrap();
    etcd.kill();
    a.expect_down();
    b.expect_down();
    (0..2).for_each(|index| network.cut(index));
    etcd.start_again_without_data(&network);
    // The new store's revision is higher than the old one's was when the hosts reconnect.
    for round in 0..20 {
        Etcd::control(&network, &format!("put /elsewhere {round}"));
    }
    (0..2).rev().for_each(|index| network.mend(index));
    b.expect_up();
    for name in ["fable://kv/1", "fable://kv/2"] {
        a.published(name);
        b.found(name);
    }
    assert_eq!(lost_names(&mut b), 0, "the names were never gone");
    // The secret was written again too: old tickets stay valid.
    super::connections::show(&network, 1, a.find_self(0), &from_before);
    a.expect("it is admitted", |event| matches!(event, ClusterEvent::Connection { .. }));
}

#[test]
fn a_host_that_is_cut_off_lists_again_when_history_is_gone() {
    let Some((network, _etcd, mut a, mut b)) = two_hosts("compaction") else { return };
    Etcd::compact(&network);
    a.publish_well("fable://kv/2");
    b.found("fable://kv/2");
    network.cut(1);
    b.expect_down();
    assert_serves(&mut b);
    a.withdraw("fable://kv/2");
    a.publish_well("fable://kv/3");
    Etcd::compact(&network);
    network.mend(1);
    b.expect_up();
    b.found("fable://kv/3");
    b.gone("fable://kv/2");
    b.found("fable://kv/1");
}

#[test]
fn a_name_that_was_taken_meanwhile_is_a_conflict() {
    let hosts = two_hosts_with_lease("a name is taken meanwhile", SHORT_LEASE_S);
    let Some((network, _etcd, mut a, mut b)) = hosts else { return };
    b.publish("fable://kv/1");
    b.expect("a conflict", |event| matches!(event, ClusterEvent::NameConflict { .. }));
    network.cut(0);
    a.expect_down();
    // Host a's lease ends, and b has waited for that.
    b.published("fable://kv/1");
    a.publish("fable://kv/2");
    network.mend(0);
    a.expect_up();
    let conflict =
        a.expect("a conflict", |event| matches!(event, ClusterEvent::NameConflict { .. }));
    assert!(matches!(&conflict, ClusterEvent::NameConflict { holder, .. } if holder == "b"));
    assert_eq!(a.found("fable://kv/1").owner.host, "b");
    a.published("fable://kv/2");
    b.found("fable://kv/2");
}

#[test]
fn etcd_that_is_slow_is_slow_for_nobody_else() {
    let Some((network, _etcd, mut a, _b)) = two_hosts("etcd is slow") else { return };
    let slow = slow_relay(&network.bridge, Duration::from_millis(150));
    let nobody = "http://10.77.0.254:1".to_owned();
    let etcd = vec![nobody, format!("http://{slow}")];
    drop(_b);
    let mut b = join_with(&network, 1, Options { etcd, ..options("b") });
    assert_serves(&mut b);
    a.publish_well("fable://kv/2");
    b.found("fable://kv/2");
    b.publish_well("fable://kv/3");
    a.found("fable://kv/3");
}
