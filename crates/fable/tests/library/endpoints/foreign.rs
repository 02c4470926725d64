//! Tests of `tcp://` and `unix://` names, against sockets of the standard library.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use fable::{Endpoint, Error, Flow, Kind};

use crate::endpoints::rig::GUARD;

fn send(flow: &Flow, bytes: &[u8]) {
    let mut buffer = flow.write(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer.commit().unwrap();
}

/// Reads until this many bytes have arrived.
fn receive(flow: &Flow, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        all.extend_from_slice(&flow.read_timeout(GUARD).unwrap().expect("it goes on"));
    }
    all
}

/// Echoes its input until the end of it, then ends.
fn echo(mut stream: impl Read + Write) {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => return,
            count => stream.write_all(&bytes[..count]).unwrap(),
        }
    }
}

#[test]
fn a_flow_reaches_a_tcp_program() {
    let program = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = program.local_addr().unwrap();
    let thread = std::thread::spawn(move || echo(program.accept().unwrap().0));
    let flow = Endpoint::anonymous().connect(&format!("tcp://{address}")).unwrap();
    assert_eq!(flow.transport(), Kind::TcpNodelay);
    assert_eq!(flow.peer().host, address.to_string());
    send(&flow, b"hello");
    assert_eq!(receive(&flow, 5), b"hello");
    flow.finish().unwrap();
    assert!(flow.read_timeout(GUARD).unwrap().is_none());
    thread.join().unwrap();
}

#[test]
fn a_flow_reaches_a_unix_program_and_knows_who_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("echo.sock");
    let program = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || echo(program.accept().unwrap().0));
    let flow = Endpoint::anonymous().connect(&format!("unix://{}", path.display())).unwrap();
    assert_eq!(flow.transport(), Kind::Unix);
    assert_eq!(flow.peer().pid, std::process::id().cast_signed());
    let message: Vec<u8> = (0..40_000_u32).map(|number| number as u8).collect();
    send(&flow, &message);
    assert_eq!(receive(&flow, message.len()), message);
    flow.finish().unwrap();
    assert!(flow.read_timeout(GUARD).unwrap().is_none());
    thread.join().unwrap();
}

#[test]
fn a_tcp_program_reaches_an_endpoint_on_a_port_of_its_own() {
    let endpoint = Endpoint::register("tcp://127.0.0.1:0").unwrap();
    let name = endpoint.name().unwrap().to_string();
    let address = name.strip_prefix("tcp://").unwrap();
    assert!(!address.ends_with(":0"), "{name}");
    let listener = endpoint.listen().unwrap();
    assert!(matches!(listener.try_accept(), Err(Error::WouldBlock)));
    assert!(matches!(listener.accept_timeout(Duration::from_millis(1)), Err(Error::TimedOut)));

    let mut program = TcpStream::connect(address).unwrap();
    let flow = listener.accept_timeout(GUARD).unwrap();
    assert_eq!(flow.name().to_string(), name);
    program.write_all(b"from afar").unwrap();
    assert_eq!(receive(&flow, 9), b"from afar");
    send(&flow, b"answer");
    flow.finish().unwrap();
    let mut answer = String::new();
    program.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
}

#[test]
fn a_path_is_taken_once_and_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv.sock");
    let name = format!("unix://{}", path.display());
    let endpoint = Endpoint::register(&name).unwrap();
    let error = Endpoint::register(&name).unwrap_err();
    assert!(matches!(&error, Error::Refused { reason } if reason.contains("taken")), "{error}");
    let listener = endpoint.listen().unwrap();
    let _program = UnixStream::connect(&path).unwrap();
    listener.accept_timeout(GUARD).unwrap();
    drop(listener);
    drop(endpoint);
    assert!(!path.exists());
    // A file that another program has put there since must not be removed.
    let endpoint = Endpoint::register(&name).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    drop(endpoint);
    assert!(path.exists());
}

#[test]
fn what_does_not_answer_is_an_error_with_its_errno() {
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let anonymous = Endpoint::options().timeout(GUARD).anonymous();
    let error = anonymous.connect(&format!("tcp://{refused}")).unwrap_err();
    assert!(
        matches!(&error, Error::System { source, .. }
            if source.raw_os_error() == Some(libc::ECONNREFUSED)),
        "{error}"
    );
    let error = anonymous.connect("unix:///nonexistent/kv.sock").unwrap_err();
    assert!(
        matches!(&error, Error::System { source, .. }
            if source.raw_os_error() == Some(libc::ENOENT)),
        "{error}"
    );
    let error = anonymous.connect("unix://@nobody-has-this-name").unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
}

#[test]
fn a_program_that_never_accepts_costs_the_time_out() {
    let program = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    let name = format!("@fable-full-{}", std::process::id());
    program.bind(&socket2::SockAddr::unix(format!("\0{}", &name[1..])).unwrap()).unwrap();
    program.listen(0).unwrap();
    let begin = Instant::now();
    let anonymous = Endpoint::options().timeout(Duration::from_millis(100)).anonymous();
    let mut flows = Vec::new();
    let error = loop {
        match anonymous.connect(&format!("unix://{name}")) {
            Ok(flow) => flows.push(flow),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::TimedOut), "{error}");
    assert!(begin.elapsed() < GUARD);
}

#[test]
fn a_program_that_resets_the_connection_has_died() {
    let program = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = program.local_addr().unwrap();
    let flow = Endpoint::anonymous().connect(&format!("tcp://{address}")).unwrap();
    let accepted = socket2::Socket::from(program.accept().unwrap().0);
    accepted.set_linger(Some(Duration::ZERO)).unwrap();
    drop(accepted);
    assert!(matches!(flow.read_timeout(GUARD), Err(Error::PeerDied)));
}

#[test]
fn the_kernel_vouches_for_the_owner_of_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv.sock");
    let _program = UnixListener::bind(&path).unwrap();
    let name = format!("unix://{}", path.display());
    let own = rustix::process::geteuid().as_raw();
    Endpoint::options().owner(own).anonymous().connect(&name).unwrap();
    let error = Endpoint::options().owner(own + 1).anonymous().connect(&name).unwrap_err();
    let Error::OtherOwner { expected, found, .. } = error else { panic!("{error}") };
    assert_eq!([expected, found], [own + 1, own]);
    let program = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}", program.local_addr().unwrap());
    let error = Endpoint::options().owner(own).anonymous().connect(&name).unwrap_err();
    assert!(matches!(&error, Error::Refused { reason } if reason.contains("no owner")), "{error}");
}
