//! Runs scripts as packetdrill does: dlopen(3) loads the library, calls use the interface, and the
//! test builds and parses the packets.

#[path = "../src/interface.rs"]
#[allow(unreachable_pub, reason = "it is the library's module, seen from a program")]
mod interface;

use interface::Interface;
use mtcp_proto::Sequence;
use mtcp_proto::wire::checksum;
use mtcp_proto::wire::ip::{Ecn, IpHeader};
use mtcp_proto::wire::tcp::{Flags, Options, TcpHeader};
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::path::PathBuf;

const FIN: Flags = Flags::FIN;
const SYN: Flags = Flags::SYN;
const RST: Flags = Flags::RST;
const ACK: Flags = Flags::ACK;
const NONE: Flags = Flags(0);
const OUR_PORT: u16 = 8080;
const THEIR_PORT: u16 = 40_000;
const THEIR_FIRST: u32 = 1000;
const MAXIMUM_SEGMENT: u16 = 1000;

/// The path of the library, which cargo builds beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let name = "libmtcp_packetdrill.so";
    let places = test.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let found = places.filter(|path| path.exists()).last();
    found.expect("`cargo build -p mtcp-packetdrill`, with the test's options, builds the library")
}

/// A running script.
struct Script {
    calls: Interface,
    ours: IpAddr,
    theirs: IpAddr,
    /// The stack's first sequence number.
    first: u32,
    port: u16,
}

impl Drop for Script {
    fn drop(&mut self) {
        // SAFETY: no call follows this one.
        unsafe { (self.calls.free)(self.calls.userdata) };
    }
}

/// A packet of the stack, with sequence numbers relative to the beginning of each direction, and
/// the time at which it was sent, in microseconds.
#[derive(Debug)]
struct Sent {
    header: TcpHeader,
    sequence: u32,
    data: Vec<u8>,
    time_us: i64,
}

impl Script {
    fn new(ours: &str, theirs: &str) -> Script {
        let calls = load(&format!("local={ours}"));
        assert!(!calls.userdata.is_null());
        let parse = |text: &str| text.parse().expect("an address");
        Script { calls, ours: parse(ours), theirs: parse(theirs), first: 0, port: OUR_PORT }
    }

    fn now_us(&self) -> i64 {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: the structure is valid for writing.
        let told = unsafe {
            (self.calls.gettimeofday)(self.calls.userdata, &mut time, std::ptr::null_mut())
        };
        assert_eq!(told, 0);
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    fn sleep_ms(&self, time_ms: u32) {
        // SAFETY: the call takes only numbers.
        assert_eq!(unsafe { (self.calls.usleep)(self.calls.userdata, time_ms * 1000) }, 0);
    }

    fn address(&self, ip: IpAddr, port: u16) -> Vec<u8> {
        let mut bytes = vec![0; if ip.is_ipv4() { 16 } else { 28 }];
        let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        match ip {
            IpAddr::V4(ip) => bytes[4..8].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[8..24].copy_from_slice(&ip.octets()),
        }
        bytes
    }

    fn socket(&self, flags: i32) -> i32 {
        let family = if self.ours.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | flags;
        // SAFETY: the call takes only numbers.
        let socket = unsafe { (self.calls.socket)(self.calls.userdata, family, kind, 0) };
        assert!(socket > 2);
        socket
    }

    fn listen(&self) -> i32 {
        let (socket, at) = (self.socket(0), self.address(self.ours, OUR_PORT));
        let data = self.calls.userdata;
        // SAFETY: the address is valid for its length.
        let bound = unsafe { (self.calls.bind)(data, socket, at.as_ptr().cast(), at.len() as u32) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call takes only numbers.
        assert_eq!(unsafe { (self.calls.listen)(data, socket, 10) }, 0);
        socket
    }

    fn accept(&self, listener: i32) -> i32 {
        let (mut from, mut bytes) = ([0_u8; 28], 28);
        let data = self.calls.userdata;
        // SAFETY: the pointers are to room for an address and its length.
        let new =
            unsafe { (self.calls.accept)(data, listener, from.as_mut_ptr().cast(), &mut bytes) };
        assert!(new > 2, "{}", std::io::Error::last_os_error());
        let peer = self.address(self.theirs, THEIR_PORT);
        assert_eq!(from[..bytes as usize], peer);
        new
    }

    fn write(&self, socket: i32, data: &[u8]) {
        let to = self.calls.userdata;
        // SAFETY: the data is valid for its length.
        let sent = unsafe { (self.calls.write)(to, socket, data.as_ptr().cast(), data.len()) };
        assert_eq!(sent, data.len() as isize, "{}", std::io::Error::last_os_error());
    }

    fn read(&self, socket: i32) -> Result<Vec<u8>, i32> {
        let mut room = [0_u8; 4096];
        let from = self.calls.userdata;
        // SAFETY: the room is valid for its length.
        let count = unsafe {
            let (to, flags) = (room.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
            (self.calls.recv)(from, socket, to, room.len(), flags)
        };
        match usize::try_from(count) {
            Ok(count) => Ok(room[..count].to_vec()),
            Err(_) => Err(std::io::Error::last_os_error().raw_os_error().expect("an errno")),
        }
    }

    fn close(&self, socket: i32) {
        // SAFETY: the call takes only numbers.
        assert_eq!(unsafe { (self.calls.close)(self.calls.userdata, socket) }, 0);
    }

    fn ready(&self, socket: i32) -> i16 {
        let mut one = libc::pollfd { fd: socket, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: the pointer is to one valid structure.
        let count = unsafe { (self.calls.poll)(self.calls.userdata, &mut one, 1, 0) };
        assert_eq!(count, i32::from(one.revents != 0));
        one.revents
    }

    /// Passes a segment to the stack, with numbers relative to the beginning of each direction.
    fn inject(&self, flags: Flags, sequence: u32, acknowledgement: u32, data: &[u8]) {
        let mut options = Options::default();
        if flags.contains(SYN) {
            options.maximum_segment = Some(MAXIMUM_SEGMENT);
        }
        let header = TcpHeader {
            source_port: THEIR_PORT,
            destination_port: self.port,
            sequence: Sequence(THEIR_FIRST.wrapping_add(sequence)),
            acknowledgement: Sequence(self.first.wrapping_add(acknowledgement)),
            flags,
            window: 32_000,
            options,
            ..TcpHeader::default()
        };
        let ip = IpHeader {
            source: self.theirs,
            destination: self.ours,
            protocol: 6,
            ecn: Ecn::NotCapable,
            hop_limit: 64,
        };
        let mut packet = vec![0; ip.bytes() + header.bytes() + data.len()];
        ip.write(header.bytes() + data.len(), &mut packet);
        let segment = &mut packet[ip.bytes()..];
        header.write(segment);
        segment[header.bytes()..].copy_from_slice(data);
        checksum::fill_tcp(ip.source, ip.destination, segment);
        let to = self.calls.userdata;
        // SAFETY: the packet is valid for its length.
        let taken = unsafe { (self.calls.netdev_send)(to, packet.as_ptr().cast(), packet.len()) };
        assert_eq!(taken, 0);
    }

    /// Takes the next packet of the stack.
    fn next(&self) -> Option<Sent> {
        let (mut room, mut time_us) = ([0_u8; 65_536], 0);
        let (mut count, from) = (room.len(), self.calls.userdata);
        // SAFETY: the room is valid for its length.
        let received = unsafe {
            (self.calls.netdev_receive)(from, room.as_mut_ptr().cast(), &mut count, &mut time_us)
        };
        assert_eq!(received, 0);
        if count == 0 {
            return None;
        }
        let (ip, segment) = IpHeader::parse(&room[..count]).expect("a packet");
        assert_eq!((ip.source, ip.destination), (self.ours, self.theirs));
        assert!(checksum::verify_tcp(ip.source, ip.destination, segment));
        let (header, data) = TcpHeader::parse(segment).expect("a segment");
        let sequence = header.sequence.0.wrapping_sub(self.first);
        Some(Sent { header, sequence, data: data.to_vec(), time_us })
    }

    /// Expects a packet with these flags and numbers.
    #[track_caller]
    fn expect(&self, flags: Flags, sequence: u32, acknowledgement: u32, data: &[u8]) -> Sent {
        let sent = self.next().expect("a packet");
        // The sender decides about PSH.
        let important = Flags(sent.header.flags.0 & !Flags::PSH.0);
        let told = sent.header.acknowledgement.0.wrapping_sub(THEIR_FIRST);
        assert_eq!(important, flags, "{sent:?}");
        assert_eq!((sent.sequence, told), (sequence, acknowledgement), "{sent:?}");
        assert!(sent.data == data, "{sent:?}");
        sent
    }

    /// Opens a connection and accepts it.
    fn established(&mut self, listener: i32) -> i32 {
        self.inject(SYN, 0, 0, &[]);
        let answer = self.next().expect("a SYN-ACK");
        assert_eq!(answer.header.flags, SYN.with(ACK));
        self.first = answer.header.sequence.0;
        assert_eq!(answer.header.acknowledgement, Sequence(THEIR_FIRST + 1));
        self.inject(ACK, 1, 1, &[]);
        self.accept(listener)
    }
}

fn load(flags: &str) -> Interface {
    type Init = unsafe extern "C" fn(*const c_char, *mut Interface);
    let path = CString::new(library().into_os_string().into_encoded_bytes()).expect("a path");
    let flags = CString::new(flags).expect("no zero");
    let mut calls = MaybeUninit::uninit();
    // SAFETY: the library is ours, and its function has the declared signature; it writes the
    // interface.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "the library can be loaded");
        let init = libc::dlsym(handle, c"packetdrill_interface_init".as_ptr());
        assert!(!init.is_null(), "the function is exported");
        let init = std::mem::transmute::<*mut c_void, Init>(init);
        init(flags.as_ptr(), calls.as_mut_ptr());
        calls.assume_init()
    }
}

const FAMILIES: [(&str, &str); 2] =
    [("192.168.0.1", "192.0.2.1"), ("fd3d:fa7b:d17d::1", "fd3d:fa7b:d17d:8888::1")];

#[test]
fn a_request_is_answered_and_the_connection_closed() {
    for (ours, theirs) in FAMILIES {
        let mut script = Script::new(ours, theirs);
        let listener = script.listen();
        assert_eq!(script.ready(listener), 0);
        let socket = script.established(listener);
        assert_eq!(script.ready(socket), libc::POLLOUT);
        assert_eq!(script.read(socket), Err(libc::EAGAIN));
        script.inject(ACK, 1, 1, b"request");
        assert_eq!(script.ready(socket), libc::POLLIN | libc::POLLOUT);
        assert_eq!(script.read(socket).as_deref(), Ok(&b"request"[..]));
        // The first acknowledgements are not delayed.
        script.expect(ACK, 1, 8, &[]);
        script.write(socket, b"an answer");
        script.expect(ACK, 1, 8, b"an answer");
        script.inject(ACK, 8, 10, &[]);
        script.inject(FIN.with(ACK), 8, 10, &[]);
        script.expect(ACK, 10, 9, &[]);
        assert_eq!(script.read(socket).as_deref(), Ok(&[][..]));
        script.close(socket);
        script.expect(FIN.with(ACK), 10, 9, &[]);
        script.inject(ACK, 9, 11, &[]);
        assert!(script.next().is_none(), "nothing is left to send, ever");
    }
}

#[test]
fn data_is_sent_again_after_virtual_time_only() {
    let mut script = Script::new("192.168.0.1", "192.0.2.1");
    let listener = script.listen();
    let socket = script.established(listener);
    let begin_us = script.now_us();
    script.write(socket, &[7; 100]);
    let mut last = script.expect(ACK, 1, 1, &[7; 100]);
    assert_eq!(last.time_us, begin_us);
    // A tail loss probe may be sent first (RFC 8985); time-outs double (RFC 6298, section 5.5).
    let mut waits = Vec::new();
    for _ in 0..6 {
        let again = script.expect(ACK, 1, 1, &[7; 100]);
        waits.push(again.time_us - last.time_us);
        last = again;
    }
    let end = &waits[2..];
    assert!(end.windows(2).all(|two| two[1].abs_diff(two[0] * 2) <= 2000), "{waits:?}");
    assert!(end.iter().all(|wait| *wait >= 200_000), "{waits:?}");
    assert_eq!(script.now_us(), last.time_us);
    script.inject(ACK, 1, 101, &[]);
    script.sleep_ms(600_000);
    assert!(script.next().is_none(), "all is acknowledged");
}

#[test]
fn an_acknowledgement_that_is_delayed_comes_in_time() {
    let mut script = Script::new("192.168.0.1", "192.0.2.1");
    let listener = script.listen();
    let socket = script.established(listener);
    // The rounds pass the beginning, in which acknowledgements are not delayed.
    for round in 0..64 {
        script.inject(ACK, 1 + round * 100, 1, &[1; 100]);
        script.sleep_ms(500);
    }
    while script.next().is_some() {}
    let begin_us = script.now_us();
    script.inject(ACK, 6401, 1, &[1; 100]);
    let ack = script.expect(ACK, 1, 6501, &[]);
    assert!(ack.time_us - begin_us <= 500_000, "RFC 5681, section 4.2");
    let mut all = 0;
    while let Ok(data) = script.read(socket) {
        all += data.len();
    }
    assert_eq!(all, 6500);
}

#[test]
fn a_reset_ends_a_connection_and_errors_are_told() {
    let mut script = Script::new("192.168.0.1", "192.0.2.1");
    let listener = script.listen();
    let socket = script.established(listener);
    // A reset with another number than the next one causes a challenge (RFC 5961, section 3).
    script.inject(RST, 100, 0, &[]);
    script.expect(ACK, 1, 1, &[]);
    script.inject(RST, 1, 0, &[]);
    assert_eq!(script.read(socket), Err(libc::ECONNRESET));
    script.close(socket);
    assert!(script.next().is_none());
    // SAFETY: the call takes only numbers.
    let outcome = unsafe { (script.calls.close)(script.calls.userdata, socket) };
    assert_eq!(outcome, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn a_client_connects() {
    let mut script = Script::new("192.168.0.1", "192.0.2.1");
    let socket = script.socket(libc::SOCK_NONBLOCK);
    let to = script.address(script.theirs, THEIR_PORT);
    let connect = |script: &Script| {
        let data = script.calls.userdata;
        // SAFETY: the address is valid for its length.
        let outcome =
            unsafe { (script.calls.connect)(data, socket, to.as_ptr().cast(), to.len() as u32) };
        if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error()) }
    };
    assert_eq!(connect(&script), Err(Some(libc::EINPROGRESS)));
    let syn = script.next().expect("a SYN");
    assert_eq!(syn.header.flags, SYN);
    (script.first, script.port) = (syn.header.sequence.0, syn.header.source_port);
    assert_eq!(connect(&script), Err(Some(libc::EALREADY)));
    script.inject(SYN.with(ACK), 0, 1, &[]);
    script.expect(ACK, 1, 1, &[]);
    assert_eq!(connect(&script), Ok(()));
    script.write(socket, b"hello");
    script.expect(ACK, 1, 1, b"hello");
    script.inject(ACK, 1, 6, &[]);
    script.close(socket);
    script.expect(FIN.with(ACK), 6, 1, &[]);
    script.inject(FIN.with(ACK), 1, 7, &[]);
    script.expect(ACK, 7, 2, &[]);
    // TIME_WAIT answers a repeated FIN (RFC 9293, section 3.10.7.4).
    script.inject(FIN.with(ACK), 1, 7, &[]);
    script.expect(ACK, 7, 2, &[]);
}

#[test]
fn a_call_that_waits_is_woken_by_packets() {
    let mut script = Script::new("192.168.0.1", "192.0.2.1");
    let listener = script.listen();
    let socket = script.established(listener);
    let (read, data) = (script.calls.read, script.calls.userdata as usize);
    let waits = std::thread::spawn(move || {
        let mut room = [0_u8; 16];
        // SAFETY: the room is valid for its length, and the world exists until the thread is
        // joined.
        let count =
            unsafe { read(data as *mut c_void, socket, room.as_mut_ptr().cast(), room.len()) };
        room[..count as usize].to_vec()
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    script.inject(ACK, 1, 1, b"awake");
    assert_eq!(waits.join().expect("it reads"), b"awake");
}

#[test]
fn nonsense_is_refused() {
    let calls = load("colour=blue");
    assert!(calls.userdata.is_null());
    // SAFETY: the call takes only numbers.
    let outcome = unsafe { (calls.socket)(calls.userdata, libc::AF_INET, libc::SOCK_STREAM, 0) };
    assert_eq!(outcome, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    let script = Script::new("192.168.0.1", "192.0.2.1");
    let data = script.calls.userdata;
    for packet in [&[][..], &[0x45], &[0xff; 60]] {
        // SAFETY: the packet is valid for its length.
        let taken =
            unsafe { (script.calls.netdev_send)(data, packet.as_ptr().cast(), packet.len()) };
        assert_eq!(taken, 0);
    }
    assert!(script.next().is_none());
    // SAFETY: the function refuses pipes before it uses the pointer.
    assert_eq!(unsafe { (script.calls.pipe)(data, std::ptr::null_mut()) }, -1);
    script.inject(NONE, 0, 0, &[]);
    script.inject(ACK, 5, 5, &[]);
    let answer = script.next().expect("a reset");
    assert!(answer.header.flags.contains(RST), "nobody listens: {answer:?}");
}
