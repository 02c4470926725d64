//! Tests that a process which breaks the rules harms only itself.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use fable::packet;
use fable::protocol::{
    Access, Announcement, Answer, DESCRIPTORS_MAX, FlowId, Operation, PACKET_BYTES_MAX, Peer, Role,
    ToDaemon, ToProcess, Trust, VERSION,
};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};
use systemtests_flows::{Daemon, Process, flow, within};

/// Asserts that the daemon still serves others.
fn assert_alive(daemon: &Daemon) {
    let (mut server, mut client) = (Process::connect(daemon), Process::connect(daemon));
    let name = server.register("fable://alive");
    client.try_connect(&name, None).unwrap();
}

fn open_descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
fn garbage_ends_the_connection_with_a_reason() {
    let daemon = Daemon::start();
    let garbage: [&[u8]; 7] = [
        b"x",
        b"\xff\xfe\x00",
        b"{}",
        b"{\"say\":\"fly\"}",
        b"{\"say\":\"unregister\",\"name\":\"fable://a b\"}",
        b"{\"say\":\"register\",\"request\":-1}",
        &[b'['; 10_000],
    ];
    for bytes in garbage {
        let process = Process::connect(&daemon);
        process.send(bytes, &[]);
        let said = process.hear_the_end();
        assert!(said.contains("is no message"), "{said}");
    }
    assert_alive(&daemon);
}

#[test]
fn who_does_not_say_hello_or_says_it_twice_or_too_new_has_to_go() {
    let daemon = Daemon::start();
    let silent = Process::silent(&daemon.socket());
    silent.say(&ToDaemon::Unregister { name: "fable://a/1".parse().unwrap() });
    assert!(silent.hear_the_end().contains("hello"));
    let twice = Process::connect(&daemon);
    twice.say(&ToDaemon::Hello { version: VERSION, program: String::new() });
    assert!(twice.hear_the_end().contains("hello"));
    let new = Process::silent(&daemon.socket());
    new.say(&ToDaemon::Hello { version: VERSION + 1, program: String::new() });
    assert!(new.hear_the_end().contains("version"));
    assert_alive(&daemon);
}

#[test]
fn too_much_in_one_packet_ends_the_connection_and_leaks_nothing() {
    let daemon = Daemon::start();
    let before = open_descriptors(&daemon);
    let long = Process::connect(&daemon);
    rustix::net::send(&long.socket, &vec![b' '; PACKET_BYTES_MAX + 1], SendFlags::empty()).unwrap();
    assert!(long.hear_the_end().contains("131072"));
    let many = Process::connect(&daemon);
    let file = File::open("/dev/null").unwrap();
    let descriptors = [file.as_fd(); DESCRIPTORS_MAX + 40];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + 40))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(&many.socket, &[IoSlice::new(b"{}")], &mut control, SendFlags::empty()).unwrap();
    assert!(many.hear_the_end().contains("8 descriptors"));
    // The number of descriptors is permitted, but not with this message.
    let odd = Process::connect(&daemon);
    let message = ToDaemon::Unregister { name: "fable://a/1".parse().unwrap() };
    odd.send(&serde_json::to_vec(&message).unwrap(), &[file.as_fd()]);
    assert!(odd.hear_the_end().contains("1 descriptors instead of 0"));
    within("the descriptors are closed", || (open_descriptors(&daemon) <= before).then_some(()));
    assert_alive(&daemon);
}

fn is_stopped(daemon: &Daemon) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    status.lines().any(|line| line.starts_with("State:\tT"))
}

/// The kernel lets closing a socket wait for its unsent bytes as long as SO_LINGER says.
#[test]
fn a_socket_whose_closing_waits_does_not_stop_the_daemon() {
    let daemon = Daemon::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _deaf = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(10_000))).unwrap();
    let process = Process::connect(&daemon);
    // While it is stopped, the only other end of the socket is closed here.
    let pid = Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    within("the daemon is stopped", || is_stopped(&daemon).then_some(()));
    process.send(b"x", &[stream.as_fd()]);
    drop(stream);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(process.hear_the_end().contains("is no message"));
    assert_alive(&daemon);
}

#[test]
fn who_does_not_read_is_not_listened_to_and_others_are_served() {
    let daemon = Daemon::start();
    let deaf = Process::connect(&daemon);
    // More requests than there is room for answers; the client reads no answer.
    let mut asked = 0;
    for request in 0..100_000 {
        let question = ToDaemon::Operate { request, operation: Operation::Names };
        let bytes = serde_json::to_vec(&question).unwrap();
        if packet::send(deaf.socket.as_fd(), &bytes, &[]).is_err() {
            break;
        }
        asked += 1;
    }
    assert_alive(&daemon);
    // When it reads, it gets every answer.
    for expected in 0..asked {
        match deaf.hear() {
            ToProcess::Answer { request, answer: Answer::Names { .. } } => {
                assert_eq!(request, expected);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_watcher_that_does_not_read_is_disconnected() {
    let daemon = Daemon::start();
    let mut watcher = Process::connect(&daemon);
    let request = watcher.next_request();
    watcher.say(&ToDaemon::Operate { request, operation: Operation::Events });
    let mut busy = Process::connect(&daemon);
    within("the watcher has to go", || {
        for _ in 0..200 {
            let name = busy.register("fable://busy/1");
            busy.say(&ToDaemon::Unregister { name: name.parse().unwrap() });
        }
        daemon.log().contains("does not read").then_some(())
    });
    watcher.hear_the_end();
    assert_alive(&daemon);
}

#[test]
fn a_listener_that_does_not_accept_is_not_drowned() {
    let daemon = Daemon::start();
    let (mut server, mut client) = (Process::connect(&daemon), Process::connect(&daemon));
    server.register("fable://slow/1");
    let refused = within("the listener is full", || client.try_connect("fable://slow", None).err());
    assert!(refused.contains("does not keep up"), "{refused}");
    // The server is still connected, and gets every flow that was accepted for it.
    let (_, end) = server.incoming();
    server.moved(end.flow, 1, &end.transport);
    assert_alive(&daemon);
}

#[test]
fn a_daemon_out_of_descriptors_waits_for_some() {
    let daemon = Daemon::start();
    let mut first = Process::connect(&daemon);
    daemon.limit_descriptors(open_descriptors(&daemon) as u64 + 6);
    let many: Vec<_> = (0..20).map(|_| Process::silent(&daemon.socket())).collect();
    within("it notices", || daemon.log().contains("cannot accept connections").then_some(()));
    assert!(first.operate(Operation::Names).is_ok(), "who is connected is served");
    let later = Process::silent(&daemon.socket());
    drop(many);
    later.say(&ToDaemon::Hello { version: VERSION, program: String::new() });
    assert!(matches!(later.hear(), ToProcess::Welcome { .. }));
    // The daemon did not spend the time on attempts.
    let tries = daemon.log().matches("cannot accept connections").count();
    assert!(tries < 1000, "{tries}");
}

#[test]
fn names_are_bounded() {
    let daemon = Daemon::start();
    let mut greedy = Process::connect(&daemon);
    let refused = (0..10_000).find_map(|number| {
        greedy
            .try_register(&format!("fable://greedy{}/{number}", number % 8), Access::default())
            .err()
    });
    assert!(refused.unwrap().contains("at most 1024 names"));
    let users = (0..2000).collect();
    let mut verbose = Process::connect(&daemon);
    let refused = verbose.try_register("fable://v/1", Access { users, groups: Vec::new() });
    assert!(refused.unwrap_err().contains("group"));
    assert_alive(&daemon);
}

#[test]
fn lies_about_flows_are_not_believed() {
    let daemon = Daemon::start();
    let (mut server, _client, leading, _) = flow(&daemon);
    let nobody = Peer {
        host: "here".to_owned(),
        pid: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: 0,
        program: String::new(),
    };
    let announce = |flow, page: &dyn AsFd, role, name: &str| {
        let liar = Process::connect(&daemon);
        let said = Announcement {
            flow,
            name: name.parse().unwrap(),
            role,
            peer: nobody.clone(),
            epoch: 7,
            transport: "unix".to_owned(),
            trust: Trust::Trusted,
            protected: false,
            local: true,
        };
        liar.send(&serde_json::to_vec(&ToDaemon::Announce(said)).unwrap(), &[page.as_fd()]);
        match liar.hear() {
            ToProcess::Refused { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    };
    let other_page = fable::page::create().unwrap();
    let file = File::open("/dev/zero").unwrap();
    // Named like a page, by the user of the daemon.
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let unsealed = rustix::fs::memfd_create("fable-page-0000000000000005", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let same_number = fable::page::create_for(leading.flow).unwrap();
    let (flow, kv) = (leading.flow, "fable://kv/1");
    for (refused, word) in [
        (announce(flow, &other_page, Role::Leader, kv), "not made by a daemon"),
        (announce(flow, &same_number, Role::Leader, kv), "its page is another one"),
        (announce(flow, &leading.page, Role::Leader, kv), "here already"),
        (announce(flow, &leading.page, Role::Leader, "fable://kv/2"), "otherwise"),
        (announce(FlowId(5), &file, Role::Leader, kv), "not made by a daemon"),
        (announce(FlowId(5), &unsealed, Role::Leader, kv), "sealed"),
    ] {
        assert!(refused.contains("not believed") && refused.contains(word), "{refused}");
    }
    match server.operate(Operation::Flows) {
        Ok(Answer::Flows { flows, .. }) => assert_eq!((flows.len(), flows[0].epoch), (1, 1)),
        other => panic!("{other:?}"),
    }
    // A transport that does not exist.
    server.moved(flow, 2, "pigeon");
    assert!(server.hear_the_end().contains("does not exist"));
    assert_alive(&daemon);
}
