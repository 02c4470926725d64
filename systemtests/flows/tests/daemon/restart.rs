//! Tests of stopping, killing and restarting the daemon.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::Command;

use fable::page::{Counter, Page};
use fable::protocol::{
    Announcement, Answer, FlowEntry, Operation, Peer, Role, ToDaemon, ToProcess, Trust,
};
use systemtests_flows::{Daemon, End, Process, flow, within};
use testkit::process::program;

fn flows(process: &mut Process) -> Vec<FlowEntry> {
    match process.operate(Operation::Flows) {
        Ok(Answer::Flows { flows, more: false }) => flows,
        other => panic!("{other:?}"),
    }
}

fn announce(process: &Process, end: &End, role: Role) {
    let said = Announcement {
        flow: end.flow,
        name: "fable://kv/1".parse().unwrap(),
        role,
        peer: Peer {
            host: "here".to_owned(),
            pid: std::process::id() as i32,
            uid: rustix::process::geteuid().as_raw(),
            gid: 0,
            program: "claimed".to_owned(),
        },
        epoch: 3,
        transport: "unix".to_owned(),
        trust: Trust::Untrusted,
        protected: false,
        local: true,
    };
    process.send(&serde_json::to_vec(&ToDaemon::Announce(said)).unwrap(), &[end.page.as_fd()]);
}

#[test]
fn a_daemon_that_starts_again_learns_the_flows_from_their_ends() {
    let mut daemon = Daemon::start();
    let (server, client, leading, following) = flow(&daemon);
    daemon.crash_and_start_again();
    drop((server, client));
    let mut server = Process::connect(&daemon);
    assert_eq!(server.register("fable://kv/1"), "fable://kv/1");
    announce(&server, &leading, Role::Leader);
    let half = flows(&mut server);
    assert_eq!((half.len(), half[0].follower.program.as_str()), (1, "claimed"));
    // With one end known, the daemon decides nothing.
    let client = Process::connect(&daemon);
    announce(&client, &following, Role::Follower);
    // With both known, the policy prefers another transport; the leader gets the order.
    assert_eq!(server.ordered_move(leading.flow).0, "mempipe-futex-safe");
    server.moved(leading.flow, 4, "mempipe-futex-safe");
    let page = Page::open(following.page.as_fd()).unwrap();
    page.write(Role::Follower, Counter::MessagesSent, 77);
    let whole = within("the counters are read", || {
        let flows = flows(&mut server);
        assert_eq!(flows.len(), 1);
        flows.into_iter().find(|flow| flow.messages == [0, 77])
    });
    assert_eq!((whole.flow, whole.epoch), (leading.flow, 4));
    assert_ne!(whole.follower.program, "claimed");
    drop((server, client));
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let daemon = Daemon::start();
    let second =
        Command::new(program("fabled")).arg("--socket").arg(daemon.socket()).output().unwrap();
    assert!(!second.status.success());
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(error.contains("another fabled listens") && error.contains("--socket"), "{error}");
    Process::connect(&daemon).register("fable://still/1");
}

#[test]
fn what_others_have_put_there_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (file, foreign) = (directory.path().join("file"), directory.path().join("foreign"));
    std::fs::write(&file, "precious").unwrap();
    let _listener = UnixListener::bind(&foreign).unwrap();
    for path in [&file, &foreign] {
        let output = Command::new(program("fabled")).arg("--socket").arg(path).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("--socket"), "{error}");
        assert!(path.exists());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_terminated_daemon_leaves_nothing_behind() {
    let mut daemon = Daemon::start();
    let process = Process::connect(&daemon);
    assert!(daemon.terminate().success());
    assert!(process.hear_the_end().is_empty());
    let mut left: Vec<_> = std::fs::read_dir(daemon.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["log", "policy.toml"]);
}

#[test]
fn who_connects_before_the_names_are_back_waits_for_them() {
    let mut daemon = Daemon::start();
    for is_killed in [true, false] {
        let mut server = Process::connect(&daemon);
        server.register("fable://kv/1");
        match is_killed {
            true => daemon.crash_and_start_again(),
            false => {
                assert!(daemon.terminate().success());
                daemon.start_again();
            }
        }
        let mut client = Process::connect(&daemon);
        let (request, name) = (client.next_request(), "fable://kv".parse().unwrap());
        let (trust, transport, owner) = (Trust::Untrusted, None, None);
        client.say(&ToDaemon::Connect { request, name, trust, transport, owner });
        // Answers come in order: this one shows that the daemon has handled the earlier request.
        assert!(flows(&mut client).is_empty());
        let mut server = Process::connect(&daemon);
        server.register("fable://kv/1");
        let (_, leading) = server.incoming();
        match client.hear() {
            ToProcess::Connected { request: answered, flow, .. } => {
                assert_eq!((answered, flow), (request, leading.flow));
            }
            other => panic!("killed: {is_killed}: {other:?}"),
        }
    }
}

#[test]
fn a_name_that_does_not_come_back_is_refused_in_the_end_and_at_once_without_a_predecessor() {
    let mut daemon = Daemon::start();
    let refused = |daemon: &Daemon| {
        let asked = std::time::Instant::now();
        let refused = Process::connect(daemon).try_connect("fable://nobody", None).err().unwrap();
        assert!(refused.contains("nobody has registered"), "{refused}");
        asked.elapsed()
    };
    let at_once = refused(&daemon);
    daemon.crash_and_start_again();
    let late = refused(&daemon);
    assert!(late > at_once && late.as_millis() > 500, "{at_once:?} {late:?}");
    // After a daemon without names no process will reconnect.
    assert!(daemon.terminate().success());
    daemon.start_again();
    let at_once = refused(&daemon);
    assert!(at_once < late, "{at_once:?} {late:?}");
}
