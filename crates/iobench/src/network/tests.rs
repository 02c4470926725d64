//! Tests of the path with sockets. Times are only compared with bounds that hold on any machine.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Number of datagrams that fit into a socket's receive buffer even if its reader is late.
const BURST: usize = 40;

/// If the test is unprivileged, runs it in a process of its own in a user namespace, because this
/// process has too many threads to enter one; true if that was done, or is not allowed.
pub(super) fn ran_in_user_namespace() -> bool {
    let test = thread::current().name().unwrap_or_default().to_owned();
    // With one test thread the harness runs tests on the main thread, which can enter by itself.
    if namespace::has_capabilities() || test == "main" {
        return false;
    }
    let mut command = Command::new("/proc/self/exe");
    command.args([&test, "--exact", "--test-threads=1"]);
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ];
    let become_root = move || {
        ::sys::namespace::leave_with_user()?;
        maps.iter().try_for_each(|(path, text)| fs::write(path, text))
    };
    // SAFETY: between fork and exec the closure only makes system calls; short paths allocate
    // nothing.
    unsafe { command.pre_exec(become_root) };
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            testkit::skip(&test, &format!("needs root or a user namespace: {error}"));
            return true;
        }
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    true
}

/// Like [`ran_in_user_namespace`], for a test that needs a TUN device.
fn ran_elsewhere() -> bool {
    match fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => ran_in_user_namespace(),
        Err(error) => {
            let test = thread::current().name().unwrap_or_default().to_owned();
            testkit::skip(&test, &format!("/dev/net/tun cannot be opened: {error}"));
            true
        }
    }
}

fn network(conditions: &str) -> Network {
    Network::create(&conditions.parse().unwrap(), &Options::default()).unwrap()
}

/// Runs `action` in the server's namespace.
fn at_server<T>(network: &Network, action: impl FnOnce(IpAddr) -> T) -> T {
    let _entered = Entered::new(&network.server_namespace()).unwrap();
    action(network.server_address())
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < TIME_LIMIT, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Panics unless the counters are consistent.
fn balanced(counters: &DirectionCounters) {
    let c = counters;
    let dropped = c.lost + c.queue_full + c.flight_full + c.foreign + c.refused;
    assert_eq!(c.received, c.delivered + dropped + c.flying, "{c:?}");
}

/// Returns a socket on each side, the client's connected to the server's.
fn datagram_sockets(network: &Network) -> (UdpSocket, UdpSocket) {
    let server = at_server(network, |address| UdpSocket::bind((address, 0)).unwrap());
    server.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let client = {
        let _entered = network.enter_client().unwrap();
        UdpSocket::bind((network.client_addresses()[0], 0)).unwrap()
    };
    client.connect(server.local_addr().unwrap()).unwrap();
    (client, server)
}

fn connection(network: &Network) -> (TcpStream, TcpStream) {
    let listener = at_server(network, |address| TcpListener::bind((address, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let client = {
        let _entered = network.enter_client().unwrap();
        TcpStream::connect_timeout(&address, TIME_LIMIT).unwrap()
    };
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    (client, server)
}

/// Sends numbered datagrams in bursts and returns the numbers that arrived.
fn send_numbered(network: &Network, bursts: usize) -> Vec<u32> {
    let (client, server) = datagram_sockets(network);
    let carried = || {
        let counters = network.counters().unwrap().to_server;
        balanced(&counters);
        (counters.received - counters.foreign, counters.flying)
    };
    let mut arrived = Vec::new();
    server.set_nonblocking(true).unwrap();
    for burst in 0..bursts {
        for index in 0..BURST {
            let number = (burst * BURST + index) as u32;
            client.send(&number.to_ne_bytes()).unwrap();
        }
        let sent = ((burst + 1) * BURST) as u64;
        wait_until("the burst has been carried", || carried() == (sent, 0));
        let mut buffer = [0_u8; 4];
        while let Ok(length) = server.recv(&mut buffer) {
            assert_eq!(length, 4);
            arrived.push(u32::from_ne_bytes(buffer));
        }
    }
    arrived
}

#[test]
fn a_round_trip_takes_at_least_twice_the_delay() {
    if ran_elsewhere() {
        return;
    }
    let network = network("delay=10ms");
    let (mut client, mut server) = connection(&network);
    let mut byte = [0_u8];
    for _ in 0..5 {
        let begun = Instant::now();
        client.write_all(b"a").unwrap();
        server.read_exact(&mut byte).unwrap();
        server.write_all(&byte).unwrap();
        client.read_exact(&mut byte).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(20), "{:?}", begun.elapsed());
    }
    // A handshake and ten bytes; then both sides send nothing more.
    let carried = || {
        let counters = network.counters().unwrap();
        let flying = counters.to_server.flying + counters.to_client.flying;
        (counters.to_server.delivered + counters.to_client.delivered, flying)
    };
    wait_until("all has been delivered", || carried().0 >= 13 && carried().1 == 0);
    assert!(network.take_lateness().len() >= 13);
    assert!(network.take_lateness().len() < 13, "taking empties the histogram");
    let counters = network.counters().unwrap();
    balanced(&counters.to_server);
    balanced(&counters.to_client);
    assert!(counters.relay_cpu_ns > 0);
}

#[test]
fn exactly_the_packets_counted_as_lost_are_missing() {
    if ran_elsewhere() {
        return;
    }
    let network = network("loss=0.1,delay=1ms");
    let arrived = send_numbered(&network, 25);
    let counters = network.counters().unwrap().to_server;
    assert!(counters.lost > 0 && counters.queue_full == 0, "{counters:?}");
    assert_eq!(arrived.len() as u64, (25 * BURST) as u64 - counters.lost);
    assert_eq!(arrived.len() as u64, counters.delivered);
    assert_eq!(counters.device_full, 0);
}

#[test]
fn losses_are_repeated_with_the_seed() {
    if ran_elsewhere() {
        return;
    }
    let lost = |seed| {
        let conditions = "loss=0.2".parse().unwrap();
        let options = Options { seed, ..Options::default() };
        let network = Network::create(&conditions, &options).unwrap();
        // The relay does not carry IPv6 packets, so they do not disturb the sequence.
        send_numbered(&network, 5)
    };
    assert_eq!(lost(7), lost(7));
    assert_ne!(lost(7), lost(8));
}

#[test]
fn jitter_keeps_the_order() {
    if ran_elsewhere() {
        return;
    }
    let arrived = send_numbered(&network("delay=5ms,jitter=5ms"), 5);
    assert_eq!(arrived.len(), 5 * BURST);
    assert!(arrived.is_sorted());
}

#[test]
fn nothing_is_dropped_once_the_path_is_lossless() {
    if ran_elsewhere() {
        return;
    }
    let network = network("loss=1");
    network.lossless_from(0);
    assert_eq!(send_numbered(&network, 2).len(), 2 * BURST);
    network.lossless_from(u64::MAX);
    let (client, _server) = datagram_sockets(&network);
    client.send(b"gone").unwrap();
    wait_until("the datagram is lost", || network.counters().unwrap().to_server.lost == 1);
}

#[test]
fn bytes_take_the_time_that_the_rate_gives_them() {
    if ran_elsewhere() {
        return;
    }
    let network = network("rate=4Mbit,queue=1MiB");
    let (client, server) = datagram_sockets(&network);
    let begun = Instant::now();
    for _ in 0..BURST {
        client.send(&[7; 972]).unwrap();
    }
    let mut buffer = [0_u8; 1500];
    for _ in 0..BURST {
        assert_eq!(server.recv(&mut buffer).unwrap(), 972);
    }
    // With headers, 1000 bytes take 2 ms each.
    assert!(begun.elapsed() >= Duration::from_millis(2 * BURST as u64), "{:?}", begun.elapsed());
}

#[test]
fn what_the_queue_cannot_hold_is_counted() {
    if ran_elsewhere() {
        return;
    }
    let network = network("rate=1kbit,queue=3000");
    let (client, _server) = datagram_sockets(&network);
    for _ in 0..BURST {
        client.send(&[7; 972]).unwrap();
    }
    let counters = || network.counters().unwrap().to_server;
    wait_until("all have come", || counters().received - counters().foreign == BURST as u64);
    let counters = counters();
    balanced(&counters);
    assert!(counters.queue_full > 0 && counters.flying > 0, "{counters:?}");
}

#[test]
fn a_stream_survives_losses() {
    if ran_elsewhere() {
        return;
    }
    let network = network("delay=1ms,loss=0.05");
    let (mut client, mut server) = connection(&network);
    let sent: Vec<u8> =
        (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let expected = sent.clone();
    let sender = thread::spawn(move || {
        client.write_all(&sent).unwrap();
        client
    });
    let mut received = vec![0; expected.len()];
    server.read_exact(&mut received).unwrap();
    drop(sender.join().unwrap());
    assert!(received == expected, "the stream was damaged");
    assert!(network.counters().unwrap().to_server.lost > 0);
}

#[test]
fn a_reset_is_never_lost() {
    if ran_elsewhere() {
        return;
    }
    let network = network("loss=1");
    network.lossless_from(0);
    let (client, mut server) = connection(&network);
    wait_until("the handshake is over", || network.counters().unwrap().to_server.flying == 0);
    network.lossless_from(u64::MAX);
    crate::sys::socket::set_close_by_reset(client.as_raw_fd()).unwrap();
    drop(client);
    let error = server.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn every_client_address_reaches_the_server() {
    if ran_elsewhere() {
        return;
    }
    let options = Options { client_addresses: 3, ..Options::default() };
    let network = Network::create(&Conditions::default(), &options).unwrap();
    assert_eq!(network.client_addresses().len(), 3);
    let server = at_server(&network, |address| UdpSocket::bind((address, 0)).unwrap());
    server.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    for &address in network.client_addresses() {
        let _entered = network.enter_client().unwrap();
        let client = UdpSocket::bind((address, 0)).unwrap();
        client.send_to(b"here", server.local_addr().unwrap()).unwrap();
        let (_, from): (usize, SocketAddr) = server.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.ip(), address);
    }
    for count in [0, 251] {
        let options = Options { client_addresses: count, ..Options::default() };
        let error = Network::create(&Conditions::default(), &options).err().unwrap();
        assert!(error.to_string().contains("choose 1 to 250"), "{error}");
    }
}

#[test]
fn long_packets_pass_a_wide_path_whole() {
    if ran_elsewhere() {
        return;
    }
    let network = network("mtu=9000");
    let (client, server) = datagram_sockets(&network);
    client.send(&[5; 8_972]).unwrap();
    assert_eq!(server.recv(&mut [0; 16_000]).unwrap(), 8_972);
    // The relay writes its counters after it has delivered.
    let carried = || network.counters().unwrap().to_server.delivered;
    wait_until("it is in the counters", || carried() > 0);
    assert_eq!(carried(), 1, "it was not fragmented");
}

/// Names of the network devices in the calling thread's namespace.
pub(super) fn devices() -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

#[test]
fn nothing_is_seen_outside_and_nothing_is_left() {
    if ran_elsewhere() {
        return;
    }
    let before = (namespace_name(), devices());
    let network = network("delay=1ms");
    assert_eq!((namespace_name(), devices()), before);
    let inside = {
        let _entered = network.enter_client().unwrap();
        assert_eq!(devices(), ["lo", "path"]);
        namespace_name()
    };
    assert_ne!(inside, before.0);
    assert_eq!((namespace_name(), devices()), before);
    assert!(held(&inside) > 0);
    let relay = format!("/proc/self/task/{}", network.relay_thread());
    assert!(fs::exists(&relay).unwrap());
    drop(network);
    assert_eq!(held(&inside), 0, "descriptors of the namespace are still open");
    assert_eq!(devices(), before.1);
    wait_until("the relay is gone", || !fs::exists(&relay).unwrap());
}

/// Returns the kernel's name of the calling thread's network namespace.
pub(super) fn namespace_name() -> String {
    fs::read_link("/proc/thread-self/ns/net").unwrap().to_str().unwrap().to_owned()
}

/// Returns the number of this process's descriptors that refer to a namespace.
pub(super) fn held(namespace: &str) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    // Other tests open and close descriptors at the same time.
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    targets.filter(|target| target.to_str() == Some(namespace)).count()
}
