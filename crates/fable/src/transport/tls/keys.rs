//! Keys and certificates with which an end identifies itself and checks its peer.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use serde::{Deserialize, Serialize};

use crate::error::{TransportError, TransportResult};

/// The most plaintext that a connection buffers while the socket takes no more, in bytes.
const BUFFER_BYTES_MAX: usize = 256 << 10;

/// The keys of one end of one path.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsKeys {
    /// This end's certificate, then the intermediate ones up to its authority, as DER (RFC 5280).
    pub chain: Vec<Vec<u8>>,
    /// The certificate's private key, as PKCS #8 DER (RFC 5208).
    pub private_key: Vec<u8>,
    /// The certificates of the authorities that may have issued the peer's certificate, as DER.
    pub authorities: Vec<Vec<u8>>,
    /// The DNS name that the peer's certificate must be for.
    pub peer_name: String,
}

/// Formats everything but the private key, so that no log contains it.
impl fmt::Debug for TlsKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsKeys")
            .field("peer_name", &self.peer_name)
            .finish_non_exhaustive()
    }
}

impl TlsKeys {
    /// Makes the connection of the end that starts the handshake.
    pub(super) fn client(&self) -> TransportResult<Connection> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(bad_keys)?
            .with_root_certificates(self.anchors()?);
        let mut config =
            builder.with_client_auth_cert(self.chain(), self.key()).map_err(bad_keys)?;
        // Keys are used for one connection only.
        config.resumption = Resumption::disabled();
        let mut connection =
            ClientConnection::new(Arc::new(config), self.name()?).map_err(bad_keys)?;
        connection.set_buffer_limit(Some(BUFFER_BYTES_MAX));
        Ok(connection.into())
    }

    /// Makes the connection of the end that answers the handshake.
    pub(super) fn server(&self) -> TransportResult<Connection> {
        let anchors = Arc::new(self.anchors()?);
        let verifier = WebPkiClientVerifier::builder_with_provider(anchors, provider())
            .build()
            .map_err(bad_keys)?;
        let verifier = Arc::new(NamedClient { verifier, name: self.name()? });
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(bad_keys)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain(), self.key())
            .map_err(bad_keys)?;
        config.send_tls13_tickets = 0;
        let mut connection = ServerConnection::new(Arc::new(config)).map_err(bad_keys)?;
        connection.set_buffer_limit(Some(BUFFER_BYTES_MAX));
        Ok(connection.into())
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.iter().cloned().map(CertificateDer::from).collect()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.private_key.clone()).into()
    }

    fn anchors(&self) -> TransportResult<RootCertStore> {
        let mut store = RootCertStore::empty();
        for anchor in &self.authorities {
            store.add(CertificateDer::from(anchor.clone())).map_err(bad_keys)?;
        }
        Ok(store)
    }

    fn name(&self) -> TransportResult<ServerName<'static>> {
        ServerName::try_from(self.peer_name.clone()).map_err(bad_keys)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn bad_keys(error: impl fmt::Display) -> TransportError {
    TransportError::Handshake(format!("the keys of this end are of no use: {error}"))
}

/// Checks a client's certificate as clients check a server's: its name must be the expected one.
#[derive(Debug)]
struct NamedClient {
    verifier: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
