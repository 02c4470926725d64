//! Tests the ways to reach a stack: a TAP device, both versions of IP, and an address that the
//! kernel keeps.

use crate::support::{Guard, KERNEL, SERVER, Site, TIME_LIMIT, await_port, succeed};
use crate::web::furnish;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::Namespace;
use testkit::content;

const SERVER_V6: &str = "fd09::1";
const KERNEL_V6: &str = "fd09::3";
/// The kernel's addresses at its end of the TAP device.
const NEAR: [&str; 2] = ["10.10.0.1", "fd10::1"];
/// The stack's addresses at its end.
const FAR: [&str; 2] = ["10.10.0.2", "fd10::2"];

/// Starts lighttpd on the stack of that name, for both addresses.
fn serve(site: &Site, stack: &str, settings: &str, addresses: [&str; 2]) -> Guard {
    std::fs::write(site.path(&format!("{stack}.toml")), settings).expect("it is written");
    furnish(site, addresses[0]);
    let path = site.path("lighttpd.conf");
    let mut text = std::fs::read_to_string(&path).expect("it was written");
    text.push_str(&format!("$SERVER[\"socket\"] == \"[{}]:80\" {{ }}\n", addresses[1]));
    std::fs::write(&path, text).expect("it is written");
    let mut command = site.under_stack(stack, &[], "lighttpd");
    command.args(["-D", "-f"]).arg(path);
    Guard::spawn_in(&site.server, command)
}

/// Fetches with this curl command, over either version of IP.
fn assert_fetched(from: &Namespace, curl: impl Fn() -> Command, addresses: [&str; 2]) {
    for address in [addresses[0].to_owned(), format!("[{}]", addresses[1])] {
        for bytes in [1, 1448, 1_000_003] {
            let mut command = curl();
            command.args(["--silent", "--show-error", "--fail", "--max-time", "60"]);
            command.arg(format!("http://{address}/{bytes}"));
            let got = succeed(from, command).stdout;
            assert!(got == content(bytes), "{address}: {bytes} bytes differ; {} came", got.len());
        }
    }
}

#[test]
fn a_program_serves_over_a_tap_device() {
    let site = Site::new("packet");
    let list = format!("[\"{}/24\", \"{}/64\"]", FAR[0], FAR[1]);
    let settings =
        format!("[device]\nkind = \"tap\"\ninterface = \"mtcp0\"\n[address]\nlist = {list}\n");
    let mut server = serve(&site, "tap", &settings, FAR);
    let begin = Instant::now();
    while !site.server.ip("-brief link").contains("mtcp0") {
        assert!(begin.elapsed() < TIME_LIMIT, "there is no device");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    site.server.ip(&format!("addr add {}/24 dev mtcp0", NEAR[0]));
    site.server.ip("link set mtcp0 up");
    site.server.await_queue("mtcp0");
    site.server.add_v6(NEAR[1], 64, "mtcp0");
    await_port(&site.server, FAR[0], 80, &mut server);
    assert_fetched(&site.server, || Command::new("curl"), FAR);
    server.end(libc::SIGTERM);
    assert!(!site.server.ip("-brief link").contains("mtcp0"), "the device is gone");
}

/// A program that waits for its peer does not wait for ever when the device has failed.
#[test]
fn a_program_is_told_that_its_device_has_failed() {
    let site = Site::new("packet");
    let settings = format!(
        "[device]\nkind = \"tap\"\ninterface = \"mtcp0\"\n[address]\nlist = [\"{}/24\"]\n",
        FAR[0]
    );
    std::fs::write(site.path("tap.toml"), settings).expect("it is written");
    for options in [&[][..], &["--complete"]] {
        site.server.ip("tuntap add mtcp0 mode tap");
        site.server.ip(&format!("addr add {}/24 dev mtcp0", NEAR[0]));
        site.server.ip("link set mtcp0 up");
        let silent = site.server.run(|| TcpListener::bind((NEAR[0], 80)).expect("a free port"));
        let mut command = site.under_stack("tap", options, "curl");
        command.args(["--silent", "--max-time", "60", &format!("http://{}/", NEAR[0])]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let program = site.server.run(|| command.spawn()).expect("it runs");
        let _connection = silent.accept().expect("the program connects");
        site.server.ip("link delete mtcp0");
        let output = program.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        // 28: curl has waited until its time limit.
        assert!(![Some(0), Some(28)].contains(&output.status.code()), "{errors}");
        for words in ["packet device: No such device", "TAP", "mtcp0", "start the program again"] {
            assert!(errors.contains(words), "{options:?}: no `{words}` in: {errors}");
        }
        assert_eq!(errors.matches("the stack has failed").count(), 1, "{errors}");
    }
}

/// Answers this number of requests, and ends each connection.
fn answer(listener: &TcpListener, requests: usize) {
    for _ in 0..requests {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).expect("a request") > 0);
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        stream.write_all(text).expect("to answer");
    }
}

/// The end of the program's last connection arrives while the program waits for it, at most for its
/// grace time.
#[test]
fn a_program_ends_as_soon_as_its_connections() {
    const GRACE: Duration = Duration::from_secs(120);
    const RUNS: usize = 10;
    const PEER: &str = "10.9.0.4";
    let site = Site::new("packet");
    site.server.ip(&format!("addr add {PEER}/24 dev server"));
    let settings = std::fs::read_to_string(site.path("client.toml")).expect("it was written");
    let settings = format!("{settings}[socket]\ngrace_ms = {}\n", GRACE.as_millis());
    std::fs::write(site.path("client.toml"), settings).expect("it is written");
    let listener = site.server.run(|| TcpListener::bind((PEER, 80)).expect("the port is free"));
    let peer = std::thread::spawn(move || answer(&listener, RUNS));
    for run in 0..RUNS {
        let mut command = site.under_stack("client", &[], "curl");
        command.args(["--silent", "--show-error", "--fail", &format!("http://{PEER}/")]);
        let begin = Instant::now();
        assert_eq!(succeed(&site.client, command).stdout, b"ok");
        assert!(begin.elapsed() < GRACE / 2, "run {run} took {:?}", begin.elapsed());
    }
    peer.join().expect("the peer has no fault");
}

#[test]
fn programs_serve_and_fetch_over_both_versions_of_ip() {
    let site = Site::new("xdp");
    let before = site.interface();
    let settings = |interface: &str, last: u8| {
        format!(
            "[device]\nkind = \"xdp\"\ninterface = \"{interface}\"\n\
             [address]\nlist = [\"10.9.0.{last}/24\", \"fd09::{last}/64\"]\n"
        )
    };
    let addresses = [SERVER, SERVER_V6];
    let mut server = serve(&site, "server", &settings("server", 1), addresses);
    site.client.add_v6(KERNEL_V6, 64, "client");
    await_port(&site.client, SERVER, 80, &mut server);
    assert_fetched(&site.client, || Command::new("curl"), addresses);
    std::fs::write(site.path("client.toml"), settings("client", 2)).expect("it is written");
    assert_fetched(&site.client, || site.under_stack("client", &[], "curl"), addresses);
    server.end(libc::SIGTERM);
    assert_eq!(site.interface(), before, "the interface is as it was found");
}

#[test]
fn a_program_takes_ports_of_an_address_that_stays_the_kernels() {
    let site = Site::new("xdp");
    let before = site.interface();
    site.server.ip(&format!("addr add {SERVER}/24 dev server"));
    site.server.add_v6(SERVER_V6, 64, "server");
    site.client.add_v6(KERNEL_V6, 64, "client");
    let shared = |interface: &str, addresses: [&str; 2]| {
        format!(
            "[device]\nkind = \"xdp\"\ninterface = \"{interface}\"\n\
             [address]\nlist = [\"{}/24\", \"{}/64\"]\nownership = \"shared\"\n\
             ports = [[80, 80], [2000, 2999]]\n[tcp]\nephemeral_ports = [2000, 2999]\n",
            addresses[0], addresses[1],
        )
    };
    let addresses = [SERVER, SERVER_V6];
    let mut server = serve(&site, "server", &shared("server", addresses), addresses);
    await_port(&site.client, SERVER, 80, &mut server);
    assert_fetched(&site.client, || Command::new("curl"), addresses);
    let settings = shared("client", [KERNEL, KERNEL_V6]);
    std::fs::write(site.path("client.toml"), settings).expect("it is written");
    assert_fetched(&site.client, || site.under_stack("client", &[], "curl"), addresses);
    // The kernel keeps the other ports of the same address.
    let _other = site.server.run(|| TcpListener::bind((SERVER, 81)).expect("the port is free"));
    await_port(&site.client, SERVER, 81, &mut server);
    server.end(libc::SIGTERM);
    assert_eq!(site.interface(), before, "the interface is as it was found");
}
