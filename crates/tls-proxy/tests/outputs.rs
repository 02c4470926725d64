//! Tests of the proxy with a standard error or standard output that takes no data.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, read_to_string};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Socket, Type};
use testkit::process::Guard;
use testkit::{BrokenOutput, assert_result_is_not_lost, bar_calls};

fn proxy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tls-proxy"));
    command.env_remove("MEGAPIPE_DRIVER").env_remove("MTCP_CONFIG");
    command
}

/// Writes a certificate and its key, and returns the settings of a client that trusts it.
fn write_certificate(directory: &Path) -> Arc<ClientConfig> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["server.test".to_owned()]).unwrap();
    fs::write(directory.join("chain.pem"), cert.pem()).unwrap();
    let mut key = fs::File::options();
    key.write(true).create_new(true).mode(0o600);
    let mut key = key.open(directory.join("key.pem")).unwrap();
    key.write_all(signing_key.serialize_pem().as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(cert)).unwrap();
    Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// Returns the command of a proxy in a directory with a certificate.
fn serving(directory: &Path, backend: SocketAddr) -> Command {
    let mut command = proxy();
    command.current_dir(directory).args(["--listen", "127.0.0.1:0", "--cores", "1"]);
    command.args(["--certificate", "chain.pem", "--key", "key.pem", "--driver", "epoll"]);
    command.args(["--to", &backend.to_string(), "--drain", "0"]);
    command
}

/// Returns the address on which a proxy listens.
fn await_address(proxy: &mut Guard) -> SocketAddr {
    let mut line = String::new();
    BufReader::new(proxy.output()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("tls-proxy: listening on ").expect(&line);
    address.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn a_refused_accept_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    write_certificate(directory.path());
    let mut command = serving(directory.path(), ([127, 0, 0, 1], 9).into());
    bar_calls(&mut command, &[libc::SYS_accept4]);
    let mut proxy = Guard::spawn_piped(command.stderr(Stdio::piped()));
    let mut errors = BufReader::new(proxy.0.stderr.take().unwrap());
    let _client = TcpStream::connect(await_address(&mut proxy)).unwrap();
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("cannot accept connections for now: Operation not permitted"), "{line}");
    assert_eq!(proxy.end(libc::SIGTERM).code(), Some(0));
    assert_eq!(read_to_string(errors).unwrap(), "");
}

#[test]
fn the_proxy_serves_without_a_standard_error() {
    let directory = tempfile::tempdir().unwrap();
    for broken in BrokenOutput::ALL {
        let directory = directory.path().join(format!("{broken:?}"));
        fs::create_dir(&directory).unwrap();
        let client = write_certificate(&directory);
        // The port stays bound, so that no other program listens on it.
        let backend = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        backend.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let refusing = backend.local_addr().unwrap().as_socket().unwrap();
        let mut command = serving(&directory, refusing);
        let mut proxy = Guard::spawn_piped(broken.break_stderr(&mut command));
        let address = await_address(&mut proxy);
        for _ in 0..3 {
            let connection =
                ClientConnection::new(client.clone(), "server.test".try_into().unwrap()).unwrap();
            let socket = TcpStream::connect(address).unwrap();
            let mut stream = StreamOwned::new(connection, socket);
            // The proxy closes the connection, whose backend refuses it.
            let _ = stream.write_all(b"request").and_then(|()| stream.read(&mut [0]));
        }
        fs::remove_file(directory.join("chain.pem")).unwrap();
        // The lowest signal is received first.
        proxy.signal(libc::SIGHUP);
        let status = proxy.end(libc::SIGTERM);
        assert_eq!(status.code(), Some(0), "{broken:?}");
    }
}

#[test]
fn a_result_is_written_or_the_status_is_not_0() {
    for arguments in ["--help", "--version", "--man", "--completions=bash"] {
        assert_result_is_not_lost(proxy().arg(arguments));
    }
}
