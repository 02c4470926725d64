//! Tests of error messages for wrong and excessive options, and of the help.

use std::net::TcpListener;

use crate::support::{iobench, run, stderr, stdout};
use testkit::{Refusal, assert_refusals, refusal};

#[track_caller]
fn assert_refused(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), testkit::refusal_status(&output), "{arguments:?}: {message}");
    for part in parts {
        assert!(message.contains(part), "{arguments:?}: no `{part}` in: {message}");
    }
    assert!(stdout(&output).is_empty());
}

#[test]
fn files_and_descriptors_that_cannot_be_used_are_refused() {
    assert_refused(&["compare", "--json", "/"], &["/", "directory"]);
    let inherited = ["serve", "--server", "epoll", "--page-fd", "77", "--lifeline-fd", "78"];
    assert_refused(&inherited, &["no inherited descriptor"]);
}

#[test]
fn a_port_in_use_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = &other.local_addr().unwrap().port().to_string();
    assert_refused(&["serve", "--server", "epoll", "--bind", port], &["bind", port, "--bind 0"]);
    // The former option still works, and says so.
    assert_refused(&["serve", "--server", "epoll", "--port", port], &["write --bind PORT", port]);
}

#[cfg(not(feature = "mpi"))]
#[test]
fn many_hosts_need_a_build_with_mpi() {
    assert_refused(&["agent", "--check"], &["built without MPI", "--features mpi"]);
    assert_refused(&["agent", "--check", "--mpi-address", "nowhere"], &["--mpi-address"]);
    assert_refused(&["agent"], &["--check"]);
}

#[test]
fn former_ways_work_and_say_what_to_write() {
    let port = "127.0.0.1:1";
    for (former, instead) in [
        (&["compare", "--message-bytes", "64", "--cores", "100000"][..], "write --request-bytes"),
        (&["compare", "--network", "delay=1ms", "--servers", "x"], "write --path CONDITIONS"),
        (&["compare", "--client", "mtcp", "--servers", "epoll"], "write SERVER/CLIENT"),
        (&["http", "--client", "kernel", "--servers", "none"], "write SERVER/CLIENT"),
        (&["load", "--connect", port, "--message-bytes", "9"], "write --request-bytes"),
        (&["load", "--server", "epoll", "--beside", "wrk {address}"], "`iobench http --wrk`"),
        (&["apps", "nginx", "--wrk"], "`iobench http --wrk`"),
        (&["log", "all.log"], "read all.log as it is"),
    ] {
        assert_refused(former, &[instead]);
    }
    #[cfg(not(feature = "mpi"))]
    assert_refused(&["hosts"], &["write `agent --check`", "built without MPI"]);
}

#[test]
fn help_has_units_defaults_and_examples() {
    let output = run(&["compare", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for part in ["500ms", "[default: 256]", "Examples:", "--quick", "INVALID", "--strict"] {
        assert!(help.contains(part), "no `{part}` in: {help}");
    }
    assert_eq!(run(&["--version"]).status.code(), Some(0));
}

#[test]
fn every_command_that_measures_can_be_strict_and_no_other() {
    let help = |words: &str| stdout(&run(&[words.split(' ').collect(), vec!["--help"]].concat()));
    for command in
        ["compare", "ceiling", "apps nginx", "apps memcached", "ipc", "programs", "run", "load"]
    {
        assert!(help(command).contains("\n      --strict"), "{command}: {}", help(command));
    }
    for command in ["diff", "report", "serve", "doctor", "agent"] {
        assert!(!help(command).contains("\n      --strict"), "{command}");
    }
    assert!(stdout(&run(&["--help"])).contains("With\n--strict also 3"));
}

#[test]
fn every_server_is_described_with_its_limits() {
    let listed = run(&["serve", "--list"]);
    assert_eq!(listed.status.code(), Some(0));
    let (list, help) = (stdout(&listed), stdout(&run(&["serve", "--help"])));
    let names = ["epoll-edge", "poll", "select", "thread", "process", "blocking-pool"];
    for name in names.into_iter().chain(["epoll", "epoll-partitioned", "megapipe", "megapipe-pb"]) {
        let entry = format!("\n  {name} ");
        assert!(format!("\n{list}").contains(&entry) && help.contains(&entry), "{name}: {list}");
    }
    assert_eq!(list.matches("limits: ").count(), list.lines().count() / 2);
    for part in ["HTTP/1.1", "wrk", "burn:50us"] {
        assert!(help.contains(part), "no `{part}` in: {help}");
    }
    assert_refused(&["serve"], &["--server"]);
}

const ROWS: &[Refusal<'_>] = &[
    refusal("compare --servers nginx", 1, ["`nginx`", "unknown server", "choose from: epoll"]),
    refusal("serve --server nginx", 1, ["`nginx`", "unknown server", "choose from: epoll"]),
    refusal(
        "compare --servers epoll --baseline poll",
        1,
        ["`poll`", "is not among the servers compared", "add it to --servers"],
    ),
    refusal("compare --servers epoll/fast", 1, ["`fast`", "unknown client", "`epoll/kernel`"]),
    refusal(
        "compare --servers mtcp --cores 1",
        1,
        ["`mtcp`", "uses user-level TCP, which needs a device", "add --path veth"],
    ),
    refusal(
        "compare --connections 1000000",
        1,
        ["1000000 connections", "exceed the limit of", "ask for fewer --connections"],
    ),
    refusal("compare --request-bytes 0", 2, ["'0'", "use 1 to 1048576 bytes", "--help"]),
    refusal("compare --connections 0", 2, ["'0'", "use 1 to 1000000 connections", "--help"]),
    refusal("compare --duration 1ms", 2, ["'1ms'", "use a time from 100ms to 1h", "--help"]),
    refusal(
        "compare --cores 100000",
        1,
        ["100000 server threads", "do not fit on", "choose --cores from 1 to"],
    ),
    refusal(
        "compare --server-cpus 1000 --cores 1",
        1,
        ["CPU 1000", "is not among the CPUs", "wider taskset or cpuset"],
    ),
    refusal(
        "compare --quick --duration 1h",
        1,
        ["one round of", "too long for --quick", "a shorter --duration"],
    ),
    refusal(
        "compare --json /nosuch/out.json",
        1,
        ["/nosuch/", "cannot write", "a directory that exists"],
    ),
    refusal(
        "serve --server epoll --bind 0.0.0.0:0",
        2,
        ["'0.0.0.0:0'", "name the address at which clients connect", "127.0.0.1:7000"],
    ),
    refusal(
        "serve --server epoll --bind 192.0.2.1:7000",
        1,
        ["192.0.2.1:7000", "cannot listen on", "choose another address with --bind"],
    ),
    refusal("load", 2, ["--connect", "required arguments were not provided", "--help"]),
    refusal(
        "load --connect 127.0.0.1",
        2,
        ["'127.0.0.1'", "write ADDRESS:PORT or NAME:PORT", "localhost:7000"],
    ),
    refusal("load --connect 127.0.0.1:1", 1, ["127.0.0.1:1", "cannot connect to", "iobench serve"]),
    refusal(
        "load --server epoll --rate 1e12",
        1,
        ["1000000000000", "requests per second are out of range", "choose a --rate from 1"],
    ),
    refusal("report /nosuch.json", 1, ["/nosuch.json", "cannot open", "check the name"]),
    refusal("ipc --transports pigeon", 1, ["`pigeon`", "unknown transport", "choose from"]),
    refusal("measure", 2, ["'measure'", "unrecognized subcommand", "--help"]),
];

#[test]
fn wrong_command_lines_are_answered_with_cause_and_remedy() {
    let prepare = || {
        let mut command = iobench();
        command.env_remove("MTCP_CONFIG");
        command
    };
    assert_refusals("iobench", prepare, ROWS);
}
