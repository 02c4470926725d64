//! `iobench serve` and `iobench load` together, and `load` against servers that misbehave.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use common::{Serving, run, run_with_json, stderr};
use serde_json::Value;

fn load(address: &str, more: &[&str]) -> (Option<i32>, Value, String) {
    let arguments = ["load", "--connect", address, "--connections", "8", "--duration", "200ms"];
    let (status, document, printed) = run_with_json(&[&arguments[..], more].concat());
    (status, document["result"].clone(), printed)
}

/// Tries again where a busy machine kept a thread off its CPU for the whole measurement.
fn load_undisturbed(address: &str, more: &[&str]) -> (Option<i32>, Value, String) {
    for _ in 0..20 {
        let (status, result, printed) = load(address, more);
        let notes = result["notes"].to_string();
        if !notes.contains("got no answer") && !notes.contains("no transaction was completed") {
            return (status, result, printed);
        }
    }
    load(address, more)
}

fn assert_loads(server: &str) {
    let serving = Serving::start(server);
    for message_bytes in ["1", "7", "64", "65536", "1048576"] {
        for transactions in ["1", "3", "0"] {
            let size = ["--message-bytes", message_bytes, "--transactions", transactions];
            let (status, result, printed) = load_undisturbed(&serving.address, &size);
            assert_eq!(status, Some(0), "{server}, {size:?}: {printed}");
            assert_eq!(result["errors"], 0);
            let accounts = &result["accounts"];
            let (sent, received) =
                (accounts["bytes_sent"].as_u64(), accounts["bytes_received"].as_u64());
            assert!(sent >= received && received > Some(0), "{accounts}");
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
    let (status, result, printed) = load(&hostile(serve), more);
    assert_eq!((status, &result["valid"]), (Some(2), &Value::Bool(false)), "{printed}");
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

#[test]
fn an_absent_server_is_an_error_with_a_remedy() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(&["load", "--connect", &free.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("iobench: cannot connect") && message.contains("serve"), "{message}");
}
