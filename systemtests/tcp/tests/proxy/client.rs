//! Provides TLS clients for the tests, with rustls over the kernel's TCP.

use crate::site::{PROXY, Site};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use testkit::retried;

/// A TLS stream on a blocking socket.
pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Builds the settings of a site's clients; clients that share them resume each other's sessions.
pub(crate) fn settings(
    site: &Site,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(site.path("chain.pem"));
    roots.add(certificate.expect("a certificate")).expect("it is a root");
    let mut settings = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(settings)
}

/// A client after its handshake.
pub(crate) fn client(site: &Site) -> Stream {
    handshaken(over(site, site.connect()))
}

/// A client on this connection.
pub(crate) fn over(site: &Site, socket: TcpStream) -> Stream {
    with(&settings(site, rustls::ALL_VERSIONS), socket)
}

pub(crate) fn with(settings: &Arc<ClientConfig>, socket: TcpStream) -> Stream {
    let name = ServerName::try_from(PROXY).expect("a name");
    let tls = ClientConnection::new(Arc::clone(settings), name).expect("a client");
    StreamOwned::new(tls, socket)
}

pub(crate) fn handshaken(mut stream: Stream) -> Stream {
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).expect("a handshake");
    }
    stream
}

/// Ends the writing direction with a close_notify.
pub(crate) fn say_goodbye(stream: &mut Stream) {
    stream.conn.send_close_notify();
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock).expect("it is sent");
    }
    stream.sock.shutdown(Shutdown::Write).expect("it is connected");
}

/// Reads to the end, which must be a close_notify.
pub(crate) fn read_all(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("a whole stream");
    all
}

/// Reads exactly what is expected.
pub(crate) fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).expect("as many bytes");
    assert!(got == expected, "other bytes came");
}

pub(crate) fn send(stream: &mut impl Write, bytes: &[u8]) {
    stream.write_all(bytes).and_then(|()| stream.flush()).expect("it is sent");
}

/// Reads until the connection is broken, and returns the error.
pub(crate) fn read_to_failure(stream: &mut impl Read) -> io::Error {
    let mut room = [0; 4096];
    loop {
        match retried(|| stream.read(&mut room)) {
            Ok(0) => panic!("the stream looks whole"),
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// Returns whether an error is a reset.
pub(crate) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// Makes a socket reset its connection when it is closed.
pub(crate) fn will_reset(socket: &TcpStream) {
    let socket = socket2::SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO)).expect("it is open");
}
