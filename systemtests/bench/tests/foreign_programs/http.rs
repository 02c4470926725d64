//! Tests of `iobench http`: with the servers of `iobench-external`, and with servers of their own
//! as peers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use systemtests_bench::{children, iobench, run, run_undisturbed, signal, stderr, stdout, wait};
use testkit::process::program;

const SHORT: [&str; 6] = ["--rounds", "3", "--duration", "200ms", "--cores", "1"];

/// Fails if a row is invalid for another reason than a busy machine.
#[track_caller]
fn assert_measured(document: &Value, servers: &[&str], printed: &str) {
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len() % servers.len(), 0, "{document:#}");
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["subject"], servers[index % servers.len()], "{printed}");
        for note in row["notes"].as_array().unwrap() {
            let note = note.as_str().unwrap();
            let harmless =
                ["clean slices", "pairs", "baseline", "busy", "share CPUs", "wrk itself told"];
            assert!(harmless.iter().any(|known| note.contains(known)), "{note}: {printed}");
        }
    }
}

/// Runs two servers of `iobench-external` and checks that there are figures.
fn compare(more: &[&str]) -> (Value, String) {
    let words = ["http", "--servers", "tokio,megapipe-rt-epoll", "--connections", "4"];
    let (status, document, printed) = run_undisturbed(&[&words[..], more, &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_measured(&document, &["tokio", "megapipe-rt-epoll"], &printed);
    assert_eq!(document["experiment"]["name"], "http");
    assert_eq!(document["baseline"], "tokio");
    let about = document["experiment"]["file"].as_str().unwrap();
    assert!(about.contains("tokio: axum 0.") && about.contains("\nnetwork: "), "{about}");
    assert!(printed.contains(about), "{printed}");
    (document, printed)
}

/// Returns the figure of a row that has undisturbed slices; rows of a busy machine may have none.
fn figure(row: &Value, name: &str) -> Option<f64> {
    let figure = row[name].as_f64();
    assert!(figure.is_some_and(|figure| figure > 0.0) || row["valid"] == false, "{row:#}");
    figure
}

#[test]
fn http_1_is_measured_by_iobench_with_short_and_persistent_connections() {
    let more = ["--versions", "1", "--response-bytes", "64", "--transactions", "1,0"];
    let (document, printed) = compare(&more);
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{printed}");
    for row in rows {
        assert_eq!((&row["workload"], &row["response_bytes"]), (&"HTTP/1".into(), &64.into()));
        assert!(row["request_bytes"].as_u64().unwrap() > 60, "{row:#}");
        for name in ["throughput", "server_cpu_us", "cpu_both_us"] {
            figure(row, name);
        }
        figure(&row["latency_us"], "p99");
    }
    assert_eq!((&rows[0]["transactions"], &rows[2]["transactions"]), (&1.into(), &0.into()));
    assert!(printed.contains("HTTP/1, answers of 64 bytes"), "{printed}");
}

#[test]
fn http_2_is_measured_by_h2load() {
    let more = ["--versions", "2", "--response-bytes", "16384", "--streams", "3"];
    let (document, printed) = compare(&more);
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{printed}");
    for row in rows {
        assert_eq!((&row["workload"], &row["pipeline"]), (&"HTTP/2".into(), &3.into()));
        figure(row, "throughput");
        figure(row, "server_cpu_us");
        figure(&row["latency_us"], "p50");
    }
    assert!(printed.contains("client over HTTP/2: h2load nghttp2/"), "{printed}");
    assert!(printed.contains("4 x 3"), "{printed}");
}

#[test]
fn wrk_is_a_second_client_over_http_1() {
    let more = ["--versions", "1", "--wrk", "--response-bytes", "64", "--transactions", "1"];
    let (document, printed) = compare(&more);
    let rows = document["results"].as_array().unwrap();
    let is_by_wrk = |row: &&Value| row["workload"] == "HTTP/1 by wrk";
    let by_wrk: Vec<&Value> = rows.iter().filter(is_by_wrk).collect();
    assert_eq!((rows.len(), by_wrk.len()), (4, 2), "{printed}");
    for row in by_wrk {
        figure(row, "throughput");
        figure(row, "server_cpu_us");
        let told = |note: &Value| note.as_str().unwrap().contains("us (p50) and");
        assert!(row["notes"].as_array().unwrap().iter().any(told), "{row:#}");
    }
    assert!(printed.contains("client over HTTP/1 by wrk: wrk "), "{printed}");
}

/// Runs a comparison over veth, and checks rows and document.
fn compare_over_veth(servers: &[&str], more: &[&str]) -> (Value, String) {
    let before = systemtests_bench::devices();
    let names = servers.join(",");
    let words = ["http", "--path", "veth", "--connections", "4", "--servers", &names];
    let (status, document, printed) = run_undisturbed(&[&words[..], more, &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    assert_measured(&document, servers, &printed);
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["network"], "veth", "{row:#}");
        figure(row, "throughput");
        figure(row, "server_cpu_us");
    }
    assert!(printed.contains("\nnetwork: veth pairs between two namespaces"), "{printed}");
    assert_eq!(systemtests_bench::devices(), before);
    (document, printed)
}

#[test]
fn servers_and_clients_may_be_on_user_level_tcp() {
    let servers = ["tokio", "megapipe-rt-mtcp", "megapipe-rt-mtcp/mtcp", "tokio/mtcp"];
    let more = ["--versions", "1", "--response-bytes", "16384"];
    let (document, printed) = compare_over_veth(&servers, &more);
    assert_eq!(document["results"].as_array().unwrap().len(), 8, "{printed}");
    let lines = |start: &str| printed.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((lines("tokio: axum 0."), lines("megapipe-rt-mtcp: axum 0.")), (1, 1), "{printed}");
}

#[test]
fn h2load_reaches_servers_on_user_level_tcp() {
    let more = ["--versions", "2", "--response-bytes", "64"];
    compare_over_veth(&["tokio", "megapipe-rt-mtcp"], &more);
}

#[test]
fn quick_is_a_first_look_at_every_server() {
    // One second instead of the usual fifty.
    let short = ["--quick", "--rounds", "1", "--duration", "100ms", "--versions", "1"];
    let (status, document, printed) = run_undisturbed(&[&["http"], &short[..]].concat());
    assert_eq!(status, Some(0), "{printed}");
    let rows = document["results"].as_array().unwrap();
    let subjects: Vec<&str> = rows.iter().filter_map(|row| row["subject"].as_str()).collect();
    for server in ["tokio", "tokio-per-core", "megapipe-rt", "megapipe-rt-epoll"] {
        assert_eq!(subjects.iter().filter(|name| **name == server).count(), 2, "{printed}");
    }
    assert_eq!(document["experiment"]["scale"], "quick");
}

/// The environment variable with the port, for the next test, which runs as an external server.
const PORT: &str = "IOBENCH_TEST_PORT";

/// With this environment variable it closes connections of other addresses than the measured
/// clients', the idle ones, after the answer.
const CLOSES_IDLE: &str = "IOBENCH_TEST_CLOSES_IDLE";

/// A server of HTTP/1 with a thread for each connection. It does nothing unless a comparison
/// started it.
#[test]
fn serves_as_a_peer() {
    let Ok(port) = std::env::var(PORT) else { return };
    let listener = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    for connection in listener.incoming() {
        let connection = connection.unwrap();
        let is_idle = connection.peer_addr().unwrap().ip() != Ipv4Addr::LOCALHOST;
        let most = match is_idle && std::env::var_os(CLOSES_IDLE).is_some() {
            true => 1,
            false => usize::MAX,
        };
        thread::spawn(move || answer(connection, most));
    }
}

/// Answers `GET /BYTES` until the client closes, at most so many times.
fn answer(connection: TcpStream, most: usize) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    let mut connection = connection;
    for _ in 0..most {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
        let bytes = line.split(['/', ' ']).nth(2)?.parse().ok()?;
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        connection.write_all(&[head.as_bytes(), &vec![b'x'; bytes]].concat()).ok()?;
    }
    Some(())
}

/// Returns the value of `--peer` for this test program.
fn peer(name: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    format!("{name}=env {PORT}={{port}} '{program}' --exact http::serves_as_a_peer")
}

const OWN: [&str; 8] =
    ["--versions", "1", "--response-bytes", "64", "--transactions", "0", "--connections", "4"];

/// Returns the words of a comparison of these peers alone, run from a directory where no
/// `iobench-external` is found.
struct Alone(PathBuf);

impl Alone {
    /// Links the program into a directory of its own.
    fn new(name: &str) -> Alone {
        let program = program("iobench");
        let directory = program.with_file_name(format!("iobench-alone-{name}"));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        fs::hard_link(program, directory.join("iobench")).unwrap();
        Alone(directory)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.join("iobench"));
        command.args(words).stdin(Stdio::null());
        command
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_peer_is_compared_and_can_be_the_baseline() {
    let (one, other) = (peer("one"), peer("other"));
    let peers = ["http", "--peer", &one, "--peer", &other, "--baseline", "other"];
    let alone = Alone::new("peers");
    let file = alone.0.join("document.json");
    let json = ["--json", file.to_str().unwrap()];
    let mut command = alone.command(&[&peers[..], &OWN, &SHORT, &json].concat());
    let output = command.output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("only the servers of --peer are compared"), "{message}");
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    systemtests_bench::check_document(&document, file.to_str().unwrap());
    assert_measured(&document, &["one", "other"], &message);
    assert_eq!(document["baseline"], "other");
    figure(&document["results"][0], "throughput");
}

#[test]
fn servers_are_measured_beside_idle_connections_with_their_memory() {
    let steady = peer("steady");
    let closing = peer("closing").replacen("env ", &format!("env {CLOSES_IDLE}=1 "), 1);
    let peers = ["http", "--peer", &steady, "--peer", &closing, "--idle", "0,100"];
    let alone = Alone::new("idle");
    let file = alone.0.join("document.json");
    let json = ["--json", file.to_str().unwrap()];
    let output = alone.command(&[&peers[..], &OWN, &SHORT, &json].concat()).output().unwrap();
    let printed = stdout(&output) + &stderr(&output);
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    systemtests_bench::check_document(&document, file.to_str().unwrap());
    let rows = document["results"].as_array().unwrap();
    let keys: Vec<(&str, u64)> = rows
        .iter()
        .map(|row| (row["subject"].as_str().unwrap(), row["idle"].as_u64().unwrap()))
        .collect();
    assert_eq!(keys, [("steady", 0), ("closing", 0), ("steady", 100), ("closing", 100)]);
    let memory: Vec<&Value> = rows.iter().map(|row| &row["idle_bytes"]).collect();
    assert!(memory[0].is_null() && memory[1].is_null(), "{printed}");
    let note = "idle connections";
    assert!(!rows[2]["notes"].to_string().contains(note), "{printed}");
    // The stack of a thread and a buffer of 8 KiB.
    let bytes = memory[2].as_f64().unwrap();
    assert!((8_000.0..200_000.0).contains(&bytes), "{bytes}: {printed}");
    assert_eq!((&rows[3]["valid"], memory[3]), (&false.into(), &Value::Null), "{printed}");
    assert!(rows[3]["notes"].to_string().contains("idle connections had ended"), "{printed}");
    assert!(printed.contains("kept alive without traffic after one transaction"), "{printed}");
}

#[test]
fn axum_keeps_idle_connections_on_every_runtime() {
    let words = ["--versions", "1", "--response-bytes", "64", "--transactions", "0"];
    let (document, printed) = compare(&[&words[..], &["--idle", "200"]].concat());
    for row in document["results"].as_array().unwrap() {
        // The head of each request is in a buffer.
        let bytes = row["idle_bytes"].as_f64().unwrap();
        assert!(row["idle"] == 200 && bytes > 100.0, "{bytes}: {printed}");
    }
}

#[test]
fn a_server_that_dies_makes_its_rows_invalid() {
    let (mortal, other) = (peer("mortal"), peer("other"));
    let alone = Alone::new("mortal");
    let file = alone.0.join("document.json");
    let words = ["http", "--peer", &mortal, "--peer", &other, "--strict"];
    let more = ["--json", file.to_str().unwrap(), "--rounds", "3", "--duration", "500ms"];
    let words = [&words[..], &OWN, &more, &SHORT[4..]].concat();
    let mut command = alone.command(&words);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // When the first round is announced both servers have accepted connections.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("round 1 of 3")));
    // The first that was started.
    let mut servers = children(child.id());
    servers.sort_by_key(|(process, started)| (*started, *process));
    signal(servers[0].0, libc::SIGKILL);
    let rest = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    assert_eq!(wait(&mut child), Some(3), "{}", rest.join().unwrap());
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let row = &document["results"][0];
    assert_eq!((&row["subject"], &row["valid"]), (&"mortal".into(), &false.into()), "{row:#}");
    assert!(row["notes"].to_string().contains("the server process ended"), "{row:#}");
}

#[test]
fn wrong_answers_make_a_row_invalid() {
    // The echo server sends the request back, which is no answer.
    let program = program("iobench");
    let program = program.display();
    let echo =
        format!("echo='{program}' serve --server epoll --port {{port}} --server-cpus {{cpus}}");
    let alone = Alone::new("wrong");
    let file = alone.0.join("document.json");
    let words = ["http", "--peer", &echo, "--strict", "--json", file.to_str().unwrap()];
    let output = alone.command(&[&words[..], &OWN, &SHORT].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let notes = document["results"][0]["notes"].to_string();
    assert!(notes.contains("answers differed") && notes.contains("GET /64"), "{notes}");
}

#[track_caller]
fn assert_refused(command: &mut Command, parts: &[&str]) {
    let output = command.output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), testkit::refusal_status(&output), "{message}");
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn a_missing_client_or_server_program_comes_with_its_remedy() {
    let alone = Alone::new("missing");
    let one = peer("one");
    let over_2 = ["http", "--peer", &one, "--versions", "2"];
    assert_refused(
        alone.command(&over_2).env("PATH", "/nonexistent"),
        &["h2load", "nghttp2-client", "--versions 1"],
    );
    assert_refused(
        alone.command(&["http", "--servers", "tokio"]).env("PATH", "/nonexistent"),
        &["`iobench-external`", "cargo build --release -p iobench-external --features http"],
    );
}

#[test]
fn mistakes_are_explained() {
    let one = peer("one");
    let alone = Alone::new("mistakes");
    let with = |more: &[&str]| {
        let words = ["http", "--peer", &one, "--versions", "1"];
        alone.command(&[&words[..], more].concat())
    };
    assert_refused(&mut with(&["--baseline", "tokio"]), &["`tokio`", "choose one of one"]);
    assert_refused(&mut with(&["--peer", &one]), &["two servers have the name `one`"]);
    assert_refused(&mut with(&["--cores", "1000"]), &["1000 server threads do not fit"]);
    assert_refused(&mut with(&["--response-bytes", "0"]), &["1 to 1048576"]);
    assert_refused(&mut with(&["--idle", "100001"]), &["0 to 100000"]);
    assert_refused(
        &mut with(&["--idle", "100", "--path", "veth", "--versions", "1", "--transactions", "0"]),
        &["over loopback only", "leave out --path or --idle"],
    );
    assert_refused(&mut with(&["--versions", "3"]), &["3"]);
    let none = run(&["http", "--peer", &one, "--versions", "2", "--transactions", "1"]);
    assert!(stderr(&none).contains("connections persist"), "{}", stderr(&none));
    let servers = ["http", "--servers", "node", "--versions", "1"];
    assert_refused(&mut iobench(&servers), &["no server `node`", "tokio-per-core"]);
    let over_stack = ["http", "--servers", "megapipe-rt-mtcp", "--versions", "1"];
    assert_refused(&mut iobench(&over_stack), &["`megapipe-rt-mtcp`", "--path veth"]);
    let clients = ["http", "--servers", "tokio/mtcp"];
    assert_refused(&mut iobench(&clients), &["`tokio/mtcp`", "--path veth"]);
    assert_refused(
        iobench(&clients).args(["--path", "veth"]),
        &["h2load", "--versions 1", "`tokio/kernel`"],
    );
    assert_refused(&mut iobench(&["http", "--servers", "tokio/x"]), &["`tokio/mtcp`"]);
}
