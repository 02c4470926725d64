//! TLS for the clients of tls-proxy, with rustls over the kernel's TCP.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Name in the certificate.
const NAME: &str = "proxy.test";

/// How long an attacker waits for the server's part of a handshake, before it gives this connection
/// up.
const ATTACKER_PATIENCE: Duration = Duration::from_secs(5);

/// A TLS stream.
pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A certificate with its key, in files.
pub(crate) struct Identity(TempDir);

impl Identity {
    /// Makes a certificate that is its own issuer.
    pub(crate) fn new() -> Identity {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        let identity = Identity(TempDir::new().expect("a directory"));
        fs::write(identity.certificate(), cert.pem()).expect("it is written");
        fs::write(identity.key(), signing_key.serialize_pem()).expect("it is written");
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(identity.key(), private).expect("it is ours");
        identity
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.0.path().join("chain.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }

    /// Settings of clients that trust it.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(self.certificate());
        roots.add(certificate.expect("a certificate")).expect("it is a root");
        let settings = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(settings)
    }
}

fn connection(settings: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from(NAME).expect("a name");
    ClientConnection::new(Arc::clone(settings), name).expect("a client")
}

/// The first message of a handshake.
pub(crate) fn client_hello(settings: &Arc<ClientConfig>) -> Vec<u8> {
    let mut hello = Vec::new();
    connection(settings).write_tls(&mut hello).expect("a vector takes all");
    hello
}

/// A client whose handshake happens with its first message.
pub(crate) fn client(settings: &Arc<ClientConfig>, socket: TcpStream) -> Stream {
    StreamOwned::new(connection(settings), socket)
}

/// An attacker after its handshake, whose writes do not wait.
pub(crate) fn attacker(settings: &Arc<ClientConfig>, socket: TcpStream) -> io::Result<Stream> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(ATTACKER_PATIENCE))?;
    let mut stream = client(settings, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    stream.sock.set_nonblocking(true)?;
    Ok(stream)
}
