//! Tests of `compare --peer`: external servers, and the messages about failing ones; and of
//! `compare --self-test`. `iobench serve` is used as the external program.

use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use serde_json::Value;
use systemtests_bench::{children, iobench, is_alive, run, run_with_json, signal, stderr, wait};
use testkit::process::program;

const SHORT: [&str; 8] =
    ["--rounds", "1", "--duration", "500ms", "--cores", "1", "--transactions", "0"];

/// Returns the option `--peer` for a server of iobench.
fn peer(name: &str) -> String {
    let program = program("iobench");
    let program = program.display();
    format!("{name}='{program}' serve --server epoll --port {{port}} --server-cpus {{cpus}}")
}

/// Returns the error message of a comparison that cannot start.
fn failure(peer: &str) -> String {
    let output = run(&[&["compare", "--servers", "epoll", "--peer", peer], &SHORT[..]].concat());
    assert_eq!(output.status.code(), testkit::refusal_status(&output), "{output:?}");
    stderr(&output)
}

fn row<'a>(document: &'a Value, server: &str) -> &'a Value {
    let rows = document["results"].as_array().unwrap();
    rows.iter().find(|row| row["subject"] == server).unwrap()
}

#[test]
fn a_peer_gets_a_row_of_its_own() {
    let words = ["compare", "--servers", "epoll", "--peer", &peer("theirs")];
    let (status, document, printed) = run_with_json(&[&words[..], &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    let theirs = row(&document, "theirs");
    assert!(theirs["throughput"].as_f64().unwrap() > 0.0, "{theirs}");
    assert!(theirs["server_cpu_us"].as_f64().unwrap() > 0.0, "{theirs}");
    assert!(theirs["server_busy"].as_f64().unwrap() > 0.0, "{theirs}");
    assert!(theirs["system_calls"].is_null(), "{theirs}");
    assert!(theirs["totals"]["client_transactions"].as_u64().unwrap() > 0, "{theirs}");
    assert!(theirs["totals"]["server_accepted"].is_null(), "{theirs}");
    let ours = row(&document, "epoll");
    assert!(ours["system_calls"].as_f64().unwrap() > 0.0, "{ours}");
    assert!(ours["totals"]["server_accepted"].as_u64().unwrap() > 0, "{ours}");
    assert!(printed.lines().any(|line| line.contains("theirs") && line.contains(" - ")));
}

#[test]
fn a_peer_can_be_wrapped_and_be_the_baseline() {
    // The CPU time is that of a process that the shell started; the end signal reaches it too.
    let inner = peer("x").replace("x=", "").replace('\'', "");
    let wrapped = format!("wrapped=sh -c '{inner} & wait'");
    let words = ["compare", "--servers", "epoll", "--peer", &wrapped, "--baseline", "wrapped"];
    let (_, document, printed) = run_with_json(&[&words[..], &SHORT].concat());
    assert_eq!(document["baseline"], "wrapped");
    let wrapped = row(&document, "wrapped");
    assert!(wrapped["server_cpu_us"].as_f64().unwrap() > 0.0, "{printed}");
}

#[test]
fn requests_and_responses_are_filled_in() {
    let sized =
        peer("sized") + " --request-bytes {request_bytes} --response-bytes {response_bytes}";
    let sizes = ["--request-bytes", "64", "--response-bytes", "1000"];
    let words = ["compare", "--servers", "epoll", "--peer", &sized];
    let (_, document, printed) = run_with_json(&[&words[..], &sizes, &SHORT].concat());
    let books = &row(&document, "sized")["totals"];
    assert!(books["client_bytes_received"].as_u64().unwrap() >= 1_000, "{printed}");
    let plain = peer("plain");
    let words = ["compare", "--servers", "epoll", "--peer", &plain];
    let output = run(&[&words[..], &sizes, &SHORT].concat());
    assert_eq!(output.status.code(), testkit::refusal_status(&output));
    assert!(stderr(&output).contains("write {request_bytes}"), "{}", stderr(&output));
}

#[test]
fn commands_that_fail_are_explained() {
    let missing = failure("x=/no/such/program {port}");
    assert!(missing.contains("`/no/such/program`") && missing.contains("PATH"), "{missing}");
    let ends = failure("x=sh -c 'echo port {port} is not mine >&2; exit 3'");
    assert!(ends.contains("ended at its start (exit status: 3)"), "{ends}");
    assert!(ends.contains("is not mine") && ends.contains("foreground"), "{ends}");
    let signalled = failure("x=sh -c 'kill -9 $$; echo {port}'");
    assert!(signalled.contains("signal: 9") && signalled.contains("without a word"), "{signalled}");
}

#[test]
fn mistakes_on_the_command_line_are_explained() {
    for (peer, hint) in [
        ("server {port}", "there is no `=`"),
        ("epoll=server {port}", "server of iobench's own"),
        ("x=server 7000", "has no {port}"),
        ("x=server '{port}", "not closed"),
        ("a b=server {port}", "the name `a b`"),
    ] {
        let message = failure(peer);
        assert!(message.contains(hint), "{peer}: {message}");
    }
    let both = run(&["compare", "--self-test", "--servers", "epoll"]);
    assert_eq!(both.status.code(), testkit::refusal_status(&both));
    let twice = ["--peer", "x=sh {port}", "--peer", "x=sh {port}"];
    let output = run(&[&["compare"], &twice[..]].concat());
    assert!(stderr(&output).contains("two servers have the name `x`"), "{}", stderr(&output));
}

/// Starts a comparison and waits until its one child, an external server, runs.
fn comparison_of(peer: &str) -> (std::process::Child, Vec<(u32, u64)>) {
    let words = ["compare", "--servers", "epoll", "--peer", peer, "--rounds", "20"];
    let child = iobench(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let servers = systemtests_bench::wait_for_children(child.id(), 2);
    (child, servers)
}

#[test]
fn a_peer_that_never_listens_is_waited_for_until_somebody_interrupts() {
    let (mut child, servers) = comparison_of("x=sleep 1000{port}");
    signal(child.id(), libc::SIGINT);
    assert_eq!(wait(&mut child), Some(130));
    assert!(!servers.iter().any(|server| is_alive(*server)), "{servers:?} live on");
}

#[test]
fn a_peer_that_never_listens_is_given_up() {
    let never = "x=sh -c 'echo not today; sleep 1000{port}'";
    let words = ["compare", "--servers", "epoll", "--peer", never];
    let give_up_after = |timeout: &str| {
        let mut command = iobench(&[&words[..], &SHORT].concat());
        let output = command.env("IOBENCH_START_TIMEOUT", timeout).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        stderr(&output)
    };
    let message = give_up_after("1s");
    assert!(message.contains("did not serve at 127.0.0.1:"), "{message}");
    assert!(message.contains("within 1s") && message.contains("not today"), "{message}");
    let message = give_up_after("soon");
    assert!(message.contains("IOBENCH_START_TIMEOUT is no time"), "{message}");
}

#[test]
fn nothing_of_a_peer_is_left_behind() {
    let inner = peer("x").replace("x=", "").replace('\'', "");
    let wrapped = format!("x=sh -c 'trap \"\" TERM; {inner} & wait; wait'");
    let words = ["compare", "--servers", "epoll", "--peer", &wrapped, "--rounds", "20"];
    let mut child = iobench(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let shell = systemtests_bench::wait_for_children(child.id(), 2)
        .into_iter()
        .find(|(process, _)| !children(*process).is_empty());
    let (shell, inside) = systemtests_bench::wait_until("the shell has started the server", || {
        let shell = shell.or_else(|| {
            let mut all = children(child.id()).into_iter();
            all.find(|(process, _)| !children(*process).is_empty())
        })?;
        Some((shell, children(shell.0)))
    });
    signal(child.id(), libc::SIGTERM);
    assert_eq!(wait(&mut child), Some(130));
    // Killed processes are gone when the program has ended, except for those that did not get the
    // CPU to end within its time limit.
    systemtests_bench::wait_until("all of the peer is gone", || {
        let is_gone = !is_alive(shell) && !inside.iter().any(|process| is_alive(*process));
        is_gone.then_some(())
    });
}

#[test]
fn a_peer_that_dies_makes_its_rows_invalid() {
    let file = systemtests_bench::scratch_file();
    let (mortal, path) = (peer("mortal"), file.to_str().unwrap());
    let words = ["compare", "--servers", "epoll", "--peer", &mortal, "--baseline", "mortal"];
    let more = ["--duration", "1s", "--rounds", "3", "--strict", "--json", path];
    let mut child = iobench(&[&words[..], &more, &SHORT[4..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // When the first round is announced both servers have accepted connections.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("round 1 of 3")));
    // iobench's own servers run as /proc/self/exe.
    let command = |process: u32| std::fs::read(format!("/proc/{process}/cmdline")).unwrap();
    let program = program("iobench");
    let program = program.as_os_str().as_bytes();
    let mut servers = children(child.id()).into_iter();
    let (theirs, _) = servers.find(|(process, _)| command(*process).starts_with(program)).unwrap();
    signal(theirs, libc::SIGKILL);
    assert_eq!(wait(&mut child), Some(3));
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let row = row(&document, "mortal");
    assert_eq!(row["valid"], false);
    assert!(row["notes"].to_string().contains("the server process ended"), "{row}");
}

#[test]
fn a_self_test_says_what_no_difference_looks_like() {
    let rounds = ["--rounds", "3", "--duration", "500ms", "--cores", "1", "--transactions", "0,8"];
    let (status, document, printed) =
        run_with_json(&[&["compare", "--self-test", "--strict"], &rounds[..]].concat());
    let rows = document["results"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["subject"].as_str().unwrap()).collect();
    assert_eq!(names, ["epoll", "epoll (again)", "epoll", "epoll (again)"]);
    let outcome = &document["self_test"];
    let excluding = rows
        .iter()
        .flat_map(|row| [&row["throughput_ratio"], &row["cpu_ratio"]])
        .filter(|ratio| !ratio.is_null())
        .filter(|ratio| {
            ratio["low"].as_f64().unwrap() > 1.0 || ratio["high"].as_f64().unwrap() < 1.0
        })
        .count();
    assert_eq!(outcome["excluding_one"].as_u64().unwrap(), excluding as u64, "{printed}");
    let valid = rows.iter().all(|row| row["valid"] == true);
    let trustworthy = outcome["trustworthy"].as_bool().unwrap();
    let explained = outcome["explained_by_chance"].as_u64().unwrap();
    assert!(!trustworthy || (valid && excluding as u64 <= explained), "{printed}");
    assert_eq!(status, Some(if trustworthy { 0 } else { 3 }), "{printed}");
    assert!(printed.contains("what \"no difference\" looks like"), "{printed}");
    assert!(printed.contains("mean nothing here"), "{printed}");
    assert_eq!(printed.contains("NOT TO BE TRUSTED"), !trustworthy, "{printed}");
}
