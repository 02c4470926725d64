//! Tests that no user takes the daemon, or another user's service, away from the others. Each
//! prints what the attack achieved. They need root, to be several users.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use fable::protocol::{
    Access, Announcement, Answer, FlowId, NameEntry, Operation, Peer, Role, ToDaemon, ToProcess,
    Trust, UserEntry,
};
use fable::{Endpoint, Error, packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use systemtests_flows::{Daemon, FlowEnd, Process, TIME_LIMIT, as_user, within};

/// Who attacks, who has been there before, and who comes later.
const MALLORY: u32 = 12_345;
const ALICE: u32 = 1000;
const BOB: u32 = 2000;

/// Everybody may connect, so that only the owner of a service decides.
const OPEN_POLICY: &str = "access = \"everyone\"\n";

/// A user who has nothing yet registers, connects, and exchanges messages; and so does root.
fn assert_others_are_served(daemon: &Daemon) {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    for uid in [BOB, 0] {
        let name = format!("fable://served-{uid}-{number}");
        let start =
            |role| FlowEnd::start_as(uid, [role, &name], &daemon.socket(), daemon.directory());
        let server = start("server");
        server.hear("serving");
        let client = start("client");
        client.hear("connected");
        within("messages are exchanged", || {
            let paused = client.ask("pause", "paused");
            client.tell("go");
            (!paused.starts_with("0 ")).then_some(())
        });
        let finished = client.ask("finish", "finished");
        println!("user {uid}: {finished} (messages, bytes)");
    }
}

fn users(daemon: &Daemon) -> BTreeMap<String, UserEntry> {
    let text = daemon.fable_says(&["stat", "--json"]);
    let users: Vec<UserEntry> = serde_json::from_str(&text).unwrap();
    users.into_iter().map(|entry| (entry.user.clone(), entry)).collect()
}

fn names(daemon: &Daemon) -> Vec<NameEntry> {
    serde_json::from_str(&daemon.fable_says(&["ls", "--json"])).unwrap()
}

/// Connects so many times, and returns how many flows each instance got.
fn shares(client: &mut Process, name: &str, count: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..count {
        *shares.entry(client.try_connect(name, None).unwrap().0).or_default() += 1;
    }
    shares
}

#[test]
fn a_service_belongs_to_the_user_who_registered_it_first() {
    let daemon = Daemon::with_policy(OPEN_POLICY);
    let mut alice = Process::connect_as(&daemon, ALICE, &[]);
    alice.register("fable://bank/1");
    let mut mallory = Process::connect_as(&daemon, MALLORY, &[]);
    let refused = mallory.try_register("fable://bank/2", Access::default());
    let mut client = Process::connect_as(&daemon, BOB, &[]);
    let shares_before = shares(&mut client, "fable://bank", 20);
    println!("20 connections to fable://bank: {shares_before:?}");
    let refused = refused.unwrap_err();
    for word in ["user 12345", "user 1000, who registered it first", "bank = 12345", "[owner]"] {
        assert!(refused.contains(word), "{refused}");
    }
    assert!(mallory.try_register("fable://bank", Access::default()).is_err());
    assert_eq!(shares_before, [("fable://bank/1".to_owned(), 20)].into());
    // Root may help out.
    let mut root = Process::connect(&daemon);
    root.register("fable://bank/root");
    assert_eq!(shares(&mut client, "fable://bank", 20).len(), 2);
    assert!(names(&daemon).iter().all(|entry| entry.service_owner == Some(ALICE)));
    // The name is kept for those who restart.
    drop((alice, root));
    within("the names are gone", || names(&daemon).is_empty().then_some(()));
    let refused = mallory.try_register("fable://bank/2", Access::default()).unwrap_err();
    assert!(refused.contains("had it until lately"), "{refused}");
    Process::connect_as(&daemon, ALICE, &[]).register("fable://bank/1");
    assert_others_are_served(&daemon);
}

#[test]
fn a_service_is_free_again_after_a_time() {
    let daemon = Daemon::with_policy("owner_kept_s = 0\n");
    let mut alice = Process::connect_as(&daemon, ALICE, &[]);
    alice.register("fable://bank/1");
    let mut bob = Process::connect_as(&daemon, BOB, &[]);
    assert!(bob.try_register("fable://bank/2", Access::default()).is_err());
    drop(alice);
    within("the name is free", || bob.try_register("fable://bank/2", Access::default()).ok());
}

#[test]
fn the_policy_gives_a_service_to_a_user() {
    let policy = |uid: u32| format!("{OPEN_POLICY}[owner]\nbank = {uid}\n");
    let daemon = Daemon::with_policy(&policy(ALICE));
    let mut mallory = Process::connect_as(&daemon, MALLORY, &[]);
    let refused = mallory.try_register("fable://bank/2", Access::default()).unwrap_err();
    assert!(refused.contains("the policy gives the service bank to user 1000"), "{refused}");
    let mut alice = Process::connect_as(&daemon, ALICE, &[]);
    alice.register("fable://bank/1");
    let mut client = Process::connect_as(&daemon, BOB, &[]);
    assert_eq!(shares(&mut client, "fable://bank", 4), [("fable://bank/1".to_owned(), 4)].into());
    // The service changes hands: the instance of its former owner is passed over.
    daemon.reload(&policy(MALLORY));
    within("the policy is read again", || {
        mallory.try_register("fable://bank/2", Access::default()).ok()
    });
    assert_eq!(shares(&mut client, "fable://bank", 4), [("fable://bank/2".to_owned(), 4)].into());
    let refused = client.try_connect("fable://bank/1", None).err().unwrap();
    assert!(refused.contains("user 1000") && refused.contains("no connections"), "{refused}");
    let mut other = Process::connect_as(&daemon, ALICE, &[]);
    assert!(other.try_register("fable://bank/3", Access::default()).is_err());
    let listing = daemon.fable_says(&["ls"]);
    let state = |name: &str| {
        let line = listing.lines().find(|line| line.starts_with(name)).unwrap();
        let columns: Vec<_> = line.split_whitespace().collect();
        [columns[4], columns[5], columns[7]].map(str::to_owned)
    };
    assert_eq!(state("fable://bank/1"), ["1000", "12345", "unserved"]);
    assert_eq!(state("fable://bank/2"), ["12345", "12345", "-"]);
}

#[test]
fn a_daemon_that_starts_again_remembers_the_owners() {
    let mut daemon = Daemon::with_policy(OPEN_POLICY);
    for is_killed in [true, false] {
        let mut alice = Process::connect_as(&daemon, ALICE, &[]);
        let bank = || alice.try_register("fable://bank/1", Access::default()).ok();
        within("the name is free", bank);
        match is_killed {
            true => daemon.crash_and_start_again(),
            false => {
                assert!(daemon.terminate().success());
                daemon.start_again();
            }
        }
        // Before the owner comes back.
        let mut mallory = Process::connect_as(&daemon, MALLORY, &[]);
        let refused = mallory.try_register("fable://bank/1", Access::default()).unwrap_err();
        assert!(refused.contains("user 1000"), "killed: {is_killed}: {refused}");
    }
    Process::connect_as(&daemon, ALICE, &[]).register("fable://bank/1");
}

#[test]
fn a_client_gets_the_owner_that_it_requires_or_nothing() {
    let daemon = Daemon::with_policy(OPEN_POLICY);
    let directory = daemon.directory();
    let server = ["server", "fable://bank"];
    let server = FlowEnd::start_as(ALICE, server, &daemon.socket(), directory);
    server.hear("serving");
    let connect = |uid| {
        let options = Endpoint::options().socket(daemon.socket()).timeout(TIME_LIMIT);
        options.owner(uid).anonymous().connect("fable://bank")
    };
    match connect(MALLORY) {
        Err(Error::OtherOwner { name, expected, found }) => {
            assert_eq!((name.as_str(), expected, found), ("fable://bank", MALLORY, ALICE));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(connect(ALICE).unwrap().peer().uid, ALICE);
    // An instance of root does not count as one of the required user.
    let mut root = Process::connect(&daemon);
    root.register("fable://bank/root");
    let client = Process::connect(&daemon);
    for request in 1..=6 {
        let (name, trust) = ("fable://bank".parse().unwrap(), Trust::Untrusted);
        let owner = Some(ALICE);
        client.say(&ToDaemon::Connect { request, name, trust, transport: None, owner });
        match client.hear() {
            ToProcess::Connected { peer, .. } => assert_eq!(peer.uid, ALICE),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sixteen_connections_do_not_hold_all_names() {
    let daemon = Daemon::with_policy("");
    let mut greedy: Vec<_> = (0..16).map(|_| Process::connect_as(&daemon, MALLORY, &[])).collect();
    let (mut held, mut refused) = (0, Vec::new());
    for (number, process) in greedy.iter_mut().enumerate() {
        for instance in 0..1100 {
            let name = format!("fable://greedy{number}/{instance}");
            match process.try_register(&name, Access::default()) {
                Ok(_) => held += 1,
                Err(reason) => {
                    refused.push(reason);
                    break;
                }
            }
        }
    }
    println!("16 connections of one user hold {held} names");
    assert_others_are_served(&daemon);
    assert_eq!(held, 4096);
    assert!(refused.iter().any(|reason| reason.contains("`names`")), "{refused:?}");
    let entry = &users(&daemon)["user 12345"];
    assert_eq!((entry.names.held, entry.names.limit), (4096, 4096));
    assert!(entry.refused >= 12, "{entry:?}");
    // A raised quota is bounded by what the others have left: the reserve stays root's.
    daemon.reload("[quota]\nnames = 100000\n");
    within("the quota is raised", || {
        (users(&daemon)["user 12345"].names.limit > 4096).then_some(())
    });
    let mut refused = Vec::new();
    for (number, process) in greedy.iter_mut().enumerate() {
        let register = |instance| {
            let name = format!("fable://more{number}/{instance}");
            process.try_register(&name, Access::default()).err()
        };
        refused.extend((0..1100).find_map(register));
    }
    let held = users(&daemon)["user 12345"].names.held;
    println!("with a quota of 100,000, they hold {held} names");
    assert_eq!(held, (16_384 - 1024 - 4096) / 2);
    assert!(refused.iter().any(|reason| reason.contains("free for all users")), "{refused:?}");
    assert_others_are_served(&daemon);
}

#[test]
fn many_users_together_leave_the_reserve_to_root() {
    let daemon = Daemon::with_policy("[quota]\nlog_lines_s = 1\n");
    let mut greedy = Vec::new();
    let mut held = 0;
    for uid in MALLORY..MALLORY + 400 {
        let mut process = Process::connect_as(&daemon, uid, &[]);
        let mut register = |instance: usize| {
            let name = format!("fable://greedy{uid}/{instance}");
            process.try_register(&name, Access::default()).is_ok()
        };
        let own = (0..1100).take_while(|instance| register(*instance)).count();
        held += own;
        greedy.push(process);
        if own == 0 {
            break;
        }
    }
    println!("{} users hold {held} names", greedy.len());
    assert_eq!(held, 16_384 - 1024);
    let mut bob = Process::connect_as(&daemon, BOB, &[]);
    let refused = bob.try_register("fable://served/1", Access::default()).unwrap_err();
    assert!(refused.contains("fable stat"), "{refused}");
    let mut root = Process::connect(&daemon);
    root.register("fable://served/root");
    root.try_connect(&format!("fable://greedy{MALLORY}/1"), None).unwrap();
    // Names are used up, flows are not.
    let refused = bob.try_connect("fable://served", None).err().unwrap();
    assert!(refused.contains("user 2000 may not connect"), "{refused}");
}

fn announcement(flow: FlowId) -> ToDaemon {
    let program = "invented".to_owned();
    ToDaemon::Announce(Announcement {
        flow,
        name: "fable://bank/1".parse().unwrap(),
        role: Role::Follower,
        peer: Peer { host: "here".to_owned(), pid: 1, uid: ALICE, gid: 0, program },
        epoch: 1,
        transport: "unix".to_owned(),
        trust: Trust::Untrusted,
        protected: false,
        local: true,
    })
}

/// Sends a packet while it reads what comes.
fn send_and_read(process: &Process, message: &ToDaemon, page: &OwnedFd) -> Vec<String> {
    let mut said = Vec::new();
    let bytes = serde_json::to_vec(message).unwrap();
    within("the daemon takes the packet", || {
        while let Ok(Some(packet)) = packet::receive(process.socket.as_fd()) {
            said.push(String::from_utf8(packet.bytes).unwrap());
        }
        packet::send(process.socket.as_fd(), &bytes, &[page.as_fd()]).ok()
    });
    said
}

#[test]
fn invented_flows_do_not_fill_the_table() {
    let daemon = Daemon::with_policy("");
    // A page like those of the daemon, as far as another user can make one.
    let page = as_user(MALLORY, &[], || fable::page::create_for(FlowId(7)).unwrap());
    let liars: Vec<_> = (0..9).map(|_| Process::connect_as(&daemon, MALLORY, &[])).collect();
    let mut said = Vec::new();
    for (number, liar) in liars.iter().enumerate() {
        for flow in 0..4096 {
            let flow = FlowId(((number as u64) << 32) + flow);
            said.extend(send_and_read(liar, &announcement(flow), &page));
        }
    }
    // The one whose number the page has.
    said.extend(send_and_read(&liars[0], &announcement(FlowId(7)), &page));
    let mut root = Process::connect(&daemon);
    let mut flows = 0;
    let request = root.next_request();
    root.say(&ToDaemon::Operate { request, operation: Operation::Flows });
    loop {
        let ToProcess::Answer { answer: Answer::Flows { flows: some, more }, .. } = root.hear()
        else {
            panic!("a list of flows")
        };
        flows += some.len();
        if !more {
            break;
        }
    }
    println!("{} announcements of invented flows: {flows} are in the table", 9 * 4096 + 1);
    assert_others_are_served(&daemon);
    assert_eq!(flows, 0);
    let others = said.iter().filter(|said| !said.contains("is not believed: its page")).count();
    assert_eq!(others, 0, "{:?}", said.first());
    assert!(users(&daemon)["user 12345"].refused > 30_000);
}

#[test]
fn the_page_of_one_flow_proves_no_other() {
    let mut daemon = Daemon::with_policy("");
    let (mut server, mut client) =
        (Process::connect_as(&daemon, MALLORY, &[]), Process::connect_as(&daemon, MALLORY, &[]));
    server.register("fable://own/1");
    let (_, _, end) = client.try_connect("fable://own", None).unwrap();
    daemon.crash_and_start_again();
    let announce = |daemon: &Daemon, flow| {
        let mut process = Process::connect_as(daemon, MALLORY, &[]);
        let bytes = serde_json::to_vec(&announcement(flow)).unwrap();
        process.send(&bytes, &[end.page.as_fd()]);
        // Answers come in order: a refusal before that to a question.
        let request = process.next_request();
        process.say(&ToDaemon::Operate { request, operation: Operation::Flows });
        match process.hear() {
            ToProcess::Refused { reason, .. } => Err(reason),
            ToProcess::Answer { answer: Answer::Flows { flows, .. }, .. } => Ok(flows.len()),
            other => panic!("{other:?}"),
        }
    };
    let refused = announce(&daemon, FlowId(end.flow.0 ^ 1)).unwrap_err();
    assert!(refused.contains(&format!("its page is that of flow {}", end.flow)), "{refused}");
    assert_eq!(announce(&daemon, end.flow), Ok(1));
    // Too late.
    fs::write(daemon.directory().join("policy.toml"), "announced_within_s = 0\n").unwrap();
    daemon.crash_and_start_again();
    let refused = announce(&daemon, end.flow).unwrap_err();
    assert!(refused.contains("`announced_within_s`"), "{refused}");
}

/// The most memory that a process has had, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What a connection may cost (`CONNECTION_BYTES`), and what may wait for a subscriber
/// (`SUBSCRIBER_UNSENT_BYTES_MAX`).
const CONNECTION_BYTES: u64 = 4096;
const UNSENT_BYTES: u64 = 8 << 10;

#[test]
fn subscribers_that_never_read_cost_little() {
    const SUBSCRIBERS: u64 = 2040;
    const CYCLES: usize = 100;
    testkit::raise_descriptor_limit(2 * SUBSCRIBERS);
    let daemon = Daemon::with_policy("");
    let subscribe = |process: &mut Process| {
        let request = process.next_request();
        process.say(&ToDaemon::Operate { request, operation: Operation::Events });
    };
    let mut reader = Process::connect_as(&daemon, BOB, &[]);
    subscribe(&mut reader);
    let before = peak_memory(daemon.pid());
    let deaf: Vec<Process> =
        as_user(MALLORY, &[], || (0..SUBSCRIBERS).map(|_| Process::connect(&daemon)).collect());
    let mut deaf = deaf;
    deaf.iter_mut().for_each(subscribe);
    // Root is not limited in the events that it causes.
    let mut root = Process::connect(&daemon);
    let has_ended = |process: &Process| {
        let mut ends = [PollFd::new(&process.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ends, Some(&now)).unwrap();
        ends[0].revents().contains(PollFlags::HUP)
    };
    within("all of them are disconnected", || {
        for _ in 0..CYCLES {
            root.register("fable://busy/1");
            root.say(&ToDaemon::Unregister { name: "fable://busy/1".parse().unwrap() });
            within("the event arrives", || match reader.hear() {
                ToProcess::Answer { answer: Answer::Event { what, .. }, .. } => {
                    what.contains("fable://busy/1 is gone").then_some(())
                }
                other => panic!("{other:?}"),
            });
        }
        deaf.iter().all(has_ended).then_some(())
    });
    let grown = peak_memory(daemon.pid()) - before;
    println!("{SUBSCRIBERS} subscribers that never read: the daemon has grown by {grown} bytes");
    assert_others_are_served(&daemon);
    // Twice that, as an allocator rounds up, and 8 MiB for what others do meanwhile.
    let bound = 2 * SUBSCRIBERS * (CONNECTION_BYTES + UNSENT_BYTES) + (8 << 20);
    assert!(grown < bound, "{grown} of {bound}");
    let log = daemon.log();
    assert!(log.contains("subscribed to events and does not read them"), "{log}");
    let mallory = &users(&daemon)["user 12345"];
    assert_eq!((mallory.connections.held, mallory.refused), (0, SUBSCRIBERS));
}

#[test]
fn a_user_who_floods_the_log_silences_only_itself() {
    const CYCLES: usize = 5000;
    let daemon = Daemon::with_policy("");
    let started = Instant::now();
    let mut mallory = Process::connect_as(&daemon, MALLORY, &[]);
    let mut subscriber = Process::connect(&daemon);
    let request = subscriber.next_request();
    subscriber.say(&ToDaemon::Operate { request, operation: Operation::Events });
    // It reads all the time: one that falls behind is disconnected.
    let subscriber = std::thread::spawn(move || {
        for events in 0.. {
            match subscriber.hear() {
                ToProcess::Answer { answer: Answer::Event { what, .. }, .. } => {
                    if what.contains("fable://served-0-") {
                        return events;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        unreachable!("the numbers do not end")
    });
    for _ in 0..CYCLES {
        let name = mallory.register("fable://flood/1");
        mallory.say(&ToDaemon::Unregister { name: name.parse().unwrap() });
    }
    let lines = daemon.log().lines().filter(|line| line.contains("fable://flood/1")).count();
    let most = 250.0 + 10.0 * started.elapsed().as_secs_f64();
    println!("{CYCLES} names registered and given up: {lines} lines in the log");
    assert_others_are_served(&daemon);
    assert!(lines as f64 <= most, "{lines} of {most}");
    let log = within("what is suppressed is counted", || {
        Some(daemon.log()).filter(|log| log.contains("more lines about user 12345 were suppressed"))
    });
    assert!(log.contains("fable://served-2000-") && log.contains("fable://served-0-"), "{log}");
    assert!(users(&daemon)["user 12345"].suppressed > 5000, "{:?}", users(&daemon));
    // A subscriber is not flooded, either, and sees the events of the others.
    let events: u32 = subscriber.join().expect("the subscriber sees the events of the others");
    println!("{events} events to a subscriber");
    assert!(f64::from(events) <= 2.0 * most, "{events} of {most}");
}
