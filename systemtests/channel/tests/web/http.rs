//! Runs an axum server, and curl and h2load as its clients.

use crate::common::{TIME_LIMIT, on_thread, runtime, within};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path};
use axum::{Router, routing::get, routing::post};
use megapipe::DriverChoice;
use megapipe_rt::http::{self, Limits};
use megapipe_rt::{Bound, Handle, UnixListener, sleep, spawn_local};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

on_both_drivers!(
    curl_gets_and_posts_over_both_versions,
    curl_reaches_a_unix_socket,
    curl_is_known_by_its_credentials,
    h2load_gets_every_answer,
    clients_that_leave_disturb_no_others,
    requests_in_progress_end_before_the_server,
    a_wrong_request_ends_its_connection,
    curl_gets_what_the_task_of_a_handler_read,
    many_idle_connections_are_served_again,
    a_connection_that_was_idle_for_long_is_served_again,
    an_answer_that_is_not_read_is_complete,
    time_limits_end_connections,
    idle_connections_of_http2_end,
);

const BODY: usize = 3_000_000;

fn app() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/bytes/{count}",
            get(|Path(count): Path<usize>| async move { testkit::content(count) }),
        )
        .route("/echo", post(|body: Bytes| async { body }))
        .route(
            "/slow",
            get(|| async {
                sleep(Duration::from_millis(300)).await;
                "slow"
            }),
        )
        .route("/from/{port}", get(|Path(port): Path<u16>| from_port(port)))
        .layer(DefaultBodyLimit::disable())
}

/// A handler, whose future is `Send`: a task of its own has the stream, which is not.
async fn from_port(port: u16) -> Vec<u8> {
    let task = spawn_local(async move {
        let mut stream = megapipe_rt::TcpStream::connect(([127, 0, 0, 1], port).into()).await?;
        let message = stream.read().await?.expect("a message");
        Ok::<_, std::io::Error>(message.to_vec())
    });
    task.await.unwrap().unwrap()
}

/// A server on a thread of its own.
pub(crate) struct Server {
    address: SocketAddr,
    handle: Handle,
    /// The number of tasks that the shutdown left.
    left: Receiver<usize>,
}

impl Server {
    fn start(driver: DriverChoice) -> Server {
        Server::start_with(driver, 2, Limits::default())
    }

    fn start_with(driver: DriverChoice, cores: usize, limits: Limits) -> Server {
        Server::of(app(), driver, cores, limits)
    }

    pub(crate) fn of(app: Router, driver: DriverChoice, cores: usize, limits: Limits) -> Server {
        let bound = Bound::tcp("127.0.0.1:0").unwrap();
        let address = bound.local_addr().unwrap();
        let (sender, handle) = channel();
        let (end, left) = channel();
        thread::spawn(move || {
            let runtime = runtime(driver, cores);
            sender.send(runtime.handle().clone()).unwrap();
            let main = move || {
                let (bound, app) = (bound.clone(), app.clone());
                async move { http::serve_with(bound.listen()?, app, limits).await }
            };
            runtime.run(main).unwrap();
            end.send(runtime.shutdown(TIME_LIMIT)).unwrap();
        });
        Server { address, handle: handle.recv_timeout(TIME_LIMIT).unwrap(), left }
    }

    /// Ends the server; panics if a connection does not end.
    pub(crate) fn stop(self) {
        self.handle.request_shutdown();
        assert_eq!(self.left.recv_timeout(TIME_LIMIT), Ok(0));
    }

    /// Connects a client that waits for a bounded time.
    pub(crate) fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        client
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Runs curl and returns its output.
fn curl(arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60"]).args(arguments);
    let output = command.output().expect("curl");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output.stdout
}

fn curl_gets_and_posts_over_both_versions(driver: DriverChoice) {
    let server = Server::start(driver);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    std::fs::write(&file, testkit::content(BODY)).unwrap();
    let body = format!("@{}", file.display());
    for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        assert_eq!(curl(&[version, &server.url("/")]), b"hello");
        let large = server.url(&format!("/bytes/{BODY}"));
        assert!(curl(&[version, &large]) == testkit::content(BODY), "{version}");
        let echo = server.url("/echo");
        let echoed = curl(&[version, "--data-binary", &body, &echo]);
        assert!(echoed == testkit::content(BODY), "{version}: {} bytes", echoed.len());
        if version == "--http2-prior-knowledge" {
            // curl 7.88 fails to use such a connection again, with nginx as well; h2load does.
            continue;
        }
        // Several requests over one connection.
        let three = [server.url("/"), server.url("/slow"), server.url("/")];
        let all = curl(&[version, &three[0], &three[1], &three[2]]);
        assert_eq!(all, b"helloslowhello");
    }
    let chunked =
        curl(&["-H", "Transfer-Encoding: chunked", "--data-binary", &body, &server.url("/echo")]);
    assert!(chunked == testkit::content(BODY));
    server.stop();
}

fn curl_reaches_a_unix_socket(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http");
    let bound = Bound::unix(&path).unwrap();
    let (sender, handle) = channel();
    let server = thread::spawn(move || {
        let runtime = runtime(driver, 2);
        sender.send(runtime.handle().clone()).unwrap();
        let main = move || {
            let bound = bound.clone();
            async move { http::serve(bound.listen()?, app()).await }
        };
        runtime.run(main).unwrap();
        runtime.shutdown(TIME_LIMIT)
    });
    let socket = path.to_str().unwrap();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let hello = curl(&[version, "--unix-socket", socket, "http://any/"]);
        assert_eq!(hello, b"hello");
        let large = curl(&[version, "--unix-socket", socket, "http://any/bytes/1000000"]);
        assert!(large == testkit::content(1_000_000), "{version}");
    }
    handle.recv_timeout(TIME_LIMIT).unwrap().request_shutdown();
    assert_eq!(server.join().unwrap(), 0);
    assert!(!path.exists());
}

fn curl_is_known_by_its_credentials(driver: DriverChoice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http");
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = UnixListener::bind(&path).unwrap();
        let mut command = Command::new("curl");
        command.args(["--silent", "--max-time", "60", "--unix-socket"]).arg(&path);
        let client = command.arg("http://any/").stdout(Stdio::piped()).spawn().expect("curl");
        let stream = listener.accept().await.unwrap();
        assert_eq!(stream.peer_credentials().unwrap().process, client.id());
        http::serve_connection(stream, app()).await.unwrap();
        let output = on_thread(move || client.wait_with_output().unwrap()).await;
        assert_eq!(output.stdout, b"hello");
    });
}

fn h2load_gets_every_answer(driver: DriverChoice) {
    let server = Server::start(driver);
    for (version, path) in
        [("--h1", "/"), ("--no-tls-proto=h2c", "/"), ("--no-tls-proto=h2c", "/bytes/20000")]
    {
        let url = server.url(path);
        let mut command = Command::new("h2load");
        command.args([version, "-n3000", "-c30", "-m10", "-t1", &url]);
        let output = command.output().expect("h2load");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("3000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
        assert!(text.contains("status codes: 3000 2xx"), "{text}");
    }
    server.stop();
}

fn clients_that_leave_disturb_no_others(driver: DriverChoice) {
    let server = Server::start(driver);
    for beginning in [
        "",
        "GET / HT",
        "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        for _ in 0..20 {
            let mut client = TcpStream::connect(server.address).unwrap();
            client.write_all(beginning.as_bytes()).unwrap();
        }
        assert_eq!(curl(&[&server.url("/")]), b"hello");
    }
    server.stop();
}

fn requests_in_progress_end_before_the_server(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut idle = TcpStream::connect(server.address).unwrap();
    idle.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let mut busy = TcpStream::connect(server.address).unwrap();
    busy.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut answer = [0; 4096];
    for client in [&mut idle, &mut busy] {
        client.write_all(get("/").as_bytes()).unwrap();
        let count = client.read(&mut answer).unwrap();
        assert!(answer[..count].ends_with(b"hello"));
    }
    busy.write_all(get("/slow").as_bytes()).unwrap();
    // Most probably the request is in progress now; otherwise the connection may end without it.
    thread::sleep(Duration::from_millis(100));
    let address = server.address;
    server.stop();
    assert_eq!(idle.read(&mut answer).unwrap(), 0);
    let mut all = Vec::new();
    busy.read_to_end(&mut all).unwrap();
    assert!(all.ends_with(b"slow"), "{}", String::from_utf8_lossy(&all));
    assert!(TcpStream::connect(address).is_err());
}

fn a_wrong_request_ends_its_connection(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut client = TcpStream::connect(server.address).unwrap();
    client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    client.write_all(b"\x00\x01\x02 nonsense\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    server.stop();
}

fn curl_gets_what_the_task_of_a_handler_read(driver: DriverChoice) {
    let server = Server::start(driver);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = thread::spawn(move || listener.accept().unwrap().0.write_all(b"from there"));
    assert_eq!(curl(&[&server.url(&format!("/from/{port}"))]), b"from there");
    other.join().unwrap().unwrap();
    server.stop();
}

pub(crate) const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// Reads an answer that ends with `end`.
#[track_caller]
pub(crate) fn read_answer(client: &mut TcpStream, end: &[u8]) {
    let mut answer = Vec::new();
    let mut piece = [0; 65_536];
    while !answer.ends_with(end) {
        let count = client.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended after {} bytes", answer.len());
        answer.extend_from_slice(&piece[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
}

/// More than keep hyper's state: the others give it up after each answer.
fn many_idle_connections_are_served_again(driver: DriverChoice) {
    ::sys::limits::raise_open_files().unwrap();
    let server = Server::start_with(driver, 1, Limits::default());
    let mut clients: Vec<TcpStream> = (0..600).map(|_| server.connect()).collect();
    for round in 0..3 {
        for client in &mut clients {
            client.write_all(GET).unwrap();
            read_answer(client, b"hello");
        }
        // A request that comes with a part of the next one.
        for client in &mut clients {
            client.write_all(&[GET, &GET[..10 + round]].concat()).unwrap();
            read_answer(client, b"hello");
            client.write_all(&GET[10 + round..]).unwrap();
            read_answer(client, b"hello");
        }
    }
    // The other requests, in pieces of a byte, and a connection of HTTP/2.
    let last = clients.last_mut().unwrap();
    for byte in GET {
        last.write_all(&[*byte]).unwrap();
    }
    read_answer(last, b"hello");
    assert_eq!(curl(&["--http2-prior-knowledge", &server.url("/")]), b"hello");
    server.stop();
    assert!(clients.iter_mut().all(|client| client.read(&mut [0]).unwrap() == 0));
}

fn a_connection_that_was_idle_for_long_is_served_again(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut client = server.connect();
    for _ in 0..2 {
        client.write_all(GET).unwrap();
        read_answer(&mut client, b"hello");
        // It gives up hyper's state after a second.
        thread::sleep(Duration::from_millis(1_500));
    }
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"hello"));
    server.stop();
}

fn an_answer_that_is_not_read_is_complete(driver: DriverChoice) {
    let server = Server::start(driver);
    let mut client = server.connect();
    for _ in 0..2 {
        let request = format!("GET /bytes/{} HTTP/1.1\r\nhost: x\r\n\r\n", 8 * BODY);
        client.write_all(request.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(1_500));
        let content = testkit::content(8 * BODY);
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let mut body = vec![0; content.len()];
        client.read_exact(&mut body).unwrap();
        assert!(body == content);
    }
    server.stop();
}

fn time_limits_end_connections(driver: DriverChoice) {
    let short = Some(Duration::from_millis(50));
    let limited =
        |header, idle| Server::start_with(driver, 1, Limits { header, idle, ..Limits::default() });
    // Clients that send nothing, a part of HTTP/2's preface, or a part of a header.
    let server = limited(short, None);
    for beginning in [&b""[..], b"PRI", &GET[..20]] {
        let mut client = server.connect();
        client.write_all(beginning).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{beginning:?}");
    }
    server.stop();
    // A connection without a limit for idle time lives on.
    let server = limited(Some(TIME_LIMIT), None);
    let mut client = server.connect();
    for _ in 0..2 {
        client.write_all(GET).unwrap();
        read_answer(&mut client, b"hello");
        thread::sleep(Duration::from_millis(200));
    }
    server.stop();
    let server = limited(None, short);
    let mut client = server.connect();
    thread::sleep(Duration::from_millis(200));
    client.write_all(GET).unwrap();
    read_answer(&mut client, b"hello");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    server.stop();
}

fn idle_connections_of_http2_end(driver: DriverChoice) {
    let short = Some(Duration::from_millis(50));
    let server =
        Server::start_with(driver, 1, Limits { header: None, idle: short, ..Limits::default() });
    // A stream that takes longer than the limit.
    assert_eq!(curl(&["--http2-prior-knowledge", &server.url("/slow")]), b"slow");
    // A client that begins a connection and then says nothing more, not even in answer to a ping.
    let mut client = server.connect();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut frames = Vec::new();
    client.read_to_end(&mut frames).unwrap();
    let (mut rest, mut types) = (&frames[..], Vec::new());
    while let [a, b, c, kind, ..] = *rest {
        types.push(kind);
        rest = &rest[9 + u32::from_be_bytes([0, a, b, c]) as usize..];
    }
    // RFC 9113, section 6.8.
    const GOAWAY: u8 = 7;
    assert!(types.contains(&GOAWAY), "{types:?}");
    server.stop();
}
