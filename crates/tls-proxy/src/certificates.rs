//! Certificates, keys and what else TLS needs.

use crate::error::ProxyError;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{Error, InconsistentKeys};
use std::path::Path;
use std::sync::Arc;

/// What clients and we speak, where a client asks (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";
/// Certificates in a file.
const MOST_CERTIFICATES: usize = 16;

/// Settings of TLS for all cores. Sessions are resumed by tickets (RFC 8446, section 4.6.1; RFC
/// 5077), whose keys all cores share and change every six hours; nothing is stored for a session.
pub(crate) fn settings(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, ProxyError> {
    let chain = read_chain(certificate)?;
    let secret = read_key(key)?;
    let provider = Arc::new(ring::default_provider());
    let unusable = |source: Error| match source {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            ProxyError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() }
        }
        source => {
            let (certificate, key) = (certificate.to_owned(), key.to_owned());
            ProxyError::Unusable { certificate, key, source }
        }
    };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let mut settings =
        builder.with_no_client_auth().with_single_cert(chain, secret).map_err(unusable)?;
    settings.alpn_protocols = vec![PROTOCOL.to_vec()];
    settings.session_storage = Arc::new(NoServerSessionStorage {});
    settings.ticketer = ring::Ticketer::new().map_err(ProxyError::Tickets)?;
    Ok(Arc::new(settings))
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, ProxyError> {
    const WANTED: &str = "the server's certificate and those above it, as -----BEGIN CERTIFICATE";
    let wrong = |error| pem_error(path, error, WANTED);
    let sections = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let chain = sections.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    match chain.len() {
        1..=MOST_CERTIFICATES => Ok(chain),
        0 => Err(wrong(pem::Error::NoItemsFound)),
        count => {
            let what = format!("{count} certificates, and {MOST_CERTIFICATES} are the most");
            Err(ProxyError::Pem { path: path.to_owned(), what, wanted: WANTED })
        }
    }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, ProxyError> {
    const WANTED: &str = "one private key without a password, as -----BEGIN PRIVATE KEY";
    PrivateKeyDer::from_pem_file(path).map_err(|error| pem_error(path, error, WANTED))
}

fn pem_error(path: &Path, error: pem::Error, wanted: &'static str) -> ProxyError {
    let path = path.to_owned();
    let what = match error {
        pem::Error::Io(source) => return ProxyError::Read { path, source },
        pem::Error::NoItemsFound => "nothing of that kind is in it".to_owned(),
        pem::Error::MissingSectionEnd { .. } => "a section has no end: the file is cut off".into(),
        other => other.to_string(),
    };
    ProxyError::Pem { path, what, wanted }
}
