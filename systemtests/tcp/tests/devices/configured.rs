//! Tests stacks made from a configuration, with the kernel as their peer.

use mtcp::{Config, EpollControl, EpollEvent, Events, Family, Mtcp};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testkit::Namespace;

const BYTES: usize = 3 << 20;

fn configuration(kind: &str, mode: &str, capture: &Path) -> Config {
    let text = format!(
        "[device]\nkind = \"{kind}\"\ninterface = \"mtcp0\"\n\
         [address]\nlist = [\"10.10.0.2/24\"]\n\
         [engine]\nmode = \"{mode}\"\n[socket]\ngrace_ms = 100\n\
         [capture]\nfile = \"{}\"\nbytes = 128\n",
        capture.display()
    );
    Config::parse(&text, Path::new("test.toml")).expect("a configuration")
}

/// Echoes until `stop` is set.
fn serve(mtcp: &Mtcp, ready: &AtomicBool, stop: &AtomicBool) {
    let mut context = mtcp.context(0).expect("a context");
    let listener = context.socket(Family::V4).expect("a socket");
    context.set_nonblocking(listener, true).expect("a socket");
    context.bind(listener, "10.10.0.2:7".parse().expect("an address")).expect("free");
    context.listen(listener, 64).expect("to listen");
    let epoll = context.epoll_create().expect("an epoll");
    let watch = |socket| EpollControl::Add(EpollEvent::of(socket, Events::IN));
    context.epoll_ctl(epoll, listener, watch(listener)).expect("new");
    ready.store(true, Ordering::Release);
    let (mut events, mut room) = ([EpollEvent::default(); 64], vec![0; 65_536]);
    while !stop.load(Ordering::Acquire) {
        let time = Some(Duration::from_millis(20));
        let count = context.epoll_wait(epoll, &mut events, time).expect("a device");
        for event in &events[..count] {
            let socket = event.descriptor();
            if socket == listener {
                while let Ok(new) = context.accept(listener) {
                    context.epoll_ctl(epoll, new, watch(new)).expect("new");
                }
                continue;
            }
            match context.read(socket, &mut room).expect("EPOLLIN and nothing to read") {
                0 => context.close(socket).expect("open"),
                bytes => {
                    let written = context.write(socket, &room[..bytes]).expect("to send");
                    assert_eq!(written, bytes, "a blocking socket takes all");
                }
            }
        }
    }
}

/// Sends on one thread and receives on the other, and compares every byte.
fn exchange() {
    let mut stream = TcpStream::connect("10.10.0.2:7").expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let data: Vec<u8> =
        (0..BYTES as u32).map(|index| (index.wrapping_mul(31) >> 7) as u8).collect();
    let mut sender = stream.try_clone().expect("a descriptor");
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&data).expect("to send");
            sender.shutdown(Shutdown::Write).expect("half-close");
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("the echo");
        assert!(received == data, "{} of {BYTES} bytes, or others", received.len());
    });
}

/// Echoes between the kernel in one namespace and stacks that are started in another or the same
/// one.
fn echo(kernel: &Namespace, interface: &str, ours: &Namespace, config: Config) {
    let mtcp = ours.run(|| Mtcp::start(config)).expect("stacks");
    kernel.ip(&format!("addr add 10.10.0.1/24 dev {interface}"));
    kernel.await_queue(interface);
    // The default of the machine may be an algorithm that paces.
    kernel.set("ipv4/tcp_congestion_control", "reno");
    let (ready, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&mtcp, &ready, &stop));
        while !ready.load(Ordering::Acquire) && !server.is_finished() {
            thread::yield_now();
        }
        let outcome = scope.spawn(|| kernel.run(|| (0..3).for_each(|_| exchange()))).join();
        stop.store(true, Ordering::Release);
        server.join().expect("the server");
        outcome.expect("the kernel's side");
    });
}

#[test]
fn the_kernel_behind_a_tap_device_is_echoed_in_either_mode() {
    let directory = tempfile::tempdir().expect("a directory");
    for mode in ["complete", "paired"] {
        let namespace = Namespace::new();
        let capture = directory.path().join(mode).with_extension("pcap");
        echo(&namespace, "mtcp0", &namespace, configuration("tap", mode, &capture));
        let written = std::fs::metadata(&capture).expect("a capture").len();
        assert!(written > 10_000, "{written} bytes captured");
        assert!(!namespace.ip("-brief link").contains("mtcp0"), "the interface is gone");
    }
}

/// Opens a connection of the kernel whose stack ends without closing it: the interface is down when
/// the stack ends. Returns its end in the kernel, the stack's address, and the kernel's.
fn abandoned(namespace: &Namespace, config: &Config) -> (TcpStream, SocketAddr, SocketAddr) {
    let listener = namespace.run(|| TcpListener::bind("10.10.0.1:0")).expect("a listener");
    let remote = listener.local_addr().expect("its address");
    let mtcp = namespace.run(|| Mtcp::start(config.clone())).expect("a stack");
    namespace.await_queue("mtcp0");
    let mut context = mtcp.context(0).expect("a context");
    let socket = context.socket(Family::V4).expect("a socket");
    context.connect(socket, remote).expect("a connection");
    let local = context.getsockname(socket).expect("its address");
    let (peer, _) = listener.accept().expect("the same connection");
    namespace.ip("link set mtcp0 down");
    drop((context, mtcp));
    namespace.ip("link set mtcp0 up");
    (peer, local, remote)
}

/// Waits until the kernel detects that a device has no owner, which takes a moment.
fn await_lost_link(namespace: &Namespace) {
    let begin = Instant::now();
    while !namespace.ip("link show mtcp0").contains("NO-CARRIER") {
        let state = namespace.ip("-d link show mtcp0");
        assert!(begin.elapsed() < Duration::from_secs(20), "the link is not lost: {state}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn peers_of_a_killed_program_are_reset_when_the_kernel_knows_that_the_link_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let namespace = Namespace::new();
    namespace.ip("tuntap add mtcp0 mode tap");
    namespace.ip("addr add 10.10.0.1/24 dev mtcp0");
    namespace.ip("link set mtcp0 up");
    let config = configuration("tap", "complete", &directory.path().join("frames.pcap"));
    // The kernel drops the packets that it sends until it has detected that the device has an owner
    // again, which takes a varying time.
    for _ in 0..6 {
        let (mut peer, local, remote) = abandoned(&namespace, &config);
        await_lost_link(&namespace);
        let reset = || mtcp::peer_reset::reset(config.clone(), &[(local, remote)]);
        namespace.run(reset).expect("the device");
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        let told = peer.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::ConnectionReset));
    }
}

#[test]
fn the_kernel_across_a_cable_is_echoed_over_packet_sockets_and_xdp() {
    let directory = tempfile::tempdir().expect("a directory");
    for kind in ["packet", "xdp"] {
        let (kernel, ours) = (Namespace::new(), Namespace::new());
        kernel.join("far0", &ours, "mtcp0");
        let capture = directory.path().join(kind).with_extension("pcap");
        echo(&kernel, "far0", &ours, configuration(kind, "complete", &capture));
        assert!(!ours.ip("link show mtcp0").contains("xdp"), "the program is gone");
    }
}
