//! Tests changes below a connection during a transfer: the link goes down and up; hardware
//! addresses, packet sizes and routes change.

use crate::exchange::{Plan, content, expected_answer};
use crate::site::{
    Kind, OUR_INTERFACE, OURS, PORT, Site, THEIR_INTERFACE, THEIRS, TIME_LIMIT, Watch,
};
use mtcp::config::Mode;
use mtcp::{Context, Descriptor, Family};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// More bytes than all buffers between both ends hold.
const BYTES: u64 = 4 << 20;
/// Bytes that are transferred before the change.
const BEFORE: u64 = 1 << 20;
/// The kernel's receive buffer, so small that the rest is not transferred before the change.
const RECEIVE_BUFFER: usize = 64 << 10;

/// Opens a blocking connection of the kernel to our server.
fn connect(site: &Site) -> TcpStream {
    let stream = site.theirs.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(RECEIVE_BUFFER).expect("it is set");
        let to = SocketAddr::new(OURS[0], PORT);
        socket.connect_timeout(&to.into(), TIME_LIMIT).expect("our server answers");
        TcpStream::from(socket)
    });
    stream.set_read_timeout(Some(TIME_LIMIT)).expect("it is set");
    stream.set_write_timeout(Some(TIME_LIMIT)).expect("it is set");
    stream
}

/// Sends content from one position to another.
fn send(stream: &mut TcpStream, plan: &Plan, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let piece = content(plan.seed, at, to - at);
        stream.write_all(piece).unwrap_or_else(|error| panic!("at {at} of {to}: {error}"));
        at += piece.len() as u64;
    }
}

/// Transfers in one direction, with a change in the middle.
fn transfer(site: &Site, up: bool, change: impl Fn()) {
    // After the change the kernel always has data to send, and so asks for its neighbour again.
    let (up_bytes, down_bytes) = if up { (BYTES, 0) } else { (1, BYTES) };
    let plan = Plan { up_bytes, down_bytes, seed: 11 };
    let mut stream = connect(site);
    stream.write_all(&plan.header()).expect("it is sent");
    let expected = expected_answer(&plan);
    let mut answer = vec![0; expected.len()];
    if up {
        send(&mut stream, &plan, 0, BEFORE);
        change();
        send(&mut stream, &plan, BEFORE, BYTES);
    }
    let (before, after) = answer.split_at_mut(if up { 0 } else { BEFORE as usize });
    stream.read_exact(before).expect("what comes before the change");
    if !up {
        change();
        send(&mut stream, &plan, 0, 1);
    }
    stream.shutdown(Shutdown::Write).expect("it is connected");
    let kind = site.kind;
    let came = stream.read_exact(after);
    came.unwrap_or_else(|error| panic!("{kind:?}, to us: {up}, after the change: {error}"));
    assert!(answer == expected, "{kind:?}, to us: {up}: the data differ");
}

/// Transfers in both directions with a change in each, and afterwards without.
fn transfers_across(kind: Kind, mode: Mode, change: impl Fn(&Site, &Watch, bool)) {
    let site = Site::new(kind);
    let mut config = site.config();
    config.engine.mode = mode;
    let mtcp = site.start(config);
    let (outcome, _) = site.while_we_serve(&mtcp, |watch| {
        for up in [true, false] {
            transfer(&site, up, || change(&site, watch, up));
        }
        for up in [true, false] {
            transfer(&site, up, || ());
        }
    });
    outcome.expect(4, &format!("{kind:?}, {mode:?}"));
}

/// Does the same on each of these devices at the same time, because the test mostly waits.
fn each_survives(kinds: &[Kind], change: impl Fn(&Site, &Watch, bool) + Sync) {
    thread::scope(|scope| {
        for &kind in kinds {
            let change = &change;
            scope.spawn(move || transfers_across(kind, Mode::Complete, change));
        }
    });
}

fn interface_of_ours(site: &Site) -> &'static str {
    if site.kind == Kind::Tap { THEIR_INTERFACE } else { OUR_INTERFACE }
}

#[test]
fn a_transfer_survives_a_link_that_goes_down_and_comes_back() {
    let down_and_up = |site: &Site, watch: &Watch, up: bool| {
        let interface = interface_of_ours(site);
        site.home().ip(&format!("link set {interface} down"));
        // If we send, we do so while the link is down.
        if !up {
            let before = watch.counters().packets_sent;
            watch.await_counters(|now| now.packets_sent > before);
        }
        site.home().ip(&format!("link set {interface} up"));
        site.home().await_queue(interface);
    };
    each_survives(&[Kind::Xdp, Kind::Native, Kind::Packet, Kind::Tap], down_and_up);
    transfers_across(Kind::Xdp, Mode::Paired, down_and_up);
}

#[test]
fn a_transfer_survives_another_hardware_address_of_the_peer() {
    let last = AtomicU8::new(0x10);
    let change = |site: &Site, _: &Watch, _: bool| {
        let address = format!("02:00:00:00:00:{:02x}", last.fetch_add(1, Relaxed));
        if site.kind == Kind::Shared {
            // Otherwise our kernel, which knows the neighbours, accepts no change for a second.
            site.ours.set(&format!("ipv4/neigh/{OUR_INTERFACE}/locktime"), "0");
        }
        site.theirs.ip(&format!("link set {THEIR_INTERFACE} address {address}"));
    };
    each_survives(&[Kind::Xdp, Kind::Shared, Kind::Packet, Kind::Tap], change);
}

#[test]
fn a_transfer_survives_another_hardware_address_of_our_interface() {
    let last = AtomicU8::new(0x20);
    let change = |site: &Site, _: &Watch, _: bool| {
        let address = format!("02:00:00:00:00:{:02x}", last.fetch_add(1, Relaxed));
        site.ours.ip(&format!("link set {OUR_INTERFACE} address {address}"));
        // From now on a network card accepts only this address, and so the neighbours must use it.
        site.theirs
            .ip(&format!("neigh replace {} lladdr {address} dev {THEIR_INTERFACE}", OURS[0]));
    };
    each_survives(&[Kind::Xdp, Kind::Shared, Kind::Packet], change);
}

#[test]
fn a_transfer_survives_another_packet_size() {
    let change = |site: &Site, _: &Watch, up: bool| {
        let bytes = if up { 1300 } else { 900 };
        site.theirs.ip(&format!("link set {THEIR_INTERFACE} mtu {bytes}"));
        if site.kind != Kind::Tap {
            site.ours.ip(&format!("link set {OUR_INTERFACE} mtu {bytes}"));
        }
    };
    each_survives(&[Kind::Xdp, Kind::Shared, Kind::Packet, Kind::Tap], change);
}

#[test]
fn new_connections_announce_segments_that_fit_the_interface() {
    for kind in [Kind::Xdp, Kind::Shared, Kind::Packet] {
        let site = Site::new(kind);
        let mtcp = site.start(site.config());
        site.while_we_serve(&mtcp, |_| {
            for (mtu, segment) in [(1300, 1300 - 52), (1500, 1500 - 52)] {
                site.ours.ip(&format!("link set {OUR_INTERFACE} mtu {mtu}"));
                let begin = Instant::now();
                // The stack processes the change in its next turn.
                while segment_to_us(&site) != segment {
                    assert!(begin.elapsed() < TIME_LIMIT, "{kind:?}: never {segment} bytes");
                }
            }
        });
    }
}

/// The largest segment that the kernel sends to us on a new connection.
fn segment_to_us(site: &Site) -> u32 {
    let stream = Socket::from(connect(site));
    stream.shutdown(Shutdown::Both).expect("it is connected");
    stream.tcp_mss().expect("it is told")
}

/// Opens a connection of ours to a listener of the kernel, with a blocking socket.
fn dial(context: &mut Context, listener: &TcpListener, to: IpAddr) -> (Descriptor, TcpStream) {
    let socket = context.socket(Family::V4).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    context.connect(socket, SocketAddr::new(to, port)).expect("the kernel answers");
    let (peer, _) = listener.accept().expect("it is connected");
    peer.set_read_timeout(Some(TIME_LIMIT)).expect("it is set");
    (socket, peer)
}

fn listen(site: &Site) -> TcpListener {
    site.theirs.run(|| TcpListener::bind("0.0.0.0:0")).expect("a free port")
}

/// The engine sleeps, or the call does so in its place; neither may continue to sleep.
#[test]
fn a_call_that_waits_fails_when_the_interface_goes() {
    for kind in [Kind::Xdp, Kind::Shared, Kind::Packet, Kind::Tap] {
        for mode in [Mode::Complete, Mode::Paired] {
            let site = Site::new(kind);
            let mut config = site.config();
            config.engine.mode = mode;
            let mtcp = site.start(config);
            let listener = listen(&site);
            let (tell, told) = mpsc::channel();
            thread::spawn(move || {
                let mut context = mtcp.context(0).expect("it is free");
                let (socket, _peer) = dial(&mut context, &listener, THEIRS[0]);
                tell.send(None).expect("the test waits");
                let outcome = context.read(socket, &mut [0; 8]).map_err(|e| e.raw_os_error());
                tell.send(Some(outcome)).expect("the test waits");
            });
            assert_eq!(told.recv_timeout(TIME_LIMIT), Ok(None), "{kind:?}, {mode:?}: connected");
            site.home().ip(&format!("link delete {}", interface_of_ours(&site)));
            let outcome = told.recv_timeout(TIME_LIMIT);
            let outcome = outcome.unwrap_or_else(|_| panic!("{kind:?}, {mode:?}: it waits on"));
            assert_eq!(outcome, Some(Err(Some(libc::ENXIO))), "{kind:?}, {mode:?}");
        }
    }
}

/// If the kernel has our addresses, the stack uses its routes and neighbours.
#[test]
fn a_transfer_survives_other_routes_and_neighbours() {
    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const NOBODY: &str = "lladdr 02:00:00:00:00:77";
    let site = Site::new(Kind::Shared);
    site.theirs.ip(&format!("address add {FAR}/32 dev lo"));
    let route = |via: &str| drop(site.ours.ip(&format!("route replace {FAR} via {via}")));
    let neighbour =
        |who: &str| drop(site.ours.ip(&format!("neigh {who} dev {OUR_INTERFACE} nud permanent")));
    neighbour(&format!("replace 10.9.0.77 {NOBODY}"));
    route("10.9.0.1");
    let mtcp = site.start(site.config());
    let mut context = mtcp.context(0).expect("it is free");
    let listener = listen(&site);
    let (socket, mut peer) = dial(&mut context, &listener, FAR);
    let mut sent = 0;
    // Sends to a destination that is lost until that is detected, and then on the route where it is
    // found.
    let mut lose_and_find = |lose: &dyn Fn(), find: &dyn Fn()| {
        lose();
        // A busy stack processes network messages only from time to time.
        (0..2048).for_each(|_| context.turn().expect("the device is there"));
        let before = context.counters().timeouts;
        let data = content(5, sent, 40_000);
        let bytes = context.write(socket, data).expect("there is room");
        await_turn(&mut context, |context| context.counters().timeouts > before);
        find();
        let mut came = vec![0; bytes];
        peer.set_nonblocking(true).expect("it is set");
        let mut at = 0;
        await_turn(&mut context, |_| {
            match peer.read(&mut came[at..]) {
                Ok(bytes) => at += bytes,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            at == bytes
        });
        assert!(came == data[..bytes], "the data differ");
        sent += bytes as u64;
    };
    lose_and_find(&|| route("10.9.0.77"), &|| route("10.9.0.1"));
    let theirs = hardware_address(&site);
    lose_and_find(&|| neighbour(&format!("replace 10.9.0.1 {NOBODY}")), &|| {
        neighbour(&format!("replace 10.9.0.1 lladdr {theirs}"));
    });
}

/// Runs our stack until a condition is true.
#[track_caller]
fn await_turn(context: &mut Context, mut is_so: impl FnMut(&mut Context) -> bool) {
    let begin = Instant::now();
    while !is_so(context) {
        context.turn().expect("the device is there");
        assert!(begin.elapsed() < TIME_LIMIT, "it never is: {:?}", context.counters());
        thread::yield_now();
    }
}

fn hardware_address(site: &Site) -> String {
    let shown = site.theirs.ip(&format!("-brief link show {THEIR_INTERFACE}"));
    let address = shown.split_whitespace().nth(2);
    address.unwrap_or_else(|| panic!("no address: {shown}")).to_owned()
}
