use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::*;
use crate::sys::socket::{CongestionControl, set_congestion_control};

/// An answer of Linux 6.18: a connection from 127.0.0.1:56764 to 127.0.0.1:60099 that uses reno, on
/// the server's side.
const CONNECTION: &str = "880000001400020000000000d861000002010000eac3ddbc7f000001000000000000000\
    0000000007f000001000000000000000000000000000000002c3f0000000000000000000000000000000000000000\
    00001e6c6401050008000000000008000f00000000000c001500010000000000000006001600520000000900040072\
    656e6f00000000";
/// The end of that dump.
const DONE: &str = "140000000300020000000000d861000000000000";

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap();
    (0..hexadecimal.len()).step_by(2).map(byte).collect()
}

fn answers(bytes: &[u8]) -> Vec<io::Result<Answer>> {
    messages(bytes).map(|message| interpret(message?)).collect()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_recorded_dump_is_understood() {
    let found = answers(&[bytes(CONNECTION), bytes(DONE)].concat());
    let connection = Connection {
        own: at("127.0.0.1:60099"),
        peer: at("127.0.0.1:56764"),
        congestion_control: Some("reno".to_owned()),
    };
    assert!(connection.is_at(at("127.0.0.1:60099"), Side::Server));
    assert!(connection.is_at(at("127.0.0.1:56764"), Side::Client));
    assert!(!connection.is_at(at("127.0.0.1:60099"), Side::Client));
    assert!(!connection.is_at(at("127.0.0.2:60099"), Side::Server));
    let found: Vec<Answer> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found, [Answer::Connection(connection), Answer::Done]);
}

#[test]
fn connections_of_ipv4_on_sockets_of_ipv6_are_the_servers() {
    let mapped = Connection {
        own: at("[::ffff:127.0.0.1]:7"),
        peer: at("[::ffff:127.0.0.1]:8"),
        congestion_control: None,
    };
    assert!(mapped.is_at(at("127.0.0.1:7"), Side::Server));
}

#[test]
fn truncated_messages_are_refused() {
    let whole = bytes(CONNECTION);
    for length in 1..whole.len() {
        // The header announces more bytes than there are.
        let found = answers(&whole[..length]);
        assert!(matches!(found.as_slice(), [Err(_)]), "{length}: {found:?}");
        // The header announces the shorter length.
        let mut cut = whole[..length].to_vec();
        if length >= 4 {
            cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        }
        const HEADER_BYTES: usize = 16;
        let complete = HEADER_BYTES + MESSAGE_BYTES;
        match answers(&cut).as_slice() {
            [Err(_)] => assert!(length < complete, "{length}"),
            [Ok(Answer::Connection(connection))] => {
                assert!(length >= complete, "{length}");
                let name = connection.congestion_control.as_deref();
                assert!(name.is_none() || length >= whole.len() - 3, "{length}: {name:?}");
            }
            other => panic!("{length}: {other:?}"),
        }
    }
}

#[test]
fn errors_of_the_kernel_are_told() {
    let mut bytes = bytes(DONE);
    bytes[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
    bytes[16..20].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
    let error = answers(&bytes).remove(0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn live_connections_are_found_by_their_side() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reno = CongestionControl { name: "reno".to_owned(), must_be_set: true };
    set_congestion_control(listener.as_raw_fd(), &reno).unwrap();
    let address = listener.local_addr().unwrap();
    let seen = |side| congestion_controls(address, side, Some(std::process::id())).unwrap();
    assert!(seen(Side::Server).is_empty() && seen(Side::Client).is_empty());
    let _client = TcpStream::connect(address).unwrap();
    let _server = listener.accept().unwrap();
    let names = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>();
    assert_eq!(names(seen(Side::Server)), ["reno"]);
    let default = crate::sys::socket::default_congestion_control();
    assert_eq!(names(seen(Side::Client)), [default]);
}
