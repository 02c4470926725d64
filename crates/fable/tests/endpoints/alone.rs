//! What can only be seen in a process that does nothing else: that no descriptor is leaked.

use std::process::Command;

use fable::protocol::ToDaemon;
use fable::{Endpoint, FlowId, Kind};

use crate::rig::{Deed, GUARD, TestDaemon, eventually};

const ALONE: &str = "FABLE_TEST_ALONE";

/// How many descriptors this process has open.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn no_descriptor_is_leaked() {
    if std::env::var_os(ALONE).is_some() {
        return count();
    }
    let this = std::env::current_exe().unwrap();
    let mut alone = Command::new(this);
    alone.args(["--exact", "alone::no_descriptor_is_leaked", "--nocapture"]).env(ALONE, "1");
    assert!(alone.status().unwrap().success());
}

fn count() {
    // What is made once stays: the agent and the page that tells of forks.
    one_life();
    let before = open_descriptors();
    for _ in 0..5 {
        one_life();
    }
    eventually("every descriptor is closed", || open_descriptors() <= before);
}

/// Daemons, endpoints and flows, good and bad, from their beginning to their end.
fn one_life() {
    let daemon = TestDaemon::start();
    let kv = daemon.options().register("fable://kv").unwrap();
    let listener = kv.listen().unwrap();
    for transport in [Kind::Pipe, Kind::TcpNodelay, "mempipe-futex".parse().unwrap()] {
        let client = daemon.options().transport(transport).anonymous();
        let client = client.connect("fable://kv").unwrap();
        let server = listener.accept_timeout(GUARD).unwrap();
        client.write(5).unwrap().commit().unwrap();
        assert_eq!(server.read_timeout(GUARD).unwrap().unwrap().len(), 5);
        client.descriptor().unwrap();
    }
    // One that is never accepted, one that nobody answers, one that is refused.
    let _waiting = kv.connect("fable://kv").unwrap();
    drop(listener);
    kv.connect("fable://kv").unwrap_err();
    kv.connect("fable://nobody").unwrap_err();

    let foreign = Endpoint::register("tcp://127.0.0.1:0").unwrap();
    let listener = foreign.listen().unwrap();
    let _client = Endpoint::anonymous().connect(&foreign.name().unwrap().to_string()).unwrap();
    let _server = listener.accept_timeout(GUARD).unwrap();
    let _queued = Endpoint::anonymous().connect(&foreign.name().unwrap().to_string()).unwrap();

    hostile_daemon();
}

/// Descriptors come with everything that it says.
fn hostile_daemon() {
    let daemon = TestDaemon::with_whims(|said| match said {
        ToDaemon::Register { request, name, .. } => {
            let descriptors = (0..8).map(|_| fable::page::create().unwrap()).collect();
            let registered =
                fable::protocol::ToProcess::Registered { request: *request, name: name.clone() };
            Deed::Send(vec![(serde_json::to_vec(&registered).unwrap(), descriptors)])
        }
        ToDaemon::Connect { request, name, .. } => {
            let connected = fable::protocol::ToProcess::Connected {
                request: *request,
                flow: FlowId(1),
                name: name.clone(),
                peer: crate::rig::somebody(),
                transport: "pipe".into(),
                reason: String::new(),
            };
            let descriptors = (0..2).map(|_| fable::page::create().unwrap()).collect();
            Deed::Send(vec![(serde_json::to_vec(&connected).unwrap(), descriptors)])
        }
        _ => Deed::Serve,
    });
    let options = daemon.options();
    options.clone().register("fable://kv").unwrap_err();
    options.anonymous().connect("fable://kv").unwrap_err();
}
