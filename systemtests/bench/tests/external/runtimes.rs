//! Tests of every runtime with the built program: it echoes a stream in any pieces, answers fixed
//! requests, survives peers that disappear, and ends at a signal.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Output, Stdio};
use std::thread;
use systemtests_bench::{TIME_LIMIT, external};
use testkit::process::Guard;
use testkit::{allowed_cpus, content};

/// A running server, killed when dropped.
struct Serving {
    process: Guard,
    address: SocketAddr,
    line: String,
}

impl Serving {
    fn start(runtime: &str, more: &[&str]) -> Serving {
        let arguments = [&[runtime, "--bind", "127.0.0.1:0"], more].concat();
        let mut process = Guard::spawn(external(&arguments).stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(process.output()).read_line(&mut line).unwrap();
        let word = line.split_whitespace().nth(3).unwrap_or_else(|| panic!("no address: {line}"));
        let address = word.parse().unwrap();
        Serving { process, address, line }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, TIME_LIMIT).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a signal and returns the exit status.
    fn end(mut self, signal: i32) -> Option<i32> {
        self.process.end(signal).code()
    }
}

/// Sends in pieces whose lengths cycle through `cuts`, while another thread reads everything back.
fn echo(stream: &TcpStream, sent: &[u8], cuts: &[usize]) -> Vec<u8> {
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = Vec::new();
            let mut stream = stream;
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let (mut rest, mut writer) = (sent, stream);
        for cut in cuts.iter().cycle() {
            let (piece, more) = rest.split_at(rest.len().min(*cut));
            writer.write_all(piece).unwrap();
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        stream.shutdown(Shutdown::Write).unwrap();
        reader.join().unwrap()
    })
}

fn echoes_odd_sizes(runtime: &str) {
    let serving = Serving::start(runtime, &[]);
    for length in [1, 7, 64, 4_095, 16_384, 16_385, 1_000_003] {
        let sent = content(length);
        let received = echo(&serving.connect(), &sent, &[1, 3, 1_000, 65_537]);
        assert!(received == sent, "{length} bytes came back as {}", received.len());
    }
    assert_eq!(serving.end(libc::SIGTERM), Some(0));
}

fn answers_fixed_requests(runtime: &str) {
    let sizes = ["--request-bytes", "128", "--response-bytes", "10240"];
    let serving = Serving::start(runtime, &sizes);
    let mut stream = serving.connect();
    let mut response = vec![0; 10_240];
    stream.write_all(&[1; 100]).unwrap();
    stream.write_all(&[2; 28]).unwrap();
    stream.read_exact(&mut response).unwrap();
    assert!(response.starts_with(b"HTTP/1.1 200 OK\r\nContent-Length: "));
    // First fifty and a half requests at once, then the other half.
    let received = echo(&stream, &[3; 128 * 51], &[128 * 50 + 64, 64]);
    assert_eq!(received.len(), 51 * 10_240);
    assert!(received.chunks(10_240).all(|chunk| chunk == response));
    assert_eq!(serving.end(libc::SIGINT), Some(0));
}

fn waits_for_slow_readers(runtime: &str) {
    let sizes = ["--request-bytes", "1", "--response-bytes", "1048576"];
    let serving = Serving::start(runtime, &sizes);
    let mut slow = serving.connect();
    // Far more than the sockets hold, so that the server has to wait for this client.
    slow.write_all(&[0; 16]).unwrap();
    let mut other = serving.connect();
    other.write_all(&[0]).unwrap();
    let mut megabyte = vec![0; 1 << 20];
    other.read_exact(&mut megabyte).unwrap();
    for _ in 0..16 {
        slow.read_exact(&mut megabyte).unwrap();
    }
    slow.set_nonblocking(true).unwrap();
    let error = slow.read(&mut megabyte).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(serving.end(libc::SIGTERM), Some(0));
}

fn survives_resets(runtime: &str) {
    let serving = Serving::start(runtime, &[]);
    for round in 0..20 {
        let mut stream = serving.connect();
        stream.write_all(&content(1_000 * (round % 3 + 1))).unwrap();
        let reset = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the descriptor is open and the value is valid for reads of its size.
        let set = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&stream),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const reset).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
    }
    let sent = content(300);
    assert!(echo(&serving.connect(), &sent, &[300]) == sent);
    assert_eq!(serving.end(libc::SIGTERM), Some(0));
}

fn serves_on_every_cpu(runtime: &str) {
    let cpus: Vec<String> = allowed_cpus().iter().map(usize::to_string).collect();
    let serving = Serving::start(runtime, &["--cpus", &cpus.join(",")]);
    assert!(serving.line.ends_with(&format!("CPU [{}]\n", cpus.join(", "))), "{}", serving.line);
    // The kernel distributes connections by a hash; with 64 of them no thread is left without one
    // in practice.
    let streams: Vec<TcpStream> = (0..64).map(|_| serving.connect()).collect();
    for (number, stream) in streams.iter().enumerate() {
        let sent = content(number + 1);
        assert!(echo(stream, &sent, &[2]) == sent);
    }
    assert_eq!(serving.end(libc::SIGTERM), Some(0));
}

macro_rules! on_every_runtime {
    ($($runtime:ident),*) => {
        $(mod $runtime {
            #[test]
            fn echoes_odd_sizes() {
                super::echoes_odd_sizes(&stringify!($runtime).replace('_', "-"));
            }

            #[test]
            fn answers_fixed_requests() {
                super::answers_fixed_requests(&stringify!($runtime).replace('_', "-"));
            }

            #[test]
            fn waits_for_slow_readers() {
                super::waits_for_slow_readers(&stringify!($runtime).replace('_', "-"));
            }

            #[test]
            fn survives_resets() {
                super::survives_resets(&stringify!($runtime).replace('_', "-"));
            }

            #[test]
            fn serves_on_every_cpu() {
                super::serves_on_every_cpu(&stringify!($runtime).replace('_', "-"));
            }
        })*
    };
}

on_every_runtime!(tokio, compio, glommio, megapipe_rt);

/// Returns the message of a refusal; the exit status is 2 if the parser of the command line
/// refused.
fn failure(output: &Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr);
    let status = if message.contains("try '--help'") { 2 } else { 1 };
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    message.into_owned()
}

#[test]
fn bad_input_is_explained() {
    let foreign =
        failure(&external(&["tokio", "--cpus", "1023", "--bind", "127.0.0.1:0"]).output().unwrap());
    assert!(foreign.contains("CPU 1023") && foreign.contains("may use"), "{foreign}");
    let unknown = failure(&external(&["node"]).output().unwrap());
    assert!(unknown.contains("glommio"), "{unknown}");
    let half = failure(&external(&["tokio", "--request-bytes", "5"]).output().unwrap());
    assert!(half.contains("--response-bytes"), "{half}");
    let elsewhere = failure(&external(&["tokio", "--bind", "192.0.2.1:7000"]).output().unwrap());
    assert!(elsewhere.contains("192.0.2.1:7000") && elsewhere.contains("--bind"), "{elsewhere}");
}
