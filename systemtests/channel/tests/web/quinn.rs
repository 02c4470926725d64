//! Tests QUIC: quinn on the runtime, against itself and against quinn on tokio.

use crate::common::{TIME_LIMIT, runtime, within};
use megapipe::{DriverChoice, Ecn};
use megapipe_rt::quinn::{QuicRuntime, endpoint};
use megapipe_rt::{Bound, UdpSocket, spawn_local, spawn_on};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

on_both_drivers!(
    two_endpoints_exchange_streams,
    a_server_serves_quinn_on_tokio,
    a_client_asks_quinn_on_tokio,
    every_core_serves_one_port,
    datagrams_have_marks_and_leave_in_segments,
    an_endpoint_stays_on_its_thread,
);

const STREAMS: usize = 4;
/// 10 MB in all.
const STREAM_BYTES: usize = 2_500_000;

/// A server's certificate, with its configuration.
struct Identity {
    certificate: CertificateDer<'static>,
    server: ServerConfig,
}

impl Identity {
    fn new() -> Identity {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let chain = vec![certificate.clone()];
        let server = ServerConfig::with_single_cert(chain, key.into()).unwrap();
        Identity { certificate, server }
    }

    /// Returns the configuration of a client that trusts this server.
    fn client(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        ClientConfig::with_root_certificates(Arc::new(roots)).unwrap()
    }
}

/// Makes an endpoint of the calling core.
fn here(address: &str, server: Option<&ServerConfig>) -> Endpoint {
    let socket = UdpSocket::bind(address).unwrap();
    endpoint(socket, EndpointConfig::default(), server.cloned()).unwrap()
}

/// Echoes what comes on every stream of one connection, until the peer closes it. Returns the
/// number of streams.
async fn serve(endpoint: &Endpoint, runtime: &dyn quinn::Runtime) -> usize {
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let mut streams = 0;
    while let Ok((mut sender, mut receiver)) = connection.accept_bi().await {
        streams += 1;
        runtime.spawn(Box::pin(async move {
            while let Some(chunk) = receiver.read_chunk(1 << 16, true).await.unwrap() {
                sender.write_chunk(chunk.bytes).await.unwrap();
            }
            sender.finish().unwrap();
            // Until the peer has it all.
            let _ = sender.stopped().await;
        }));
    }
    streams
}

/// Sends content on several streams at once and compares what comes back.
async fn exchange(connection: &Connection, bytes: usize, runtime: &dyn quinn::Runtime) {
    let (done, mut results) = mpsc::unbounded_channel();
    for number in 0..STREAMS {
        let (mut sender, mut receiver) = connection.open_bi().await.unwrap();
        let content = testkit::content(bytes + number);
        let expected = content.clone();
        runtime.spawn(Box::pin(async move {
            sender.write_all(&content).await.unwrap();
            sender.finish().unwrap();
        }));
        let done = done.clone();
        runtime.spawn(Box::pin(async move {
            let echoed = receiver.read_to_end(2 * bytes).await.unwrap();
            done.send(echoed == expected).unwrap();
        }));
    }
    for _ in 0..STREAMS {
        assert!(results.recv().await.unwrap(), "an echo differs");
    }
}

/// Connects, exchanges, and closes.
async fn ask(
    mut client: Endpoint,
    identity: &Identity,
    server: SocketAddr,
    stream_bytes: usize,
    runtime: &dyn quinn::Runtime,
) {
    client.set_default_client_config(identity.client());
    let connection = client.connect(server, "localhost").unwrap().await.unwrap();
    exchange(&connection, stream_bytes, runtime).await;
    let sent = connection.stats().udp_tx;
    assert!(sent.bytes as usize > STREAMS * stream_bytes);
    // Segmentation offload: some calls send several datagrams.
    assert!(sent.ios < sent.datagrams, "{sent:?}");
    connection.close(0u32.into(), b"the end");
    client.wait_idle().await;
}

fn two_endpoints_exchange_streams(driver: DriverChoice) {
    let identity = Identity::new();
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        for (bound, asked, bytes) in
            [("127.0.0.1:0", "127.0.0.1", STREAM_BYTES), ("[::]:0", "::1", STREAM_BYTES / 25)]
        {
            let server = here(bound, Some(&identity.server));
            let port = server.local_addr().unwrap().port();
            let address = SocketAddr::new(asked.parse().unwrap(), port);
            let served = spawn_local(async move { serve(&server, &QuicRuntime).await });
            let client = here(&SocketAddr::new(address.ip(), 0).to_string(), None);
            ask(client, &identity, address, bytes, &QuicRuntime).await;
            assert_eq!(served.await.unwrap(), STREAMS);
        }
    });
}

/// Runs a future on a runtime of tokio, in a thread of its own.
fn on_tokio<F: Future<Output = ()>>(
    make: impl FnOnce() -> F + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(TIME_LIMIT, make()).await.unwrap() });
    })
}

/// The server is bound to all addresses, and answers from the one that the client knows.
fn a_server_serves_quinn_on_tokio(driver: DriverChoice) {
    let identity = Identity::new();
    let server_config = identity.server.clone();
    let (tell, told) = channel();
    let peer = on_tokio(move || async move {
        let address: SocketAddr = told.recv().unwrap();
        let client = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        ask(client, &identity, address, STREAM_BYTES, &TokioRuntime).await;
    });
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let server = here("0.0.0.0:0", Some(&server_config));
        let port = server.local_addr().unwrap().port();
        tell.send(SocketAddr::new("127.0.0.9".parse().unwrap(), port)).unwrap();
        assert_eq!(serve(&server, &QuicRuntime).await, STREAMS);
        server.wait_idle().await;
    });
    peer.join().unwrap();
}

fn a_client_asks_quinn_on_tokio(driver: DriverChoice) {
    let identity = Identity::new();
    let server_config = identity.server.clone();
    let (tell, told) = oneshot::channel();
    let peer = on_tokio(move || async move {
        let server = Endpoint::server(server_config, "127.0.0.1:0".parse().unwrap()).unwrap();
        tell.send(server.local_addr().unwrap()).unwrap();
        assert_eq!(serve(&server, &TokioRuntime).await, STREAMS);
        server.wait_idle().await;
    });
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let address = told.await.unwrap();
        // By quinn's own constructor.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let config = EndpointConfig::default();
        let client = Endpoint::new(config, None, socket, Arc::new(QuicRuntime)).unwrap();
        ask(client, &identity, address, STREAM_BYTES, &QuicRuntime).await;
    });
    peer.join().unwrap();
}

/// Endpoints on all cores share a port; each client comes to one of them and stays there.
fn every_core_serves_one_port(driver: DriverChoice) {
    const CLIENTS: usize = 8;
    let identity = Identity::new();
    let runtime = runtime(driver, 2);
    let port = Bound::udp("127.0.0.1:0", 2).unwrap();
    within(&runtime, async {
        for core in 0..2 {
            let (port, config) = (port.clone(), identity.server.clone());
            spawn_on(core, move || async move {
                let socket = port.open().unwrap();
                let server = endpoint(socket, EndpointConfig::default(), Some(config)).unwrap();
                while let Some(incoming) = server.accept().await {
                    spawn_local(async move {
                        let connection = incoming.await.unwrap();
                        let mut sender = connection.open_uni().await.unwrap();
                        let core = [megapipe_rt::core_index() as u8];
                        sender.write_all(&core).await.unwrap();
                        sender.finish().unwrap();
                        let _ = sender.stopped().await;
                    });
                }
            });
        }
        let mut counts = [0; 2];
        for _ in 0..CLIENTS {
            let mut client = here("127.0.0.1:0", None);
            client.set_default_client_config(identity.client());
            let connecting = client.connect(port.local_addr(), "localhost").unwrap();
            let connection = connecting.await.unwrap();
            let mut receiver = connection.accept_uni().await.unwrap();
            let core = receiver.read_to_end(9).await.unwrap();
            counts[usize::from(core[0])] += 1;
            connection.close(0u32.into(), b"");
        }
        assert_eq!(counts.iter().sum::<usize>(), CLIENTS);
    });
}

/// A plain socket sees the first datagram of a client.
fn datagrams_have_marks_and_leave_in_segments(driver: DriverChoice) {
    let identity = Identity::new();
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.enable_ecn().unwrap();
        let mut client = here("127.0.0.1:0", None);
        client.set_default_client_config(identity.client());
        let connecting = client.connect(server.local_addr().unwrap(), "localhost").unwrap();
        let first = server.recv_from().await.unwrap();
        assert_eq!(first.ecn(), Some(Ecn::Ect0));
        assert_eq!((first.len(), first.segment_size()), (1200, None));
        drop(connecting);
    });
}

/// Another thread gets an error, and what it drops is dropped by the core.
fn an_endpoint_stays_on_its_thread(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let client = here("127.0.0.1:0", None);
        let address = client.local_addr().unwrap();
        let clone = client.clone();
        let refused = thread::spawn(move || clone.local_addr()).join().unwrap().unwrap_err();
        assert!(refused.to_string().contains("another thread than that of its core"), "{refused}");
        assert_eq!(client.local_addr().unwrap(), address);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let taken = socket.local_addr().unwrap();
        let wrapped = quinn::Runtime::wrap_udp_socket(&QuicRuntime, socket).unwrap();
        thread::spawn(move || drop(wrapped)).join().unwrap();
        let began = Instant::now();
        while std::net::UdpSocket::bind(taken).is_err() {
            assert!(began.elapsed() < TIME_LIMIT, "the socket is still open");
            megapipe_rt::sleep(Duration::from_millis(1)).await;
        }
    });
}
