//! TLS of the URL client: which certificates it trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use crate::error::{Error, Result};

/// Where distributions keep the certificates of the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Which certificates of servers are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Those of the authorities in a PEM file; without one, those that the system trusts.
    Authorities(Option<PathBuf>),
    /// All of them.
    Anything,
}

/// Makes the client side of TLS, which offers these protocols by ALPN (RFC 7301).
pub(crate) fn connector(trust: &Trust, protocols: &[&str]) -> Result<TlsConnector> {
    let provider = ring::default_provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::setup(format!("cannot set up TLS: {error}"), "report this bug"))?;
    let mut config = match trust {
        Trust::Authorities(file) => {
            let roots = authorities(file.as_deref())?;
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::Anything => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustAnything(algorithms)))
            .with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn authorities(file: Option<&Path>) -> Result<RootCertStore> {
    let remedy = "name a PEM file by --ca, or use --insecure for a test server";
    let system = || SYSTEM_AUTHORITIES.map(Path::new).into_iter().find(|path| path.exists());
    let Some(file) = file.or_else(system) else {
        return Err(Error::setup("the system has no list of certificate authorities", remedy));
    };
    let unreadable = |error| {
        Error::setup(format!("cannot read certificates from {}: {error}", file.display()), remedy)
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(unreadable)? {
        // One that rustls does not understand among many others is no error.
        roots.add_parsable_certificates([certificate.map_err(unreadable)?]);
    }
    if roots.is_empty() {
        let cause = format!("{} contains no certificate of an authority", file.display());
        return Err(Error::setup(cause, remedy));
    }
    Ok(roots)
}

/// Accepts every certificate, but checks that the server has its key.
#[derive(Debug)]
struct TrustAnything(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for TrustAnything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
