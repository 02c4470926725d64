//! Tests that need a process of their own: descriptors that are not leaked, and the calls of a
//! child of `fork`.

use std::process::Command;

use fable::protocol::ToDaemon;
use fable::{Endpoint, EndpointOptions, Error, Flow, FlowId, Kind};

use crate::endpoints::rig::{Deed, GUARD, TestDaemon, eventually};

const ALONE: &str = "FABLE_TEST_ALONE";

/// Returns how many descriptors this process has open.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs the body of this test in a process of its own.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
    let output = alone.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // A wrong name would run no test.
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}: {output:?}");
}

#[test]
fn no_descriptor_is_leaked() {
    alone("endpoints::alone::no_descriptor_is_leaked", count);
}

#[test]
fn a_forked_child_speaks_for_itself() {
    alone("endpoints::alone::a_forked_child_speaks_for_itself", speak_as_a_child);
}

fn speak_as_a_child() {
    let daemon = TestDaemon::start();
    let kv = daemon.options().register("fable://kv").unwrap();
    let listener = kv.listen().unwrap();
    let parents = kv.connect("fable://kv").unwrap();
    let server = listener.accept_timeout(GUARD).unwrap();
    let options = daemon.options();
    // SAFETY: no thread of this process holds a lock now that the child needs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = matches!(parents.try_read(), Err(Error::Forked))
            && matches!(kv.connect("fable://kv"), Err(Error::Forked))
            && ask_as_a_child(options).is_ok_and(|answer| answer == b"from the parent");
        drop((parents, server, listener, kv));
        // SAFETY: ends the child without running destructors that belong to the parent.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let childs = listener.accept_timeout(GUARD).unwrap();
    assert_eq!(&childs.read_timeout(GUARD).unwrap().unwrap()[..], b"from the child");
    send(&childs, b"from the parent");
    let mut status = 0;
    // SAFETY: the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    // The child's actions on its copies do not affect those of the parent.
    send(&parents, b"still here");
    assert_eq!(&server.read_timeout(GUARD).unwrap().unwrap()[..], b"still here");
    let _another = kv.connect("fable://kv").unwrap();
}

fn ask_as_a_child(options: EndpointOptions) -> Result<Vec<u8>, Error> {
    let flow = options.anonymous().connect("fable://kv")?;
    send(&flow, b"from the child");
    Ok(flow.read_timeout(GUARD)?.map(|answer| answer.to_vec()).unwrap_or_default())
}

fn send(flow: &Flow, bytes: &[u8]) {
    let mut buffer = flow.write(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer.commit().unwrap();
}

fn count() {
    // The agent and the page for fork detection are made once and stay.
    one_life();
    let before = open_descriptors();
    for _ in 0..5 {
        one_life();
    }
    eventually("every descriptor is closed", || open_descriptors() <= before);
}

/// Makes daemons, endpoints and flows, successful and failing ones, and ends them.
fn one_life() {
    let daemon = TestDaemon::start();
    let kv = daemon.options().register("fable://kv").unwrap();
    let listener = kv.listen().unwrap();
    for transport in [Kind::Unix, Kind::TcpNodelay, "mempipe-futex".parse().unwrap()] {
        let client = daemon.options().transport(transport).anonymous();
        let client = client.connect("fable://kv").unwrap();
        let server = listener.accept_timeout(GUARD).unwrap();
        client.write(5).unwrap().commit().unwrap();
        assert_eq!(server.read_timeout(GUARD).unwrap().unwrap().len(), 5);
        client.descriptor().unwrap();
    }
    // One flow is never accepted, one is not answered, one is refused.
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

/// Runs a daemon that sends descriptors with every message.
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
                peer: crate::endpoints::rig::somebody(),
                transport: "unix".into(),
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
