//! Tests of processes that use the library, with a real daemon and while messages are sent: moves
//! by operators and by the policy, and the daemon's death.

use std::os::unix::process::CommandExt;

use fable::protocol::{Decision, FlowEntry, NameEntry};
use systemtests_flows::{Daemon, FlowEnd, within};

/// A policy that is followed soon.
const QUICK_POLICY: &str = "observe_every_ms = 20\n[thresholds]\n\
    dwell_ms = 0\ndwell_ms_max = 0\nobservations = 2\n";

/// A daemon, and a flow from a client to a server.
struct Scene {
    daemon: Daemon,
    server: FlowEnd,
    client: FlowEnd,
    flow: String,
    /// The first transport.
    transport: String,
}

impl Scene {
    fn start(policy: &str, behaviour: &str) -> Scene {
        Scene::with_client(policy, behaviour, |socket| {
            FlowEnd::start("client", "fable://echo", socket, behaviour)
        })
    }

    fn with_client(
        policy: &str,
        behaviour: &str,
        client: impl FnOnce(&std::path::Path) -> FlowEnd,
    ) -> Scene {
        let daemon = Daemon::with_policy(policy);
        let server = FlowEnd::start("server", "fable://echo", &daemon.socket(), behaviour);
        server.hear("serving");
        let client = client(&daemon.socket());
        let connected = client.hear("connected");
        let [flow, transport, _] = *connected.split(' ').collect::<Vec<_>>() else {
            panic!("{connected}")
        };
        let (flow, transport) = (flow.to_owned(), transport.to_owned());
        Scene { daemon, server, client, flow, transport }
    }

    fn names(&self) -> Vec<NameEntry> {
        serde_json::from_str(&self.daemon.fable_says(&["ls", "--json"])).unwrap()
    }

    fn entry(&self) -> Option<FlowEntry> {
        let text = self.daemon.fable_says(&["top", "--once", "--json"]);
        let flows: Vec<FlowEntry> = serde_json::from_str(&text).unwrap();
        flows.into_iter().next()
    }

    /// Waits until the flow is on this transport and messages use it in both directions.
    fn goes_over(&self, transport: &str) {
        let on_it = || self.entry().filter(|entry| entry.transport == transport);
        let before = within(&format!("the flow goes over {transport}"), on_it);
        within("messages flow both ways", || {
            let now = self.entry()?;
            (0..2).all(|end| now.messages[end] > before.messages[end] + 200).then_some(())
        });
    }

    /// Returns the decisions, oldest first; the last one is the policy's present choice.
    fn decisions(&self) -> Vec<Decision> {
        let text = self.daemon.fable_says(&["why", &self.flow, "--json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        serde_json::from_value(answer["decisions"].clone()).unwrap()
    }

    /// Checks that the latest executed decision for this transport has such a reason.
    fn because(&self, transport: &str, reason: &str) {
        let decisions = self.decisions();
        let mut done = decisions.iter().rev().skip(1);
        let latest = done.find(|decision| decision.transport == transport);
        assert!(latest.is_some_and(|known| known.reason.contains(reason)), "{decisions:#?}");
    }

    /// Ends the flow properly.
    fn finish(&self) {
        self.client.ask("finish", "finished");
        self.server.hear("ended");
        within("the flow is forgotten", || self.entry().is_none().then_some(()));
    }
}

#[test]
fn a_flow_goes_where_operators_send_it_and_outlives_the_daemon() {
    let mut scene = Scene::start(QUICK_POLICY, "");
    assert_eq!(scene.transport, "mempipe-futex-safe");
    for (transport, full) in [
        ("unix", "unix"),
        ("tls", "tls"),
        ("tcp-nodelay", "tcp-nodelay"),
        ("mempipe-futex", "mempipe-futex-safe"),
        ("tcp", "tcp"),
    ] {
        scene.daemon.fable_says(&["move", &scene.flow, transport]);
        scene.goes_over(full);
    }
    scene.because("tls", "user 0 ordered it");
    let before = scene.entry().unwrap();
    scene.daemon.crash_and_start_again();
    // Both processes reconnect with their name and their flow.
    let back = within("the flow is announced", || scene.entry());
    assert_eq!(back.flow.to_string(), scene.flow);
    assert!(back.epoch >= before.epoch, "{back:?}");
    // The ends have kept the order until it is withdrawn.
    scene.goes_over("tcp");
    assert!(within("the flow is announced", || scene.entry()).pinned);
    scene.daemon.fable_says(&["move", &scene.flow, "auto"]);
    scene.goes_over("mempipe-futex-safe");
    within("the name is registered again", || scene.names().into_iter().next());
    scene.server.crash();
    let error = scene.client.hear("error");
    assert!(error.contains("PeerDied"), "{error}");
    within("the flow and the name are gone", || {
        (scene.entry().is_none() && scene.names().is_empty()).then_some(())
    });
}

#[test]
fn ends_in_different_network_namespaces_share_memory_with_a_copy() {
    let scene = Scene::with_client(QUICK_POLICY, "trusting", |socket| {
        FlowEnd::start_with("client", "fable://echo", socket, "trusting", |command| {
            // SAFETY: unshare with a plain number is permitted between fork and exec.
            unsafe {
                command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                })
            }
        })
    });
    assert_eq!(scene.transport, "mempipe-futex-safe");
    scene.goes_over("mempipe-futex-safe");
    let first = &scene.decisions()[0].reason;
    assert!(first.contains("in the safe form, as they are in different network"), "{first}");
    let refused = scene.daemon.fable_fails(&["move", &scene.flow, "mempipe-futex-unsafe"]);
    assert!(refused.contains("different network namespaces"), "{refused}");
    // As before a move to another host, and during this move the end changes its namespace.
    scene.daemon.fable_says(&["move", &scene.flow, "tcp"]);
    scene.goes_over("tcp");
    scene.client.ask("unshare", "obeyed");
    scene.goes_over("tcp");
    scene.daemon.fable_says(&["move", &scene.flow, "tls"]);
    scene.goes_over("tls");
    scene.daemon.fable_says(&["move", &scene.flow, "auto"]);
    scene.goes_over("mempipe-futex-safe");
    scene.finish();
}

#[test]
fn top_counts_what_was_sent() {
    let scene = Scene::start(QUICK_POLICY, "");
    scene.goes_over("mempipe-futex-safe");
    let busy = within("latencies and rates are known", || {
        let known = |entry: &FlowEntry| {
            entry.latency_ns.iter().all(Option::is_some)
                && entry.messages_s.iter().all(|&rate| rate > 100.0)
        };
        scene.entry().filter(known)
    });
    for end in 0..2 {
        // Lengths cycle from 8 to 519 bytes.
        let length = busy.bytes_s[end] / busy.messages_s[end];
        assert!((200.0..330.0).contains(&length), "{busy:?}");
    }
    let paused = scene.client.ask("pause", "paused");
    let sent: u64 = paused.split(' ').next().unwrap().parse().unwrap();
    within("the totals are exact", || (scene.entry()?.messages == [sent, sent]).then_some(()));
    within("the rates fall", || {
        let now = scene.entry()?.messages_s;
        (0..2).all(|end| now[end] < busy.messages_s[end] / 4.0).then_some(())
    });
    scene.daemon.fable_says(&["protect", &scene.flow, "on"]);
    let entry = scene.entry().unwrap();
    // Within one host no other party can read the messages.
    assert_eq!((entry.protected, entry.transport.as_str()), (true, "mempipe-futex-safe"));
    scene.client.tell("go");
    scene.goes_over("mempipe-futex-safe");
    scene.finish();
}

#[test]
fn ends_that_wait_by_their_descriptors_go_where_they_are_sent() {
    let scene = Scene::start(QUICK_POLICY, "watched");
    for transport in ["unix", "mempipe-futex-safe", "tcp-nodelay"] {
        scene.daemon.fable_says(&["move", &scene.flow, transport]);
        scene.goes_over(transport);
    }
    scene.finish();
}

#[test]
fn a_policy_that_is_read_again_moves_flows_without_loss_and_a_wrong_one_changes_nothing() {
    let scene = Scene::start(QUICK_POLICY, "");
    assert_eq!(scene.transport, "mempipe-futex-safe");
    let rule = |transport: &str| {
        format!("{QUICK_POLICY}[[rule]]\nname = \"fable://echo/*\"\ntransport = \"{transport}\"\n")
    };
    for transport in ["unix", "tcp-nodelay"] {
        scene.daemon.reload(&rule(transport));
        scene.goes_over(transport);
    }
    scene.daemon.reload("nonsense = [");
    within("the log says so", || {
        scene.daemon.log().contains("the policy stays as it was").then_some(())
    });
    scene.goes_over("tcp-nodelay");
    scene.daemon.reload(QUICK_POLICY);
    scene.goes_over("mempipe-futex-safe");
    scene.finish();
}
