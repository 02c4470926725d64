//! An axum server over TLS, with a thread on each CPU, HTTP/1 and HTTP/2.
//!
//! `cargo run -p systemtests-channel --example https -- CERTIFICATE.pem KEY.pem`,
//! then `curl --cacert CERTIFICATE.pem https://localhost:8443/`. Such a pair comes from
//! `openssl req -x509 -newkey rsa:2048 -nodes -keyout KEY.pem -out CERTIFICATE.pem -subj /CN=x
//! -addext subjectAltName=DNS:localhost`.

use axum::{Router, routing::get};
use hyper_util::rt::TokioIo;
use megapipe_rt::{Bound, Runtime, http, is_shutdown, spawn_local, timeout};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// How long a client's handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(certificate), Some(key)) = (arguments.next(), arguments.next()) else {
        return Err("the arguments are the files of the certificate and the key".into());
    };
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let app = Router::new().route("/", get(|| async { "hello over TLS\n" }));
    let port = Bound::tcp("127.0.0.1:8443")?;
    Runtime::new()?.run(move || {
        let (port, app, acceptor) = (port.clone(), app.clone(), acceptor.clone());
        async move {
            let mut listener = port.listen()?;
            loop {
                let stream = match listener.accept().await {
                    Ok(stream) => stream,
                    Err(error) if is_shutdown(&error) => return Ok::<(), std::io::Error>(()),
                    Err(error) => {
                        eprintln!("accept: {error}");
                        continue;
                    }
                };
                let (app, acceptor) = (app.clone(), acceptor.clone());
                spawn_local(async move {
                    match timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await {
                        Ok(Ok(encrypted)) => {
                            let served = http::serve_connection(TokioIo::new(encrypted), app);
                            if let Err(error) = served.await {
                                eprintln!("a connection failed: {error}");
                            }
                        }
                        Ok(Err(error)) => eprintln!("a handshake failed: {error}"),
                        Err(elapsed) => eprintln!("a handshake failed: {elapsed}"),
                    }
                });
            }
        }
    })?;
    Ok(())
}
