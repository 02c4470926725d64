//! Provides two network namespaces connected by a veth, whose kernels communicate.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;
use testkit::Namespace;
use testkit::retried;
use testkit::skip;

/// Time-out of tests; far longer than any step needs.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);
pub(crate) const INTERFACE: &str = "ours";
pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const THEIR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Addresses that our kernel has.
pub(crate) const OURS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];
/// Addresses that their kernel has.
pub(crate) const THEIRS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
];
/// Addresses on our side that our kernel does not know.
pub(crate) const OWNED: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3)),
];

/// Both ends of the veth.
pub(crate) struct VethPair {
    pub(crate) ours: Namespace,
    pub(crate) theirs: Namespace,
}

impl VethPair {
    /// Creates a veth whose ends have this number of queues.
    pub(crate) fn new(queues: usize) -> VethPair {
        let (ours, theirs) = (Namespace::new(), Namespace::new());
        if queues == 1 {
            ours.join(INTERFACE, &theirs, "theirs");
        } else {
            let count = format!("numrxqueues {queues} numtxqueues {queues}");
            theirs.run(|| {
                // SAFETY: gettid has no arguments and cannot fail.
                let thread = unsafe { libc::gettid() };
                let peer = format!("peer name theirs {count} netns {thread}");
                ours.ip(&format!("link add {INTERFACE} {count} type veth {peer}"));
            });
        }
        // The default of the machine may be an algorithm that paces.
        theirs.set("ipv4/tcp_congestion_control", "reno");
        configure(&ours, INTERFACE, OUR_MAC, OURS);
        configure(&theirs, "theirs", THEIR_MAC, THEIRS);
        let veth_pair = VethPair { ours, theirs };
        veth_pair.introduce();
        veth_pair
    }

    /// The output of ip(8) for our interface.
    pub(crate) fn show(&self) -> String {
        self.ours.ip(&format!("link show {INTERFACE}"))
    }

    /// Configures routes to the addresses of the other side's kernel on each side.
    fn introduce(&self) {
        for address in OURS {
            let line = format!("neigh replace {address} lladdr {} dev theirs", mac(OUR_MAC));
            self.theirs.ip(&line);
        }
        for address in THEIRS {
            let line = format!("neigh replace {address} lladdr {} dev {INTERFACE}", mac(THEIR_MAC));
            self.ours.ip(&line);
        }
    }

    /// Checks that the other side's kernel communicates with ours: TCP on this port, in both
    /// directions, and a ping.
    pub(crate) fn assert_kernels_talk(&self, port: u16) {
        for address in OURS {
            self.assert_kernels_talk_over(address, port);
        }
        self.theirs.run(ping_our_kernel);
    }

    /// Like [`VethPair::assert_kernels_talk`], with TCP to only one address.
    pub(crate) fn assert_kernels_talk_over(&self, address: IpAddr, port: u16) {
        let to = SocketAddr::new(address, port);
        let listener = self.ours.run(|| TcpListener::bind(to).expect("the port is free"));
        let mut client = self.theirs.run(|| connect(to).expect("our kernel answers"));
        let (mut server, _) = listener.accept().expect("a connection");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
        }
        let question = vec![7; 50_000];
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&question).expect("it is sent"));
            let mut heard = vec![0; question.len()];
            server.read_exact(&mut heard).expect("it arrives");
            assert_eq!(heard, question);
        });
        server.write_all(b"answer").expect("it is sent");
        let mut heard = [0; 6];
        client.read_exact(&mut heard).expect("it arrives");
        assert_eq!(&heard, b"answer");
    }
}

fn configure(side: &Namespace, interface: &str, address: [u8; 6], addresses: [IpAddr; 2]) {
    side.ip(&format!("link set {interface} address {} up", mac(address)));
    side.ip(&format!("addr add {}/24 dev {interface}", addresses[0]));
    side.add_v6(&addresses[1].to_string(), 64, interface);
}

fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// Opens a connection of the calling thread's kernel.
pub(crate) fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&to, TIME_LIMIT)
}

/// Sends an echo request and waits for the reply (RFC 792).
fn ping_our_kernel() {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect("root");
    socket.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
    // Echo request, code 0, checksum, identifier 0x1234, sequence 1.
    let request = [8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1];
    socket.send_to(&request, &SocketAddr::new(OURS[0], 0).into()).expect("it is sent");
    let mut answer = [0; 128];
    loop {
        let length = retried(|| (&socket).read(&mut answer)).expect("our kernel answers a ping");
        if length >= 28 && answer[20] == 0 && answer[24..28] == request[4..] {
            return;
        }
    }
}

/// The first two numbers of the kernel's release.
pub(crate) fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().expect("a number"));
    let mut next = || numbers.next().expect("a release has two numbers");
    (next(), next())
}

/// Whether a veth reports its number of queues; if not, prints that the test skips this part.
pub(crate) fn tells_queues(test: &str) -> bool {
    let tells = kernel() >= (5, 13);
    if !tells {
        skip(test, "virtual cables tell their number of queues from Linux 5.13 on");
    }
    tells
}
