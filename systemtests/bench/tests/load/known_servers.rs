//! Tests of `iobench load` against servers of known behaviour: wrong, short, late and silent ones,
//! ones that close connections, and correct ones beside a program that uses all CPU time. Rates are
//! low and bounds are wide, so that no result depends on a busy machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use systemtests_bench::{Serving, run_with_json};
use testkit::{allowed_cpus, pin, skip};

const MESSAGE_BYTES: usize = 64;

/// Serves every connection on a thread of its own until the test ends.
fn serving(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers each message as changed by `answer`, until that returns false.
fn answering(answer: impl Fn(&mut Vec<u8>) -> bool + Send + Sync + 'static) -> String {
    serving(move |mut stream| {
        let mut message = [0; MESSAGE_BYTES];
        while stream.read_exact(&mut message).is_ok() {
            let mut reply = message.to_vec();
            if !answer(&mut reply) || stream.write_all(&reply).is_err() {
                return;
            }
        }
    })
}

/// Runs an open loop at a low rate; `more` has further options, such as the duration.
fn load(address: &str, more: &[&str]) -> (Option<i32>, Value, String) {
    let arguments = ["load", "--connect", address, "--rate=200", "--connections=8", "--seed=1"];
    let periods = ["--growth=50ms", "--steady=50ms", "--arrivals=uniform"];
    let is_timed = more.iter().any(|word| word.starts_with("--duration"));
    let duration: &[&str] = if is_timed { &[] } else { &["--duration=1s"] };
    let (status, document, printed) =
        run_with_json(&[&arguments[..], &periods, duration, more].concat());
    (status, document["results"][0].clone(), printed)
}

fn count(result: &Value, account: &str) -> u64 {
    result["accounts"][account].as_u64().unwrap_or_else(|| panic!("no {account}: {result}"))
}

fn assert_balanced(result: &Value) {
    let parts = ["answered", "late", "lost", "refused", "reset", "wrong"];
    let sum: u64 = parts.iter().map(|part| count(result, part)).sum();
    assert_eq!(count(result, "scheduled"), sum, "{}", result["accounts"]);
}

/// A long time-out, so that no answer is late on a busy machine.
const LONG_TIMEOUT: &str = "--timeout=60s";

/// Checks that all answers count as wrong, that the row is invalid, and that the reason contains
/// `words`.
fn assert_wrong(address: &str, more: &[&str], words: &str) {
    let result = assert_invalid(address, more, words);
    assert!(count(&result, "wrong") > 0 && count(&result, "answered") == 0, "{result}");
}

/// Checks that some answer is wrong, that the row is invalid, and that the reason contains `words`.
fn assert_invalid(address: &str, more: &[&str], words: &str) -> Value {
    let (status, result, printed) = load(address, &[more, &["--strict", "--timeout=10s"]].concat());
    assert_eq!((status, &result["valid"]), (Some(3), &Value::Bool(false)), "{printed}");
    assert_balanced(&result);
    let notes = result["notes"].to_string();
    let told = notes.contains("replies were wrong") && notes.contains(words);
    assert!(told, "no wrong reply ({words}) of {address}: {result:#}\n{printed}");
    assert!(printed.contains("INVALID") && printed.contains("open loop at 200 requests/s"));
    result
}

/// Returns whether the exchange is one of those that open the eight connections.
fn proves(served: &AtomicU64) -> bool {
    served.fetch_add(1, Ordering::Relaxed) < 8
}

#[test]
fn replies_of_zeros_are_wrong() {
    let zeros = answering(|reply| {
        reply.fill(0);
        true
    });
    assert_wrong(&zeros, &[], "the reply to request 0 of connection");
    let zeros = answering(|reply| {
        *reply = vec![0; 100];
        true
    });
    let sizes = ["--request-bytes=64", "--response-bytes=100"];
    assert_wrong(&zeros, &sizes, "differs at byte 0: 0x00 where 0x48 was due");
}

#[test]
fn a_flipped_bit_is_named_at_any_place() {
    for place in [0, 31, 63] {
        let flip = answering(move |reply| {
            reply[place] ^= 1;
            true
        });
        assert_wrong(&flip, &[], &format!("differs at byte {place}: 0x"));
    }
}

#[test]
fn a_flipped_bit_in_a_churn_is_wrong() {
    let flip = answering(|reply| {
        reply[40] ^= 16;
        true
    });
    let churn = ["--transactions=2", "--connections=500"];
    let address = flip.as_str();
    let arguments = ["load", "--connect", address, "--rate=200", "--growth=0s", "--steady=50ms"];
    let more = ["--duration=500ms", "--strict", "--timeout=10s"];
    let (status, document, printed) = run_with_json(&[&arguments[..], &churn, &more].concat());
    let result = &document["results"][0];
    assert_eq!((status, &result["valid"]), (Some(3), &Value::Bool(false)), "{printed}");
    assert_balanced(result);
    assert!(count(result, "wrong") > 0 && count(result, "answered") == 0, "{printed}");
    assert!(printed.contains("the reply to request 0 of connection"), "{printed}");
    assert!(printed.contains("differs at byte 40: 0x"), "{printed}");
    assert!(printed.contains("open loop at 200 new connections/s"), "{printed}");
}

#[test]
fn surplus_bytes_are_wrong() {
    let served = AtomicU64::new(0);
    let add_one = answering(move |reply| {
        if !proves(&served) {
            reply.push(0);
        }
        true
    });
    let result = assert_invalid(&add_one, &[], "the reply to request ");
    let notes = result["notes"].to_string();
    // On a busy machine the next request was sent before, and the surplus byte begins its reply.
    let places = ["has 1 bytes more than 64", "differs at byte 0: 0x00"];
    assert!(places.iter().any(|place| notes.contains(place)), "{notes}");
}

#[test]
fn a_short_reply_does_not_slip_onto_the_next_request() {
    let served = AtomicU64::new(0);
    let short = answering(move |reply| {
        if !proves(&served) {
            reply.truncate(MESSAGE_BYTES - 1);
        }
        true
    });
    let result = assert_invalid(&short, &[], "differs at byte 63: 0x");
    // The reply to the next request ends it, and the byte is right by chance (1 of 256).
    assert!(count(&result, "wrong") > 2 * count(&result, "answered"), "{result}");
}

#[test]
fn the_reply_to_another_request_is_wrong() {
    let repeat_the_first = serving(|mut stream| {
        let (mut first, mut message) = ([0; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
        if stream.read_exact(&mut first).is_err() {
            return;
        }
        while stream.write_all(&first).is_ok() && stream.read_exact(&mut message).is_ok() {}
    });
    let result = assert_invalid(&repeat_the_first, &[], "the reply to request 0 of connection");
    assert!(count(&result, "wrong") > 0, "{result}");
}

#[test]
fn right_replies_of_all_sizes_are_not_called_wrong() {
    for sizes in [
        &["--request-bytes=1"][..],
        &["--request-bytes=300000"],
        &["--request-bytes=64", "--response-bytes=10240"],
        &["--request-bytes=41", "--response-bytes=1"],
        &["--request-bytes=100000", "--response-bytes=200"],
    ] {
        let serve: Vec<&str> = if sizes.len() == 2 { sizes.to_vec() } else { Vec::new() };
        let server = Serving::start_with("epoll", &serve);
        let (_, result, printed) = load(&server.address, &[sizes, &[LONG_TIMEOUT]].concat());
        assert_balanced(&result);
        assert_eq!(count(&result, "answered"), count(&result, "scheduled"), "{printed}");
        assert_eq!(result["kind"], "open");
    }
}

#[test]
fn a_delay_is_part_of_every_service_time() {
    const DELAY: Duration = Duration::from_millis(40);
    let late = answering(|_| {
        thread::sleep(DELAY);
        true
    });
    let (_, result, printed) = load(&late, &[LONG_TIMEOUT]);
    assert_balanced(&result);
    assert_eq!(count(&result, "answered"), count(&result, "scheduled"), "{printed}");
    // The error of a histogram is at most 0.1 %.
    let p1_us = result["latency_us"]["p1"].as_f64().unwrap();
    assert!(p1_us >= DELAY.as_micros() as f64 * 0.999, "{p1_us}");
    let (_, result, printed) = load(&late, &["--timeout=10ms"]);
    assert_balanced(&result);
    assert_eq!(count(&result, "answered"), 0, "{printed}");
    assert!(count(&result, "late") > 0, "{printed}");
}

#[test]
fn a_server_that_falls_silent_is_invalid() {
    let served = AtomicU64::new(0);
    let silent = serving(move |mut stream| {
        let mut message = [0; MESSAGE_BYTES];
        while stream.read_exact(&mut message).is_ok() {
            if served.fetch_add(1, Ordering::Relaxed) < 100 && stream.write_all(&message).is_err() {
                return;
            }
        }
    });
    let (status, result, printed) = load(&silent, &["--strict", "--timeout=300ms"]);
    assert_eq!((status, &result["valid"]), (Some(3), &Value::Bool(false)), "{printed}");
    assert_balanced(&result);
    assert!(count(&result, "lost") > 0, "{printed}");
    assert!(printed.contains("did not keep up"), "{printed}");
}

#[test]
fn connections_that_the_server_closes_are_opened_again() {
    let accepted = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&accepted);
    let closing = serving(move |mut stream| {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut message = [0; MESSAGE_BYTES];
        for _ in 0..5 {
            if stream.read_exact(&mut message).and_then(|()| stream.write_all(&message)).is_err() {
                return;
            }
        }
    });
    let (_, result, printed) = load(&closing, &["--duration=2s", LONG_TIMEOUT]);
    assert_balanced(&result);
    let reopened = result["reopened"].as_u64().unwrap();
    // One connection tested whether the server listens.
    let accepted = accepted.load(Ordering::Relaxed) - 1;
    assert!(reopened > 0 && accepted >= 8 + reopened, "{accepted} {printed}");
    // The first eight connections had 40 answers.
    assert!(count(&result, "answered") > 40 && count(&result, "wrong") == 0, "{printed}");
    assert!(count(&result, "refused") + count(&result, "reset") > 0, "{printed}");
    assert!(printed.contains("ended and stood again"), "{printed}");
}

/// Echoes `most` messages, then closes everything.
fn serve_until(listener: TcpListener, most: u64) {
    let served = Arc::new(AtomicU64::new(0));
    listener.set_nonblocking(true).unwrap();
    while served.load(Ordering::Relaxed) < most {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let served = Arc::clone(&served);
        thread::spawn(move || {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut message = [0; MESSAGE_BYTES];
            while served.load(Ordering::Relaxed) < most
                && stream.read_exact(&mut message).is_ok()
                && stream.write_all(&message).is_ok()
            {
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

#[test]
fn a_server_that_is_started_again_gets_load_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let again = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&again);
    thread::spawn(move || {
        serve_until(listener, 100);
        thread::sleep(Duration::from_millis(200));
        let listener = TcpListener::bind(address).unwrap();
        for mut stream in listener.incoming().flatten() {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                let mut message = [0; MESSAGE_BYTES];
                while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok()
                {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let more = ["--duration=3s", "--strict", LONG_TIMEOUT];
    let (status, result, printed) = load(&address.to_string(), &more);
    assert_balanced(&result);
    assert!(again.load(Ordering::Relaxed) > 0, "{printed}");
    assert!(result["reopened"].as_u64() > Some(0), "{printed}");
    assert!(count(&result, "refused") + count(&result, "reset") > 0, "{printed}");
    assert_eq!((status, &result["valid"]), (Some(3), &Value::Bool(false)), "{printed}");
}

/// A thread that uses all time of one CPU until this is dropped.
struct Spinner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    fn start(cpu: usize) -> Spinner {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let spin = move || {
            pin(cpu);
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        Spinner { stop, thread: Some(thread::spawn(spin)) }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Checks that a spinner on one of the two CPUs makes the row of either loop invalid.
fn assert_disturbed(test: &str, of_the_server: bool) {
    let cpus = allowed_cpus();
    let [server_cpu, client_cpu, ..] = cpus[..] else {
        return skip(test, "needs two CPUs");
    };
    let _spinner = Spinner::start(if of_the_server { server_cpu } else { client_cpu });
    let (server_cpu, client_cpu) = (server_cpu.to_string(), client_cpu.to_string());
    let place =
        ["load", "--server=epoll", "--server-cpus", &server_cpu, "--client-cpus", &client_cpu];
    let open = ["--rate=2000", "--growth=0s", "--steady=100ms"];
    for rate in [&open[..], &[]] {
        let more = ["--connections=16", "--duration=1s", "--strict"];
        let (status, document, printed) = run_with_json(&[&place[..], rate, &more].concat());
        let result = &document["results"][0];
        assert_eq!((status, &result["valid"]), (Some(3), &Value::Bool(false)), "{printed}");
        let side = if of_the_server { "server_foreign" } else { "client_foreign" };
        let disturbance = &result["disturbance"];
        let slices = |name: &str| disturbance[name].as_u64().unwrap();
        let disturbed = slices("stolen") + slices("delayed");
        assert!(
            disturbance[side].as_f64() > Some(0.1) || 10 * disturbed > slices("slices"),
            "{printed} {disturbance}"
        );
        assert!(printed.contains("INVALID: other "), "{printed}");
    }
}

#[test]
fn a_spinner_on_the_servers_cpu_is_seen() {
    assert_disturbed("a_spinner_on_the_servers_cpu_is_seen", true);
}

#[test]
fn a_spinner_on_the_clients_cpu_is_seen() {
    assert_disturbed("a_spinner_on_the_clients_cpu_is_seen", false);
}

/// Checks that every command that measures in slots discards those that a spinner disturbed.
#[test]
fn spinners_make_the_rows_of_all_commands_invalid() {
    let test = "spinners_make_the_rows_of_all_commands_invalid";
    let cpus = allowed_cpus();
    let [server_cpu, client_cpu, ..] = cpus[..] else {
        return skip(test, "needs two CPUs");
    };
    let _spinners = [server_cpu, client_cpu].map(Spinner::start);
    let place = [format!("--server-cpus={server_cpu}"), format!("--client-cpus={client_cpu}")];
    let short = ["--rounds=1", "--duration=400ms", "--strict"];
    let commands = [
        &["compare", "--servers=epoll", "--cores=1", "--transactions=0"][..],
        &["ceiling", "--transactions=0", "--connections=8"],
        &["ipc", "--transports=tcp-blocking", "--message-bytes=64"],
    ];
    for command in commands {
        let place = place.each_ref().map(String::as_str);
        let (status, document, printed) = run_with_json(&[command, &place, &short].concat());
        let rows = document["results"].as_array().unwrap();
        assert!(!rows.is_empty() && rows.iter().all(|row| row["valid"] == false), "{printed}");
        assert_eq!(status, Some(3), "{printed}");
    }
}

#[test]
fn a_closed_loop_says_so_and_remarks_are_no_verdicts() {
    let server = Serving::start("epoll");
    let arguments = ["load", "--connect", &server.address, "--connections=8", "--duration=300ms"];
    let (status, document, printed) = run_with_json(&arguments);
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("closed loop on 8 connections"), "{printed}");
    let result = &document["results"][0];
    assert_eq!(result["kind"], "closed");
    let notes = result["notes"].as_array().unwrap();
    for note in notes.iter().map(|note| note.as_str().unwrap()) {
        let remarks = ["the clients were busy", "whether other programs", "no answer came for"];
        let is_remark = remarks.iter().any(|remark| note.starts_with(remark));
        let mark = if is_remark { "note" } else { "INVALID" };
        assert!(printed.contains(&format!("{mark}: {note}")), "{printed}");
    }
    assert_eq!(printed.contains("INVALID"), result["valid"] == false, "{printed}");
}
