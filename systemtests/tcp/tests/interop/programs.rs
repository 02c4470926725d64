//! Tests unmodified programs: curl and wrk as clients, nginx as the server; and a server of ours
//! that is killed.

use crate::site::{Kind, OURS, PORT, Site, THEIRS, TIME_LIMIT};
use mtcp::{Config, Context, Family, Mtcp};
use ring::digest::{SHA256, digest};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use testkit::process::{Guard, example};

/// Starts the example server in a namespace of the site, with these settings.
fn serve(site: &Site, settings: &str, directory: &Path) -> Guard {
    let file = directory.join("mtcp.toml");
    std::fs::write(&file, settings).expect("a file");
    let mut command = Command::new(example("mtcp", "http"));
    command.arg(SocketAddr::new(OURS[0], PORT).to_string()).env("MTCP_CONFIG", &file);
    command.stdout(Stdio::piped());
    let mut running = Guard::spawn_in(site.home(), command);
    let output = BufReader::new(running.output());
    let serves = output.lines().map_while(Result::ok).any(|line| line.starts_with("serving"));
    assert!(serves, "the example serves");
    site.prepare_tap();
    running
}

fn settings(site: &Site, more: &str) -> String {
    let config = site.config();
    let kind = format!("{:?}", config.device.kind).to_lowercase();
    let interface = config.device.interface;
    format!(
        "[device]\nkind = \"{kind}\"\ninterface = \"{interface}\"\n\
         [address]\nlist = [\"{}/24\", \"{}/64\"]\n{more}\n",
        OURS[0], OURS[1]
    )
}

fn run(site: &Site, program: &str, words: &str) -> Output {
    let output = site.theirs.run(|| Command::new(program).args(words.split(' ')).output());
    let output = output.unwrap_or_else(|_| panic!("{program} is installed: cargo xtask setup"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {errors}");
    output
}

fn document(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

#[test]
fn curl_fetches_from_us() {
    for kind in [Kind::Native, Kind::Tap] {
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site::new(kind);
        let _server = serve(&site, &settings(&site, ""), directory.path());
        for bytes in [0, 1, 1000, 100_000, 20_000_000] {
            let url = format!("http://{}:{PORT}/{bytes}", OURS[0]);
            let output = run(&site, "curl", &format!("-sSf --max-time 30 {url} {url}"));
            let twice = [document(bytes), document(bytes)].concat();
            assert!(output.stdout == twice, "{kind:?}: {bytes} bytes, twice on a connection");
        }
    }
}

#[test]
fn wrk_loads_us() {
    for (kind, mode) in [(Kind::Native, "complete"), (Kind::Tap, "paired")] {
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site::new(kind);
        let more = format!("[engine]\nmode = \"{mode}\"");
        let _server = serve(&site, &settings(&site, &more), directory.path());
        for path in ["64", "100000"] {
            let words = format!("-t2 -c100 -d1s --timeout 30s http://{}:{PORT}/{path}", OURS[0]);
            let output = run(&site, "wrk", &words);
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
            let line = text.lines().find(|line| line.contains(" requests in "));
            let count = line.and_then(|line| line.split_whitespace().next());
            let count: u64 = count.and_then(|count| count.parse().ok()).expect("a count");
            assert!(count > 100, "{text}");
        }
    }
}

/// Starts nginx in the kernel's namespace, with one file; it ends when the value is dropped.
fn nginx(site: &Site, directory: &Path, file: &[u8]) -> Guard {
    std::fs::write(directory.join("file"), file).expect("a file");
    let path = directory.display();
    let text = format!(
        "daemon off; master_process off; pid {path}/pid; error_log {path}/errors;\n\
         events {{}}\nhttp {{ access_log off; client_body_temp_path {path}/1; \
         proxy_temp_path {path}/2; fastcgi_temp_path {path}/3; uwsgi_temp_path {path}/4; \
         scgi_temp_path {path}/5;\nserver {{ listen {0}:{PORT} reuseport; \
         listen [{1}]:{PORT}; root {path}; }} }}\n",
        THEIRS[0], THEIRS[1]
    );
    let configuration = directory.join("nginx.conf");
    std::fs::write(&configuration, text).expect("a file");
    let mut command = Command::new("nginx");
    command.arg("-c").arg(configuration).arg("-e").arg(directory.join("errors"));
    let running = Guard::spawn_in(&site.theirs, command);
    let begin = Instant::now();
    let to = SocketAddr::new(THEIRS[0], PORT);
    while site.theirs.run(|| TcpStream::connect(to)).is_err() {
        let errors = || std::fs::read_to_string(directory.join("errors")).unwrap_or_default();
        assert!(begin.elapsed() < TIME_LIMIT, "nginx does not serve: {}", errors());
        thread::sleep(Duration::from_millis(5));
    }
    running
}

/// Fetches the file over our blocking sockets.
fn fetch(context: &mut Context, from: SocketAddr) -> Vec<u8> {
    let family = if from.is_ipv4() { Family::V4 } else { Family::V6 };
    let socket = context.socket(family).expect("a socket");
    context.connect(socket, from).expect("nginx accepts");
    let request = b"GET /file HTTP/1.1\r\nHost: there\r\nConnection: close\r\n\r\n";
    assert_eq!(context.write(socket, request).expect("it is sent"), request.len());
    let (mut answer, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match context.read(socket, &mut room).expect("an answer") {
            0 => break,
            bytes => answer.extend_from_slice(&room[..bytes]),
        }
    }
    context.close(socket).expect("it is open");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    answer.split_off(end)
}

#[test]
fn we_fetch_from_nginx() {
    for kind in [Kind::Native, Kind::Tap] {
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site::new(kind);
        let mtcp = site.start(site.config());
        let file = document(8_000_003);
        let _nginx = nginx(&site, directory.path(), &file);
        let mut context = mtcp.context(0).expect("it is free");
        for from in THEIRS {
            for _ in 0..4 {
                let came = fetch(&mut context, SocketAddr::new(from, PORT));
                let (came, sent) = (digest(&SHA256, &came), digest(&SHA256, &file));
                assert_eq!(came.as_ref(), sent.as_ref(), "{kind:?}, {from}");
            }
        }
    }
}

/// The state of the interface and of the kernel's network that other programs see.
fn surroundings(site: &Site) -> String {
    ["-details link show ours", "address show", "route show table all", "-6 route show table all"]
        .map(|words| site.ours.ip(words))
        .join("\n")
}

/// Checks that the kernel on our side answers on the port that we had.
fn kernel_has_the_port(site: &Site) {
    for address in OURS {
        let at = SocketAddr::new(address, PORT);
        let listener = site.ours.run(|| TcpListener::bind(at)).expect("the port is free");
        let client = site.theirs.run(|| TcpStream::connect_timeout(&at, TIME_LIMIT));
        let mut client = client.expect("the kernel answers");
        let (mut server, _) = listener.accept().expect("a connection");
        client.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
        server.write_all(b"the kernel").expect("it is sent");
        let mut heard = [0; 10];
        client.read_exact(&mut heard).expect("it arrives");
        assert_eq!(&heard, b"the kernel");
    }
}

#[test]
fn a_server_that_is_killed_leaves_everything_as_it_was() {
    // Children inherit it, and a job of a shell in the background ignores the signal.
    // SAFETY: this program has no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    for mode in ["native", "generic"] {
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
            let directory = tempfile::tempdir().expect("a directory");
            let site = Site::new(Kind::Shared);
            let before = surroundings(&site);
            let text = settings(&site, "ownership = \"shared\"\nports = [[7000, 7000]]");
            let text = text.replace("[address]", &format!("mode = \"{mode}\"\n[address]"));
            let mut server = serve(&site, &text, directory.path());
            let url = format!("http://{}:{PORT}/1000", OURS[0]);
            let output = run(&site, "curl", &format!("-sSf --max-time 30 {url}"));
            assert!(output.stdout == document(1000));
            assert_ne!(surroundings(&site), before, "it is attached");
            // In the middle of connections: the kernel does not know them and resets them.
            let to = SocketAddr::new(OURS[0], PORT);
            let open = || TcpStream::connect_timeout(&to, TIME_LIMIT).expect("we answer");
            let mut stream = site.theirs.run(open);
            stream.write_all(b"GET /100000000 HTTP/1.1\r\n\r\n").expect("it is sent");
            stream.read_exact(&mut [0; 1000]).expect("an answer");
            server.end(signal);
            let begin = Instant::now();
            while surroundings(&site) != before {
                let now = surroundings(&site);
                let lines = |one: &str, other: &str| -> Vec<String> {
                    let new = |line: &&str| !other.contains(*line);
                    one.lines().filter(new).map(str::to_owned).collect()
                };
                let changes = (lines(&before, &now), lines(&now, &before));
                assert!(begin.elapsed() < TIME_LIMIT, "{mode}, signal {signal}: {changes:#?}");
            }
            kernel_has_the_port(&site);
        }
    }
}

#[test]
fn a_panic_leaves_everything_as_it_was() {
    let site = Site::new(Kind::Shared);
    let before = surroundings(&site);
    let config = Config { ports: vec![PORT..=PORT], ..site.config() };
    let mtcp = site.start(config);
    assert_ne!(surroundings(&site), before, "it is attached");
    let panics = thread::spawn(move || {
        let mut context: Context = mtcp.context(0).expect("it is free");
        let mtcp: Mtcp = mtcp;
        let socket = context.socket(Family::V4).expect("a socket");
        context.bind(socket, SocketAddr::new(OURS[0], PORT)).expect("a free port");
        context.listen(socket, 8).expect("to listen");
        assert_eq!(mtcp.cores(), 2, "this panic is wanted");
    });
    assert!(panics.join().is_err());
    assert_eq!(surroundings(&site), before);
    kernel_has_the_port(&site);
}
