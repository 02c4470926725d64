//! Runs TLS (rustls, by tokio-rustls over the traits of tokio) on streams: as a server for curl, as
//! a client of OpenSSL, and with itself.

use crate::common::{TIME_LIMIT, runtime, within};
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::{Router, routing::get, routing::post};
use hyper_util::rt::TokioIo;
use megapipe::DriverChoice;
use megapipe_rt::{TcpListener, TcpStream, http, is_shutdown, sleep, spawn_local};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use testkit::process::Guard;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

on_both_drivers!(
    curl_gets_and_posts_over_tls,
    openssl_answers_a_client,
    both_ends_exchange_large_messages,
    a_client_without_tls_ends_its_connection_only,
);

const BODY: usize = 1_000_000;

/// A certificate of `localhost` with its key.
struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
    directory: TempDir,
}

impl Identity {
    fn new() -> Identity {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("certificate.pem"), made.cert.pem()).unwrap();
        std::fs::write(directory.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        Identity { certificate, key, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn acceptor(&self) -> TlsAcceptor {
        let key = PrivateKeyDer::try_from(self.key.clone()).unwrap();
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }
}

/// Runs a command to its end, and the runtime meanwhile; returns its output.
async fn run(mut command: Command) -> Vec<u8> {
    let thread = std::thread::spawn(move || {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        output.stdout
    });
    while !thread.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    thread.join().unwrap()
}

/// An HTTPS server.
async fn serve(mut listener: TcpListener, acceptor: TlsAcceptor) {
    let app = Router::new()
        .route("/", get(|| async { "over TLS" }))
        .route("/echo", post(|body: Bytes| async { body }))
        .layer(DefaultBodyLimit::disable());
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) if is_shutdown(&error) => return,
            Err(error) => panic!("{error}"),
        };
        let (acceptor, app) = (acceptor.clone(), app.clone());
        spawn_local(async move {
            let encrypted = acceptor.accept(stream).await?;
            let served = http::serve_connection(TokioIo::new(encrypted), app).await;
            served.map_err(std::io::Error::other)
        });
    }
}

fn curl(identity: &Identity, address: SocketAddr, path: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert"]);
    command.arg(identity.path("certificate.pem"));
    command.args(["--write-out", " %{http_version}"]);
    command.arg("--resolve").arg(format!("localhost:{}:127.0.0.1", address.port()));
    command.args(arguments).arg(format!("https://localhost:{}{path}", address.port()));
    command
}

fn curl_gets_and_posts_over_tls(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let identity = Identity::new();
    let file = identity.path("body");
    std::fs::write(&file, testkit::content(BODY)).unwrap();
    let body = format!("@{}", file.display());
    within(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        spawn_local(serve(listener, identity.acceptor()));
        for (version, found) in [("--http1.1", " 1.1"), ("--http2", " 2")] {
            let got = run(curl(&identity, address, "/", &[version])).await;
            assert_eq!(String::from_utf8_lossy(&got), format!("over TLS{found}"));
            let posted = curl(&identity, address, "/echo", &[version, "--data-binary", &body]);
            let echoed = run(posted).await;
            let expected = [testkit::content(BODY), found.as_bytes().to_vec()].concat();
            assert!(echoed == expected, "{version}: {} bytes", echoed.len());
        }
    });
    assert_eq!(runtime.shutdown(TIME_LIMIT), 0);
}

/// `openssl s_server -rev` sends each line back, reversed.
fn openssl_answers_a_client(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let identity = Identity::new();
    let mut command = Command::new("openssl");
    command.args(["s_server", "-accept", "127.0.0.1:0", "-rev", "-naccept", "1"]);
    command.arg("-cert").arg(identity.path("certificate.pem"));
    command.arg("-key").arg(identity.path("key.pem"));
    let mut server = Guard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    // It prints `ACCEPT 127.0.0.1:PORT`.
    let mut lines = BufReader::new(server.output()).lines();
    let address = lines.find_map(|line| {
        line.unwrap().strip_prefix("ACCEPT ").and_then(|address| address.parse().ok())
    });
    let address: SocketAddr = address.expect("openssl listens");
    within(&runtime, async {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut encrypted = identity.connector().connect(name, stream).await.unwrap();
        encrypted.write_all(b"stressed\n").await.unwrap();
        encrypted.flush().await.unwrap();
        let mut answer = [0; 9];
        encrypted.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"desserts\n");
        encrypted.shutdown().await.unwrap();
    });
    assert!(server.wait().success());
}

fn both_ends_exchange_large_messages(driver: DriverChoice) {
    const BYTES: usize = 3_000_000;
    let runtime = runtime(driver, 1);
    let identity = Identity::new();
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = identity.acceptor();
        let server = spawn_local(async move {
            let stream = listener.accept().await?;
            let (mut reader, mut writer) = tokio::io::split(acceptor.accept(stream).await?);
            let count = tokio::io::copy(&mut reader, &mut writer).await?;
            writer.shutdown().await?;
            Ok::<_, std::io::Error>(count)
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let encrypted = identity.connector().connect(name, stream).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(encrypted);
        let sender = spawn_local(async move {
            writer.write_all(&testkit::content(BYTES)).await?;
            writer.shutdown().await?;
            Ok::<_, std::io::Error>(writer)
        });
        let mut echoed = Vec::new();
        // Without the peer's close_notify this would be an error.
        reader.read_to_end(&mut echoed).await.unwrap();
        assert!(echoed == testkit::content(BYTES), "{} bytes", echoed.len());
        drop(sender.await.unwrap().unwrap());
        assert_eq!(server.await.unwrap().unwrap(), BYTES as u64);
    });
}

fn a_client_without_tls_ends_its_connection_only(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    let identity = Identity::new();
    within(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        spawn_local(serve(listener, identity.acceptor()));
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // An alert, and the end.
        let mut all = Vec::new();
        while let Ok(Some(piece)) = plain.read().await {
            all.extend_from_slice(&piece);
        }
        assert_eq!(all.first(), Some(&21), "{all:?}");
        let got = run(curl(&identity, address, "/", &[])).await;
        assert!(got.starts_with(b"over TLS"));
    });
}
