//! Tests of processes that die while a child still has their descriptors.

use fable::protocol::{FlowEntry, NameEntry};
use systemtests_flows::{Daemon, FlowEnd, Process, within};

/// A child of a program; killed when dropped.
struct Child(i32);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a plain system call. The process was adopted by init, and lives until this call.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

fn child_of(program: &FlowEnd, how: &str) -> Child {
    Child(program.ask(how, "obeyed").parse().unwrap())
}

fn names(daemon: &Daemon) -> Vec<NameEntry> {
    serde_json::from_str(&daemon.fable_says(&["ls", "--json"])).unwrap()
}

fn flows(daemon: &Daemon) -> Vec<FlowEntry> {
    serde_json::from_str(&daemon.fable_says(&["top", "--once", "--json"])).unwrap()
}

fn server_and_client(daemon: &Daemon) -> [FlowEnd; 2] {
    let server = FlowEnd::start("server", "fable://echo/1", &daemon.socket(), "");
    server.hear("serving");
    let client = FlowEnd::start("client", "fable://echo/1", &daemon.socket(), "");
    client.hear("connected");
    within("the flow is in use", || flows(daemon).iter().find(|flow| flow.epoch > 0).map(drop));
    [server, client]
}

#[test]
fn a_child_keeps_neither_names_nor_flows_of_its_dead_parent() {
    let daemon = Daemon::start();
    for how in ["fork", "clone"] {
        let [mut server, client] = server_and_client(&daemon);
        let _child = child_of(&server, how);
        server.crash();
        let error = client.hear("error");
        assert!(error.contains("PeerDied"), "{how}: {error}");
        within("the name is gone", || names(&daemon).is_empty().then_some(()));
        within("the flow is gone", || flows(&daemon).is_empty().then_some(()));
        let refused = Process::connect(&daemon).try_connect("fable://echo/1", None);
        assert!(refused.err().unwrap().contains("nobody has registered"), "{how}");
        // In the other direction, nothing remains of a client either.
        let [server, mut client] = server_and_client(&daemon);
        let _child = child_of(&client, how);
        client.crash();
        let error = server.hear("error");
        assert!(error.contains("PeerDied"), "{how}: {error}");
        within("the flow is gone", || flows(&daemon).is_empty().then_some(()));
    }
}

#[test]
fn an_end_notices_its_dead_peer_without_a_daemon() {
    for how in ["fork", "clone"] {
        let mut daemon = Daemon::start();
        let [mut server, client] = server_and_client(&daemon);
        let _child = child_of(&server, how);
        daemon.crash();
        server.crash();
        let error = client.hear("error");
        assert!(error.contains("PeerDied"), "{how}: {error}");
    }
}

#[test]
fn who_connects_to_a_process_without_descriptors_is_told_what_it_lacks() {
    let daemon = Daemon::start();
    let server = FlowEnd::start("server", "fable://kv", &daemon.socket(), "");
    let pid = server.hear("serving").parse().unwrap();
    systemtests_flows::connect_without_descriptors(&daemon, "fable://kv", pid);
    // Its connection, and so its name, has existed all the time.
    assert_eq!(daemon.log().matches("is registered by").count(), 1, "{}", daemon.log());
}
