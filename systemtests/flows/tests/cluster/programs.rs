//! Tests with programs on different hosts while messages are sent: the library, the daemons and
//! etcd together.

use std::thread;
use std::time::{Duration, Instant};

use fable::protocol::{FlowEntry, NameEntry};

use super::etcd::{Etcd, PORT};
use super::hosts::{LEASE_S, SHORT_LEASE, SHORT_LEASE_S, zone_secret};
use super::network::{ETCD, Network};
use systemtests_flows::{Daemon, FlowEnd, QUICK_POLICY, within};

pub(crate) const TRUSTING: &str = "trusted_networks = [\"10.77.0.0/24\"]\n";

/// Starts a daemon on one of the network's hosts.
pub(crate) fn start_daemon(network: &Network, index: usize, policy: &str, lease_s: u32) -> Daemon {
    start_daemon_by(network, index, policy, lease_s, Daemon::with_arguments)
}

/// Starts a daemon on one of the network's hosts, by calling `start` with its policy and arguments.
pub(crate) fn start_daemon_by(
    network: &Network,
    index: usize,
    policy: &str,
    lease_s: u32,
    start: impl FnOnce(&str, &[&str]) -> Daemon + Send + 'static,
) -> Daemon {
    let policy = format!("{policy}{QUICK_POLICY}");
    network.hosts[index].run(move || {
        let (host, lease) = (["a", "b"][index], lease_s.to_string());
        let (etcd, secret) = (format!("http://{ETCD}:{PORT}"), zone_secret());
        let secret = secret.to_str().expect("a path in UTF-8");
        let users = ["--same-users", "all", "--same-root", "all"];
        let cluster = ["--listen", "0.0.0.0:0", "--lease", &lease, "--etcd", &etcd];
        let host = ["--host", host, "--zone-secret", secret];
        start(&policy, &[&host, &users, &cluster[..]].concat())
    })
}

/// Starts a server or client on one of the network's hosts.
pub(crate) fn start_program(
    network: &Network,
    index: usize,
    role: &'static str,
    daemon: &Daemon,
) -> FlowEnd {
    start_program_with(network, index, role, daemon, "")
}

/// Starts a server or client with further words of behaviour.
pub(crate) fn start_program_with(
    network: &Network,
    index: usize,
    role: &'static str,
    daemon: &Daemon,
    behaviour: &'static str,
) -> FlowEnd {
    let socket = daemon.socket();
    network.hosts[index].run(move || FlowEnd::start(role, "fable://kv", &socket, behaviour))
}

/// Returns the only name that this daemon knows.
pub(crate) fn name(daemon: &Daemon) -> Option<NameEntry> {
    let names: Vec<NameEntry> =
        serde_json::from_str(&daemon.fable_says(&["ls", "--json"])).unwrap();
    names.into_iter().next()
}

/// Returns the only flow that this daemon knows.
pub(crate) fn flow(daemon: &Daemon) -> Option<FlowEntry> {
    let flows: Vec<FlowEntry> =
        serde_json::from_str(&daemon.fable_says(&["top", "--once", "--json"])).unwrap();
    flows.into_iter().next()
}

/// Waits until this daemon reports the flow on this transport, and messages use it.
pub(crate) fn goes_over(daemon: &Daemon, transport: &str) {
    let before =
        within("the flow has moved", || flow(daemon).filter(|entry| entry.transport == transport));
    within("messages flow both ways", || {
        // Each check starts a process, and the machine has other work to do.
        thread::sleep(Duration::from_millis(20));
        let now = flow(daemon)?;
        (0..2).all(|end| now.messages[end] > before.messages[end] + 200).then_some(())
    });
}

/// A server on host a, and a client on host b that already sends.
pub(crate) struct Zone {
    pub(crate) network: Network,
    pub(crate) etcd: Etcd,
    pub(crate) a: Daemon,
    pub(crate) b: Daemon,
    pub(crate) server: FlowEnd,
    pub(crate) client: FlowEnd,
    pub(crate) flow: String,
}

impl Zone {
    /// Starts two hosts and a flow between them. Returns `None` if this test cannot run here.
    pub(crate) fn start(test: &str, policy: &str, first: &str, lease_s: u32) -> Option<Zone> {
        let network = Network::start(test, 2)?;
        let etcd = Etcd::start(&network);
        let [a, b] = [0, 1].map(|index| start_daemon(&network, index, policy, lease_s));
        let server = start_program(&network, 0, "server", &a);
        server.hear("serving");
        within("the name is known to the other host", || name(&b));
        let client = start_program(&network, 1, "client", &b);
        let connected = client.hear("connected");
        let (flow, rest) = connected.split_once(' ').unwrap();
        assert_eq!(rest, format!("{first} a"));
        goes_over(&a, first);
        Some(Zone { flow: flow.to_owned(), network, etcd, a, b, server, client })
    }

    /// Ends the flow, and checks that every message has arrived.
    pub(crate) fn finish(&self) {
        let total = self.client.ask("finish", "finished");
        assert!(total.split(' ').next().unwrap().parse::<u64>().unwrap() > 1000, "{total}");
        self.server.hear("ended");
        within("both daemons have forgotten it", || {
            (flow(&self.a).is_none() && flow(&self.b).is_none()).then_some(())
        });
    }
}

#[test]
fn a_flow_between_hosts_goes_over_every_transport_while_messages_flow() {
    let test = "a flow between hosts over every transport";
    let Some(zone) = Zone::start(test, TRUSTING, "tcp-nodelay", LEASE_S) else { return };
    let ends = [&zone.a, &zone.b];
    for (turn, transport) in ["tcp", "mptcp", "tcp-nodelay", "tls"].into_iter().enumerate() {
        // Either end's operator can give the order.
        ends[turn % 2].fable_says(&["move", &zone.flow, transport]);
        ends.into_iter().for_each(|daemon| goes_over(daemon, transport));
    }
    // The side that ordered encryption withdraws the demand.
    zone.b.fable_says(&["move", &zone.flow, "auto"]);
    goes_over(&zone.b, "tcp-nodelay");
    zone.b.fable_says(&["protect", &zone.flow, "on"]);
    ends.into_iter().for_each(|daemon| goes_over(daemon, "tls"));
    let refused = zone.b.fable_fails(&["move", &zone.flow, "tcp"]);
    assert!(refused.contains("must be protected"), "{refused}");
    let refused = zone.a.fable_fails(&["move", &zone.flow, "mempipe-futex"]);
    assert!(refused.contains("another host"), "{refused}");
    zone.b.fable_says(&["protect", &zone.flow, "off"]);
    goes_over(&zone.a, "tcp-nodelay");
    zone.finish();
}

#[test]
fn a_flow_between_hosts_outlives_etcd_and_a_daemon_while_messages_flow() {
    let test = "a flow between hosts, and what dies beside it";
    let Some(mut zone) = Zone::start(test, "", "tls", SHORT_LEASE_S) else { return };
    let epoch = name(&zone.b).unwrap().epoch;
    for loses_data in [false, true] {
        zone.etcd.kill();
        goes_over(&zone.b, "tls");
        match loses_data {
            false => zone.etcd.start_again(&zone.network),
            true => zone.etcd.start_again_without_data(&zone.network),
        }
        within("the name is in etcd", || {
            let keys = Etcd::control(&zone.network, "get --prefix --keys-only /fable/");
            keys.contains("/names/kv/").then_some(())
        });
        within("the name is known", || name(&zone.b));
    }
    // The daemon that has the leader of the flow.
    let mut a = zone.a;
    zone.a = zone.network.hosts[0].run(move || {
        a.crash_and_start_again();
        a
    });
    goes_over(&zone.b, "tls");
    let back = within("the flow is announced", || flow(&zone.a));
    assert_eq!(back.flow.to_string(), zone.flow);
    assert_eq!((back.leader.host.as_str(), back.follower.host.as_str()), ("a", "b"));
    within("the name is there, with a later epoch", || {
        name(&zone.b).filter(|entry| entry.epoch.is_some() && entry.epoch != epoch)
    });
    assert!(name(&zone.a).is_some());
    goes_over(&zone.a, "tls");
    zone.finish();
}

#[test]
fn a_host_that_dies_takes_its_names_along_and_its_peers_are_told() {
    let test = "a host that dies";
    let Some(mut zone) = Zone::start(test, "", "tls", SHORT_LEASE_S) else { return };
    let died = Instant::now();
    // The daemon first, because it could withdraw the name.
    zone.a.crash();
    zone.server.crash();
    let error = zone.client.hear("error");
    assert!(error.contains("PeerDied"), "{error}");
    println!("the peer knows after {} ms", died.elapsed().as_millis());
    within("the name is gone", || name(&zone.b).is_none().then_some(()));
    println!("the name is gone after {} ms, lease {SHORT_LEASE:?}", died.elapsed().as_millis());
    within("the flow is gone", || flow(&zone.b).is_none().then_some(()));
}

#[test]
fn a_host_that_falls_silent_is_given_up() {
    let test = "a host that falls silent";
    let Some(zone) = Zone::start(test, TRUSTING, "tcp-nodelay", SHORT_LEASE_S) else { return };
    // While nothing that was sent waits for an acknowledgement, only keep-alive probes detect the
    // failure.
    zone.client.ask("pause", "paused");
    zone.network.cut(0);
    let cut = Instant::now();
    within("the name is gone", || name(&zone.b).is_none().then_some(()));
    println!("the name is gone after {} ms, lease {SHORT_LEASE:?}", cut.elapsed().as_millis());
    let error = zone.client.hear("error");
    assert!(error.contains("PeerDied"), "{error}");
    println!("the peer knows after {} ms", cut.elapsed().as_millis());
    within("the flow is gone", || flow(&zone.b).is_none().then_some(()));
}
