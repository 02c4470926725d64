//! A QUIC echo server with a thread on each CPU, and a client of it:
//! `cargo run -p systemtests-channel --example quic_echo [ADDRESS]`.

use megapipe_rt::quinn::endpoint;
use megapipe_rt::{Bound, Runtime, UdpSocket, spawn_local};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".into());
    let key = rcgen::generate_simple_self_signed(["localhost".to_string()])?;
    let certificate = key.cert.der().clone();
    let private = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let server = ServerConfig::with_single_cert(vec![certificate.clone()], private.into())?;

    let runtime = Runtime::new()?;
    let port = Bound::udp(address, runtime.handle().cores())?;
    for core in 0..runtime.handle().cores() {
        let (port, server) = (port.clone(), server.clone());
        runtime.handle().spawn_on(core, move || async move {
            let endpoint = endpoint(port.open()?, EndpointConfig::default(), Some(server))?;
            serve(endpoint).await;
            Ok::<(), std::io::Error>(())
        });
    }
    let answer = runtime.block_on(ask(port.local_addr(), certificate, "hello\n"))?;
    print!("{answer}");
    Ok(())
}

/// Echoes what comes on every stream of every connection.
async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        spawn_local(async move {
            let connection: Connection = incoming.await?;
            loop {
                let (mut sender, mut receiver) = connection.accept_bi().await?;
                spawn_local(async move {
                    while let Some(chunk) = receiver.read_chunk(64 << 10, true).await? {
                        sender.write_chunk(chunk.bytes).await?;
                    }
                    sender.finish()?;
                    Ok::<(), Box<dyn Error>>(())
                });
            }
            #[allow(unreachable_code)]
            Ok::<(), Box<dyn Error>>(())
        });
    }
}

/// Sends a question on a stream, and returns the answer.
async fn ask(
    server: SocketAddr,
    certificate: CertificateDer<'static>,
    question: &str,
) -> Result<String, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut client = endpoint(UdpSocket::bind("0.0.0.0:0")?, EndpointConfig::default(), None)?;
    client.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
    let connection = client.connect(server, "localhost")?.await?;
    let (mut sender, mut receiver) = connection.open_bi().await?;
    sender.write_all(question.as_bytes()).await?;
    sender.finish()?;
    let answer = receiver.read_to_end(1 << 20).await?;
    connection.close(0u32.into(), b"");
    client.wait_idle().await;
    Ok(String::from_utf8(answer)?)
}
