//! Tests of names without failures of etcd: registered on one host, found on another; conflicts;
//! hosts that die.

use fabled::cluster::Options;
use fabled::cluster_link::{Cluster, ClusterEvent};

use super::etcd::Etcd;
use super::hosts::{address, join, join_with, options, parsed};
use super::network::Network;

#[test]
fn a_name_of_one_host_is_found_on_the_other() {
    let Some(network) = Network::start("a name of one host on another", 3) else { return };
    let _etcd = Etcd::start(&network);
    let [mut a, mut b] = [0, 1].map(|index| join(&network, index, ["a", "b"][index]));
    let epoch = a.publish_well("fable://kv/1");
    let found = b.found("fable://kv");
    assert_eq!((found.name.to_string().as_str(), found.epoch), ("fable://kv/1", epoch));
    assert_eq!((found.owner.host.as_str(), found.owner.pid), ("a", 42));
    assert_eq!(found.addresses, [address(0, a.member.listening())]);
    assert!(a.find("fable://kv").is_empty(), "a host's own names are its daemon's");
    b.publish_well("fable://kv/2");
    // A host that joins later finds the existing name, and both instances.
    let mut c = join(&network, 2, "c");
    assert_eq!(c.find("fable://kv").len(), 2);
    assert_eq!(c.member.names().len(), 2);
    a.withdraw("fable://kv/1");
    c.gone("fable://kv/1");
    c.expect("an event", |event| matches!(event, ClusterEvent::NameGone { .. }));
    // A proper end revokes the lease: the other hosts do not wait for its expiry.
    drop(b);
    c.gone("fable://kv/2");
}

#[test]
fn of_two_hosts_that_want_a_name_one_gets_it() {
    let Some(network) = Network::start("two hosts that want one name", 2) else { return };
    let _etcd = Etcd::start(&network);
    let mut hosts = [0, 1].map(|index| join(&network, index, ["a", "b"][index]));
    for number in 0..10 {
        let name = format!("fable://kv/{number}");
        let wanted = parsed(&name);
        hosts.iter_mut().for_each(|host| host.publish(&name));
        let mut outcomes = hosts.iter_mut().map(|host| {
            host.expect("an answer", |event| {
                matches!(event, ClusterEvent::Published { name, .. }
                    | ClusterEvent::NameConflict { name, .. } if *name == wanted)
            })
        });
        let (first, second) = (outcomes.next().unwrap(), outcomes.next().unwrap());
        drop(outcomes);
        let (winner, epoch) =
            match (first, second) {
                (
                    ClusterEvent::Published { epoch, .. },
                    ClusterEvent::NameConflict { holder, .. },
                ) if holder == "a" => (0, epoch),
                (
                    ClusterEvent::NameConflict { holder, .. },
                    ClusterEvent::Published { epoch, .. },
                ) if holder == "b" => (1, epoch),
                other => panic!("{other:?}"),
            };
        // When the winner withdraws the name, the other host gets it without asking again.
        hosts[winner].withdraw(&name);
        assert!(hosts[1 - winner].published(&name) > epoch);
        assert_eq!(hosts[winner].found(&name).owner.host, ["b", "a"][winner]);
    }
}

#[test]
fn a_namesake_waits_until_the_first_is_gone() {
    let Some(network) = Network::start("two hosts of one name", 3) else { return };
    let _etcd = Etcd::start(&network);
    let first = join(&network, 0, "a");
    let namesake = options("a");
    let member = network.hosts[1].run(move || fabled::cluster::Member::start(&namesake)).unwrap();
    let mut second = super::hosts::Host { member, events: Vec::new() };
    let words = "another daemon is registered as host a";
    second.expect("this reason", |event| {
        // There may be other reasons, from an etcd that is slow to answer.
        matches!(event, ClusterEvent::Down { reason } if reason.contains(words))
    });
    second.publish("fable://kv/1");
    let mut c = join(&network, 2, "c");
    assert!(c.find("fable://kv/1").is_empty());
    drop(first);
    second.expect_up();
    second.published("fable://kv/1");
    assert_eq!(c.found("fable://kv/1").addresses, [address(1, second.member.listening())]);
    // Zones do not see each other, and a host can be in another zone under the same name.
    let other = Options { zone: "other".to_owned(), ..options("a") };
    let mut other = join_with(&network, 0, other);
    assert!(other.find("fable://kv").is_empty());
    other.publish_well("fable://kv/1");
    c.take_events();
    assert_eq!(c.find("fable://kv").len(), 1);
}

#[test]
fn what_others_write_into_etcd_is_not_believed() {
    let Some(network) = Network::start("hostile values in etcd", 2) else { return };
    let _etcd = Etcd::start(&network);
    let put = |key: &str, value: &str| {
        Etcd::control(&network, &format!("put /fable/test/{key} {value}"));
    };
    put("names/kv/0", "garbage");
    put("names/kv", "{}");
    put("hosts/x", r#"{"version":1,"addresses":["0.0.0.0:1"],"identity":"x"}"#);
    let mut a = join(&network, 0, "a");
    let b = join(&network, 1, "b");
    a.publish("fable://kv/0");
    let conflict =
        a.expect("a conflict", |event| matches!(event, ClusterEvent::NameConflict { .. }));
    assert!(format!("{conflict:?}").contains("unknown"), "{conflict:?}");
    a.publish_well("fable://kv/1");
    b.found("fable://kv/1");
    // Another program overwrites a name, and removes another.
    put("names/kv/1", "garbage");
    a.expect("a conflict", |event| matches!(event, ClusterEvent::NameConflict { .. }));
    b.gone("fable://kv/1");
    Etcd::control(&network, "del --prefix /fable/test/names/");
    a.published("fable://kv/0");
    a.published("fable://kv/1");
    b.found("fable://kv/0");
    b.found("fable://kv/1");
}
