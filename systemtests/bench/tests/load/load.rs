//! Tests of `iobench serve` and `iobench load` together, and of `load` against faulty servers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use systemtests_bench::{Serving, run, run_with_json, stderr};

fn load(address: &str, more: &[&str]) -> (Option<i32>, Value, String) {
    let arguments = ["load", "--connect", address, "--connections", "8"];
    let usual = ["--duration", "200ms"];
    let duration = if more.contains(&"--duration") { &[][..] } else { &usual };
    let (status, document, printed) = run_with_json(&[&arguments[..], duration, more].concat());
    (status, document["results"][0].clone(), printed)
}

/// Repeats the run if the only complaint is that a thread did not get its CPU in the whole
/// measurement, which happens on a busy machine.
fn load_undisturbed(address: &str, more: &[&str]) -> (Option<i32>, Value, String) {
    for _ in 0..20 {
        let (status, result, printed) = load(address, more);
        let notes = result["notes"].as_array().unwrap();
        // The last of these does not make a row invalid.
        let busy = [
            "got no answer",
            "no transaction was completed",
            "the clients were busy",
            "no answer came for",
            "was not judged",
        ];
        let is_busy = |note: &Value| busy.iter().any(|busy| note.to_string().contains(busy));
        if result["valid"] == true || !notes.iter().all(is_busy) {
            return (status, result, printed);
        }
    }
    load(address, more)
}

fn assert_loads(server: &str) {
    let serving = Serving::start(server);
    for message_bytes in ["1", "7", "64", "65536", "1048576"] {
        for transactions in ["1", "3", "0"] {
            let size = ["--request-bytes", message_bytes, "--transactions", transactions];
            let (status, result, printed) = load_undisturbed(&serving.address, &size);
            assert_eq!(status, Some(0), "{server}, {size:?}: {printed}");
            assert!(printed.contains(", 0 errors, "), "{printed}");
            let totals = &result["totals"];
            let [sent, received] =
                ["client_bytes_sent", "client_bytes_received"].map(|name| totals[name].as_u64());
            assert!(sent >= received && received > Some(0), "{totals}");
            assert!(result["throughput"].as_f64().unwrap() > 0.0);
            assert!(result["latency_us"]["p50"].as_f64().unwrap() > 0.0);
        }
    }
    assert_eq!(serving.interrupt(), Some(0));
}

#[test]
fn every_message_size_is_echoed_by_epoll() {
    assert_loads("epoll");
}

#[test]
fn every_message_size_is_echoed_by_megapipe() {
    assert_loads("megapipe");
}

#[test]
fn every_message_size_is_echoed_by_megapipe_over_epoll() {
    assert_loads("megapipe-epoll");
}

#[test]
fn every_message_size_is_echoed_by_megapipe_stealing() {
    assert_loads("megapipe-stealing");
}

#[test]
fn every_message_size_is_echoed_by_epoll_partitioned() {
    assert_loads("epoll-partitioned");
}

/// Serves every connection on a thread of its own until the test ends.
fn hostile(serve: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn assert_invalid(serve: fn(TcpStream), more: &[&str], reason: &str) {
    let (status, result, printed) = load(&hostile(serve), &[more, &["--strict"]].concat());
    assert_eq!((status, &result["valid"]), (Some(3), &Value::Bool(false)), "{printed}");
    assert!(result["notes"].to_string().contains(reason), "{}", result["notes"]);
    assert!(printed.contains("INVALID"), "{printed}");
}

#[test]
fn wrong_bytes_are_noticed_at_any_place() {
    fn flip<const PLACE: usize>(mut stream: TcpStream) {
        let mut message = [0; 64];
        while stream.read_exact(&mut message).is_ok() {
            message[PLACE] ^= 1;
            if stream.write_all(&message).is_err() {
                return;
            }
        }
    }
    assert_invalid(flip::<0>, &[], "answers differed");
    assert_invalid(flip::<31>, &[], "answers differed");
    assert_invalid(flip::<63>, &[], "answers differed");
}

#[test]
fn an_old_answer_is_not_taken_for_the_new_one() {
    fn repeat_the_first(mut stream: TcpStream) {
        let mut first = [0; 64];
        let mut message = [0; 64];
        if stream.read_exact(&mut first).is_err() {
            return;
        }
        while stream.write_all(&first).is_ok() && stream.read_exact(&mut message).is_ok() {}
    }
    assert_invalid(repeat_the_first, &[], "answers differed");
}

#[test]
fn surplus_bytes_are_noticed() {
    fn add_one(mut stream: TcpStream) {
        let mut message = [0; 65];
        while stream.read_exact(&mut message[..64]).is_ok() && stream.write_all(&message).is_ok() {}
    }
    assert_invalid(add_one, &[], "answers differed");
}

#[test]
fn connections_that_end_early_are_noticed() {
    fn half_an_answer(mut stream: TcpStream) {
        let mut message = [0; 64];
        let _ = stream.read_exact(&mut message).and_then(|()| stream.write_all(&message[..32]));
    }
    fn slam(stream: TcpStream) {
        drop(stream);
    }
    for transactions in ["1", "0"] {
        let more = ["--transactions", transactions];
        assert_invalid(half_an_answer, &more, "closed or reset by the server");
        assert_invalid(slam, &more, "closed or reset by the server");
    }
}

#[test]
fn silence_is_noticed() {
    fn listen_only(mut stream: TcpStream) {
        let mut message = [0; 4096];
        while matches!(stream.read(&mut message), Ok(1..)) {}
    }
    assert_invalid(listen_only, &[], "got no answer");
}

/// Echoes for half a second after the connection was made, then stops answering.
fn fall_silent(mut stream: TcpStream) {
    let (begun, mut message) = (Instant::now(), [0; 64]);
    while stream.read_exact(&mut message).is_ok() {
        if begun.elapsed() < Duration::from_millis(500) && stream.write_all(&message).is_err() {
            return;
        }
    }
}

#[test]
fn a_server_that_falls_silent_is_noticed() {
    let more = ["--transactions", "0", "--duration", "2s"];
    assert_invalid(fall_silent, &more, "8 requests got no answer, the oldest for ");
}

#[test]
fn dead_connections_are_noticed() {
    fn every_second(mut stream: TcpStream) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        // The first connection only tests whether there is a server.
        if NUMBER.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            return fall_silent(stream);
        }
        let mut message = [0; 64];
        while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
    }
    let more = ["--transactions", "0", "--duration", "2s"];
    assert_invalid(every_second, &more, "4 requests got no answer, the oldest for ");
}

#[test]
fn delays_and_pauses_show_in_latencies() {
    fn late(mut stream: TcpStream) {
        let mut message = [0; 64];
        while stream.read_exact(&mut message).is_ok() {
            thread::sleep(Duration::from_millis(5));
            if stream.write_all(&message).is_err() {
                return;
            }
        }
    }
    fn stalling(mut stream: TcpStream) {
        static ANSWERS: AtomicUsize = AtomicUsize::new(0);
        let mut message = [0; 64];
        while stream.read_exact(&mut message).is_ok() {
            if ANSWERS.fetch_add(1, Ordering::Relaxed).is_multiple_of(20) {
                thread::sleep(Duration::from_millis(50));
            }
            if stream.write_all(&message).is_err() {
                return;
            }
        }
    }
    let more = ["--transactions", "0", "--duration", "500ms"];
    let latency = |serve: fn(TcpStream), name: &str| {
        let (status, result, printed) = load_undisturbed(&hostile(serve), &more);
        assert_eq!(status, Some(0), "{printed}");
        result["latency_us"][name].as_f64().unwrap()
    };
    let (p1, p99) = (latency(late, "p1"), latency(stalling, "p99"));
    assert!(p1 >= 4_900.0 && p99 >= 49_000.0, "{p1} {p99}");
}

#[test]
fn answers_may_have_another_size_than_requests() {
    for (request, response) in [(1, 1_048_576_u64), (40, 65_536), (64, 1), (100_000_u64, 10)] {
        let bytes = [request.to_string(), response.to_string()];
        let sizes = ["--request-bytes", &bytes[0], "--response-bytes", &bytes[1]];
        let serving = Serving::start_with("epoll", &sizes);
        for transactions in ["1", "3", "0"] {
            let more = [&sizes[..], &["--transactions", transactions]].concat();
            let (status, result, printed) = load_undisturbed(&serving.address, &more);
            assert_eq!(status, Some(0), "{more:?}: {printed}");
            assert_eq!(result["workload"], "request-response");
            assert_eq!(result["request_bytes"], request);
            assert_eq!(result["response_bytes"], response);
            let totals = &result["totals"];
            let count = |name: &str| totals[&format!("client_{name}")].as_u64().unwrap();
            let complete = count("transactions") * response;
            // Each of eight connections may be in the middle of an answer at the end.
            let most = complete + 8 * response;
            assert!((complete..=most).contains(&count("bytes_received")), "{totals}");
            assert!(count("bytes_sent") >= count("transactions") * request, "{totals}");
        }
    }
}

/// The beginning of the answers of iobench's own servers.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: ";

/// Answers every complete request of one size with an answer of another size.
fn answer<const REQUEST: usize, const RESPONSE: usize>(mut stream: TcpStream) {
    let mut request = vec![0; REQUEST];
    while stream.read_exact(&mut request).is_ok() && stream.write_all(&HEAD[..RESPONSE]).is_ok() {}
}

/// Answers each read with the same answer of HTTP.
fn no_content(mut stream: TcpStream) {
    let mut request = [0; 4096];
    while matches!(stream.read(&mut request), Ok(1..))
        && stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_ok()
    {}
}

#[test]
fn a_server_of_http_is_to_be_loaded_by_its_url() {
    let open = ["--rate=200", "--growth=0s", "--steady=0s", "--timeout=60s"];
    for sizes in [&["--request-bytes=90", "--response-bytes=27"][..], &["--request-bytes=27"]] {
        for more in [sizes.to_vec(), [sizes, &open].concat()] {
            assert_invalid(
                no_content,
                &more,
                "one of HTTP, whose servers `iobench load URL` loads",
            );
        }
    }
    // The answer has another size, so the open loop does not begin.
    let address = hostile(no_content);
    let output = run(&["load", "--connect", &address, "--rate=200", "--request-bytes=20"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("`iobench load URL`"), "{}", stderr(&output));
}

#[test]
fn answers_of_a_wrong_size_are_noticed() {
    let sizes = ["--request-bytes", "64", "--response-bytes", "10"];
    assert_invalid(answer::<64, 11>, &sizes, "answers differed");
    assert_invalid(answer::<64, 9>, &sizes, "got no answer");
    fn half(mut stream: TcpStream) {
        let mut request = [0; 64];
        let _ = stream.read_exact(&mut request).and_then(|()| stream.write_all(&HEAD[..5]));
    }
    assert_invalid(half, &sizes, "closed or reset by the server");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    for wrong in [
        &["--message-bytes", "64", "--request-bytes", "64"][..],
        &["--message-bytes", "64", "--response-bytes", "64"],
        &["--server", "epoll"],
        &["--rounds", "3"],
    ] {
        let output = run(&[&["load", "--connect", "127.0.0.1:9"], wrong].concat());
        assert_eq!(
            output.status.code(),
            testkit::refusal_status(&output),
            "{wrong:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn load_brings_a_server_of_its_own() {
    let arguments = ["load", "--server", "epoll", "--connections", "8", "--duration", "200ms"];
    let (status, document, printed) = run_with_json(&arguments);
    assert_eq!(status, Some(0), "{printed}");
    let row = &document["results"][0];
    assert!(row["totals"]["client_bytes_received"].as_u64() > Some(0), "{row}");
    assert_eq!((&row["subject"], &row["workload"]), (&"epoll".into(), &"echo".into()));
}

#[test]
fn an_absent_server_is_an_error_with_a_remedy() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(&["load", "--connect", &free.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("iobench: cannot connect") && message.contains("serve"), "{message}");
}

#[test]
fn results_on_standard_output_stand_alone() {
    let serving = Serving::start("epoll");
    let load = ["load", "--connect", &serving.address, "--duration", "100ms"];
    let output = run(&[&load[..], &["--json", "-"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON only");
    assert_eq!(document["format"], "iobench-results");
    let output = run(&[&load[..], &["--csv", "-"]].concat());
    assert!(output.stdout.starts_with(b"subject,workload,"), "{output:?}");
    let output = run(&[&load[..], &["--json", "-", "--csv", "/dev/stdout"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("name a file for all but one"), "{}", stderr(&output));
}
