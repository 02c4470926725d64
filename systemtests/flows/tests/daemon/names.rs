//! Tests of names, for the processes that hold them and those that connect.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use fable::packet;
use fable::protocol::{Access, Answer, Operation, ToDaemon};
use systemtests_flows::{Daemon, FlowEnd, Process, within};
use testkit::process::program;

fn names(process: &mut Process) -> Vec<String> {
    match process.operate(Operation::Names) {
        Ok(Answer::Names { names, more: false }) => {
            names.iter().map(|entry| entry.name.to_string()).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn instances_are_chosen_and_a_name_belongs_to_one() {
    let daemon = Daemon::start();
    let (mut one, mut other) = (Process::connect(&daemon), Process::connect(&daemon));
    assert_eq!(one.register("fable://kv"), "fable://kv/1");
    assert_eq!(other.register("fable://kv"), "fable://kv/2");
    assert_eq!(other.register("fable://kv/blue"), "fable://kv/blue");
    let refused = other.try_register("fable://kv/1", Access::default()).unwrap_err();
    assert!(refused.contains("is taken by") && refused.contains("choose another"), "{refused}");
    let refused = other.try_register("tcp://localhost:1", Access::default()).unwrap_err();
    assert!(refused.contains("fable://"), "{refused}");
    assert_eq!(names(&mut one), ["fable://kv/1", "fable://kv/2", "fable://kv/blue"]);
    // Only its owner can unregister a name.
    other.say(&ToDaemon::Unregister { name: "fable://kv/1".parse().unwrap() });
    other.say(&ToDaemon::Unregister { name: "fable://kv/2".parse().unwrap() });
    within("a name is given up", || {
        (names(&mut other) == ["fable://kv/1", "fable://kv/blue"]).then_some(())
    });
}

#[test]
fn both_ends_get_one_control_socket_and_one_page() {
    let daemon = Daemon::start();
    let (mut server, mut client) = (Process::connect(&daemon), Process::connect(&daemon));
    server.register("fable://kv/1");
    let (name, listening, following) = client.try_connect("fable://kv/1", None).unwrap();
    let (connecting, leading) = server.incoming();
    assert_eq!(name, "fable://kv/1");
    assert_eq!(leading.flow, following.flow);
    assert_eq!(leading.transport, "mempipe-futex-safe");
    for peer in [&listening, &connecting] {
        assert_eq!((peer.pid, peer.host.as_str()), (std::process::id() as i32, "here"));
    }
    packet::send(leading.control.as_fd(), b"offer", &[]).unwrap();
    let packet = packet::receive(following.control.as_fd()).unwrap().unwrap();
    assert_eq!(packet.bytes, b"offer");
    let identity = |page| {
        let status = rustix::fs::fstat(page).unwrap();
        (status.st_dev, status.st_ino, status.st_size)
    };
    assert_eq!(identity(&leading.page), identity(&following.page));
    let refused = client.try_connect("fable://nobody", None).err().unwrap();
    assert!(refused.contains("fable://nobody") && refused.contains("fable ls"), "{refused}");
    let refused = client.try_connect("fable://kv", Some("pigeon")).err().unwrap();
    assert!(refused.contains("mempipe-futex-safe"), "{refused}");
    let refused = client.try_connect("fable://kv", Some("mempipe-futex-unsafe")).err().unwrap();
    assert!(refused.contains("trust"), "{refused}");
    let (_, _, end) = client.try_connect("fable://kv", Some("unix")).unwrap();
    assert_eq!((end.transport.as_str(), server.incoming().1.transport.as_str()), ("unix", "unix"));
}

#[test]
fn a_service_is_served_in_turn() {
    let daemon = Daemon::start();
    let (mut server, mut client) = (Process::connect(&daemon), Process::connect(&daemon));
    server.register("fable://kv/a");
    server.register("fable://kv/b");
    let picked: Vec<String> = (0..4)
        .map(|_| {
            let (name, _, _end) = client.try_connect("fable://kv", None).unwrap();
            name
        })
        .collect();
    assert_eq!(picked, ["fable://kv/a", "fable://kv/b", "fable://kv/a", "fable://kv/b"]);
}

#[test]
fn users_and_groups_decide_who_may_connect() {
    let daemon = Daemon::start();
    let mut server = Process::connect_as(&daemon, 4242, &[]);
    server.register("fable://own/1");
    let listed = Access { users: vec![4244], groups: vec![77] };
    server.try_register("fable://listed/1", listed).unwrap();
    let mut root = Process::connect(&daemon);
    let mut same = Process::connect_as(&daemon, 4242, &[]);
    let mut other = Process::connect_as(&daemon, 4243, &[]);
    let mut friend = Process::connect_as(&daemon, 4244, &[]);
    let mut member = Process::connect_as(&daemon, 4245, &[5, 77]);
    for process in [&mut root, &mut same] {
        process.try_connect("fable://own", None).unwrap();
    }
    for process in [&mut root, &mut same, &mut friend, &mut member] {
        process.try_connect("fable://listed", None).unwrap();
    }
    for process in [&mut other, &mut friend, &mut member] {
        let refused = process.try_connect("fable://own", None).err().unwrap();
        assert!(refused.contains("user 4242") && refused.contains("access"), "{refused}");
    }
    let refused = other.try_connect("fable://listed/1", None).err().unwrap();
    assert!(refused.contains("user 4243"), "{refused}");
}

#[test]
fn names_vanish_with_their_process() {
    let daemon = Daemon::start();
    let mut watcher = Process::connect(&daemon);
    let mut mortal = FlowEnd::start("server", "fable://mortal", &daemon.socket(), "");
    mortal.hear("serving");
    assert_eq!(names(&mut watcher), ["fable://mortal/1"]);
    mortal.crash();
    within("its name is gone", || names(&mut watcher).is_empty().then_some(()));
}

/// A command that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel reports no process id for such a client.
#[test]
fn a_client_outside_the_daemons_pid_namespace_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("fabled.sock");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program("fabled")).arg("--socket");
    let mut daemon = Running(command.arg(&socket).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut process = Process::connect_to(&socket);
    assert_eq!(process.register("fable://kv"), "fable://kv/1");
    assert_eq!(names(&mut process), ["fable://kv/1"]);
}
