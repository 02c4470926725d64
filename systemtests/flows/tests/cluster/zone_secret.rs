//! Tests of what a process with access to etcd, but without the zone's secret, can do. Each attack
//! is also made on a zone without a secret, where it succeeds: so it is a real one.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fable::protocol::{Peer, Role};
use fabled::cluster::{ForeignUsers, Hosts, NOBODY, Options};
use fabled::cluster_link::{Cluster, ClusterEvent, Ticket};
use ring::hmac;
use serde_json::{Value, json};

use super::connections::{assert_refused, show};
use super::etcd::Etcd;
use super::hosts::{Host, LEASE_S, eventually, join_with, options, owner, ticket, zone_secret};
use super::network::Network;
use super::programs::{TRUSTING, flow, name, start_daemon_by, start_program};
use systemtests_flows::{Daemon, within};

/// Returns options for a host in a zone with or without a secret. Users of other hosts keep their
/// numbers, to show which user a forged ticket is for.
fn options_of(name: &str, with_secret: bool) -> Options {
    let zone_secret = options(name).zone_secret.filter(|_| with_secret);
    Options { zone_secret, ..options(name) }
}

fn join_all<const N: usize>(network: &Network, with_secret: bool) -> [Host; N] {
    std::array::from_fn(|index| {
        join_with(network, index, options_of(["a", "b", "c"][index], with_secret))
    })
}

/// Returns all values of the zone.
fn values(network: &Network) -> Vec<Value> {
    let text = Etcd::control(network, "get --prefix --print-value-only /fable/test/");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns every text within a value.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            found.push(text.clone());
            if let Ok(inside @ Value::Object(_)) = serde_json::from_str(text) {
                texts(&inside, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        Value::Object(values) => values.values().for_each(|value| texts(value, found)),
        _ => {}
    }
}

/// Forges a ticket for root of host b, as its daemon would sign it with this key.
fn forged(key: &[u8], nonce: u64) -> String {
    let wanted = ticket("fable://kv/1", "b");
    let wanted = Ticket { peer: Peer { uid: 0, gid: 0, ..wanted.peer }, ..wanted };
    let mut text = serde_json::to_value(&wanted).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut number = [0; 16];
    number[..8].copy_from_slice(&nonce.to_le_bytes());
    let more = json!({"target": "a", "expires_s": now + 60, "nonce": STANDARD.encode(number)});
    text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let text = text.to_string();
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    json!({"ticket": text, "signature": STANDARD.encode(signature)}).to_string()
}

/// Reads all of etcd, and signs tickets with everything that could be a key. Returns how many were
/// shown, and the user that a connection appeared as.
fn forge_all(network: &Network, a: &mut Host) -> (usize, Option<u32>) {
    let mut found = Vec::new();
    values(network).iter().for_each(|value| texts(value, &mut found));
    let keys: Vec<Vec<u8>> = found
        .iter()
        .flat_map(|text| [Some(text.as_bytes().to_vec()), STANDARD.decode(text).ok()])
        .flatten()
        .collect();
    let address = a.find_self(0);
    for (number, key) in keys.iter().enumerate() {
        let stream = show(network, 1, address, &forged(key, number as u64));
        // Either it is closed, or there is an event.
        let mut admitted = None;
        stream.set_nonblocking(true).unwrap();
        assert!(eventually(|| {
            admitted = admitted.take().or_else(|| {
                a.take_events().into_iter().find_map(|event| match event {
                    ClusterEvent::Connection { ticket, .. } => Some(ticket.peer),
                    _ => None,
                })
            });
            admitted.is_some() || is_closed(&stream)
        }));
        if let Some(peer) = admitted {
            assert_eq!(peer.host, "b", "the attacker chooses the host");
            return (number + 1, Some(peer.uid));
        }
    }
    (keys.len(), None)
}

fn is_closed(stream: &std::net::TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn a_reader_of_etcd_forges_no_ticket() {
    let Some(network) = Network::start("a forged ticket", 2) else { return };
    for with_secret in [false, true] {
        let _etcd = Etcd::start(&network);
        let [mut a, mut b] = join_all(&network, with_secret);
        a.publish_well("fable://kv/1");
        b.found("fable://kv/1");
        let (count, admitted) = forge_all(&network, &mut a);
        match with_secret {
            false => assert_eq!(admitted, Some(0), "the attacker is root of host b"),
            true => assert!(admitted.is_none() && count > 4, "{admitted:?} of {count}"),
        }
        // A genuine ticket is still admitted.
        let line = b.member.ticket(&ticket("fable://kv/1", "b"), "a").unwrap();
        let _client = show(&network, 1, a.find_self(0), &line);
        a.expect("it is admitted", |event| matches!(event, ClusterEvent::Connection { .. }));
    }
}

#[test]
fn a_writer_of_etcd_replaces_no_host_and_no_name() {
    let Some(network) = Network::start("a replaced host", 3) else { return };
    for with_secret in [false, true] {
        let _etcd = Etcd::start(&network);
        let [_a, b, mut c] = join_all(&network, with_secret);
        let mut b = b;
        let flow = ticket("fable://kv/1", "b").flow;
        let genuine = b.member.keys(flow, Role::Leader).unwrap();

        let put = |key: &str, value: &Value| {
            Etcd::control(&network, &format!("put /fable/test/{key} {value}"));
        };
        let host = json!({"version": 1, "addresses": ["10.77.0.3:1"], "identity": "evil"});
        put("hosts/a", &host);
        let owner = Peer { host: "a".to_owned(), uid: 0, ..owner() };
        put("names/bank/1", &json!({"version": 1, "identity": "evil", "owner": owner}));
        // The watch reports in order: what comes after it shows that b has seen all that.
        c.publish_well("fable://after/1");
        b.found("fable://after/1");

        let found = b.find("fable://bank");
        assert_eq!(b.member.keys(flow, Role::Leader).unwrap(), genuine);
        if with_secret {
            assert!(found.is_empty(), "{found:?}");
        } else {
            assert_eq!((found.len(), found[0].owner.uid), (1, 0), "b believes the attacker");
            continue;
        }
        // A genuine record at another key is no record there.
        let text = Etcd::control(&network, "get --print-value-only /fable/test/names/after/1");
        put("names/bank/2", &serde_json::from_str(text.trim()).unwrap());
        c.publish_well("fable://after/2");
        b.found("fable://after/2");
        assert!(b.find("fable://bank").is_empty());
    }
}

#[test]
fn hosts_with_another_secret_or_without_one_do_not_meet() {
    let Some(network) = Network::start("hosts with different secrets", 3) else { return };
    let _etcd = Etcd::start(&network);
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("zone");
    fabled::cluster::make_secret(&other).unwrap();
    let mut a = join_with(&network, 0, options("a"));
    let mut b = join_with(&network, 1, Options { zone_secret: Some(other), ..options("b") });
    let mut c = join_with(&network, 2, options("c"));
    a.publish_well("fable://kv/1");
    b.publish_well("fable://kv/2");
    c.publish_well("fable://kv/3");
    c.found("fable://kv/1");
    a.found("fable://kv/3");
    assert!(b.find("fable://kv").is_empty());
    assert!(c.find("fable://kv/2").is_empty());
    // b knows a's address, but its ticket is refused.
    let line = b.member.ticket(&ticket("fable://kv/1", "b"), "a").unwrap();
    assert_refused(show(&network, 1, a.find_self(0), &line));
}

#[test]
fn users_of_other_hosts_are_nobody_unless_their_host_is_listed() {
    let Some(network) = Network::start("users of other hosts", 3) else { return };
    let _etcd = Etcd::start(&network);
    let list = |users: &[&str], root: &[&str]| {
        let hosts = |names: &[&str]| {
            Hosts::named(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        ForeignUsers { users: hosts(users), root: hosts(root) }
    };
    let lists = [list(&[], &[]), list(&["b"], &[]), list(&["all"], &["b"])];
    let mut b = join_with(&network, 2, options("b"));
    b.publish_well("fable://kv/1");
    let expected = [[NOBODY, NOBODY], [1000, NOBODY], [1000, 0]];
    for (foreign_users, expected) in lists.into_iter().zip(expected) {
        let mut a = join_with(&network, 0, Options { foreign_users, ..options("a") });
        a.publish_well("fable://kv/2");
        assert!(eventually(|| b.member.ticket(&ticket("fable://kv/2", "b"), "a").is_ok()));
        for (uid, shown) in [1000, 0].into_iter().zip(expected) {
            let wanted = ticket("fable://kv/2", "b");
            let wanted = Ticket { peer: Peer { uid, ..wanted.peer }, ..wanted };
            let line = b.member.ticket(&wanted, "a").unwrap();
            let _client = show(&network, 2, a.find_self(0), &line);
            let event =
                a.expect("a connection", |event| matches!(event, ClusterEvent::Connection { .. }));
            let ClusterEvent::Connection { ticket, .. } = event else { unreachable!() };
            assert_eq!(ticket.peer.uid, shown);
        }
        // Clients see the owner of b's name, whose user is 1000, likewise.
        assert_eq!(a.found("fable://kv/1").owner.uid, expected[0]);
    }
}

/// Starts a daemon to which all users of other hosts are nobody.
fn start_strict_daemon(network: &Network, index: usize, policy: &str) -> Daemon {
    start_daemon_by(network, index, policy, LEASE_S, |policy, arguments| {
        let users = ["--same-users", "--same-root", "all"];
        let strict: Vec<&str> =
            arguments.iter().copied().filter(|argument| !users.contains(argument)).collect();
        assert_eq!(strict.len() + 4, arguments.len());
        Daemon::with_arguments(policy, &strict)
    })
}

#[test]
fn servers_and_policies_see_root_of_another_host_as_nobody() {
    let Some(network) = Network::start("root of another host", 2) else { return };
    let _etcd = Etcd::start(&network);
    for (access, admitted) in [("same-user", false), ("everyone", true)] {
        let policy = format!("access = \"{access}\"\n{TRUSTING}");
        let [a, b] = [0, 1].map(|index| start_strict_daemon(&network, index, &policy));
        let server = start_program(&network, 0, "server", &a);
        server.hear("serving");
        within("the name is known to the other host", || name(&b));
        let client = start_program(&network, 1, "client", &b);
        if admitted {
            client.hear("connected");
            let [seen_by_server, seen_by_client] =
                [&a, &b].map(|daemon| within("the flow is known", || flow(daemon)));
            assert_eq!(seen_by_server.follower.uid, NOBODY);
            assert_eq!(seen_by_client.leader.uid, NOBODY);
        } else {
            client.hear("error");
            let refusal = format!("user {NOBODY} may not connect to fable://kv/a-1");
            within("the log says why", || a.log().contains(&refusal).then_some(()));
            assert!(a.log().contains("--same-root b lets it keep its number"), "{}", a.log());
        }
        // They revoke their leases, so that the next ones need not wait for their end.
        for mut daemon in [a, b] {
            assert!(daemon.terminate().success());
        }
    }
}

#[test]
fn an_unprotected_zone_is_named_at_start() {
    let unreachable = |url: &str, zone: &[&str]| {
        // Nothing answers there, which is no matter of this test.
        let arguments = ["--etcd", url, "--listen", "127.0.0.1:0", "--host", "h"];
        Daemon::with_arguments("", &[&arguments[..], zone].concat()).log()
    };
    let file = zone_secret();
    let secret = ["--zone-secret", file.to_str().unwrap()];
    let log = unreachable("http://192.0.2.1:1", &["--insecure-zone"]);
    assert!(log.contains("etcd at 192.0.2.1:1 is reached without TLS"), "{log}");
    assert!(log.contains("zone default has no secret"), "{log}");
    let log = unreachable("http://192.0.2.1:1", &secret);
    assert!(log.contains("without TLS") && !log.contains("no secret"), "{log}");
    let log = unreachable("http://127.0.0.1:1", &secret);
    assert!(!log.contains("without TLS") && !log.contains("no secret"), "{log}");
}
