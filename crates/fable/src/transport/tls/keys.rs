//! Keys with which an end identifies itself and checks its peer: raw public keys of Ed25519
//! (RFC 7250, RFC 8410).

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, Error, PeerIncompatible, ServerConfig, ServerConnection, SignatureScheme,
};
use serde::{Deserialize, Serialize};

use crate::error::{TransportError, TransportResult};

/// The most plaintext that a connection buffers while the socket takes no more, in bytes.
const BUFFER_BYTES_MAX: usize = 256 << 10;

/// What precedes the 32 bytes of an Ed25519 key in PKCS #8 DER (RFC 8410, 7).
const PKCS8_START: [u8; 16] = *b"\x30\x2e\x02\x01\0\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// The name in the handshake, which neither end checks: the keys say who an end is.
const SERVER_NAME: &str = "flow.fable";

/// The keys of one end of a flow.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsKeys {
    /// This end's Ed25519 key (RFC 8032).
    pub private_key: [u8; 32],
    /// The public key that the peer must prove to have, as `SubjectPublicKeyInfo` (RFC 5280).
    pub peer_key: Vec<u8>,
}

/// Formats everything but the private key, so that no log contains it.
impl fmt::Debug for TlsKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsKeys").field("peer_key", &self.peer_key).finish_non_exhaustive()
    }
}

impl TlsKeys {
    /// Makes the keys of an end from its private key and that of its peer.
    ///
    /// # Errors
    /// [`TransportError::Handshake`] if the keys are not valid.
    pub fn new(private_key: [u8; 32], peer: &[u8; 32]) -> TransportResult<TlsKeys> {
        Ok(TlsKeys { private_key, peer_key: public_key(&*signing_key(peer)?)? })
    }

    /// Makes the connection of the end that starts the handshake.
    pub(super) fn client(&self) -> TransportResult<Connection> {
        self.client_with(self.own()?)
    }

    /// Makes the connection of an end that shows this public key, and signs with this private one.
    pub(super) fn client_with(&self, own: Arc<CertifiedKey>) -> TransportResult<Connection> {
        let resolver = AlwaysResolvesClientRawPublicKeys::new(own);
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(bad_keys)?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier())
            .with_client_cert_resolver(Arc::new(resolver));
        // The peer proves its key in each handshake.
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(SERVER_NAME).map_err(bad_keys)?;
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(bad_keys)?;
        connection.set_buffer_limit(Some(BUFFER_BYTES_MAX));
        Ok(connection.into())
    }

    /// Makes the connection of the end that answers the handshake.
    pub(super) fn server(&self) -> TransportResult<Connection> {
        let resolver = AlwaysResolvesServerRawPublicKeys::new(self.own()?);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(bad_keys)?
            .with_client_cert_verifier(self.verifier())
            .with_cert_resolver(Arc::new(resolver));
        config.send_tls13_tickets = 0;
        let mut connection = ServerConnection::new(Arc::new(config)).map_err(bad_keys)?;
        connection.set_buffer_limit(Some(BUFFER_BYTES_MAX));
        Ok(connection.into())
    }

    pub(super) fn own(&self) -> TransportResult<Arc<CertifiedKey>> {
        let key = signing_key(&self.private_key)?;
        let public = CertificateDer::from(public_key(&*key)?);
        Ok(Arc::new(CertifiedKey::new(vec![public], key)))
    }

    fn verifier(&self) -> Arc<KnownKey> {
        Arc::new(KnownKey(self.peer_key.clone()))
    }
}

fn signing_key(key: &[u8; 32]) -> TransportResult<Arc<dyn SigningKey>> {
    let der = PrivatePkcs8KeyDer::from([&PKCS8_START[..], key].concat());
    provider().key_provider.load_private_key(der.into()).map_err(bad_keys)
}

fn public_key(key: &dyn SigningKey) -> TransportResult<Vec<u8>> {
    let public = key.public_key().ok_or_else(|| bad_keys("there is no public key"))?;
    Ok(public.to_vec())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn bad_keys(error: impl fmt::Display) -> TransportError {
    TransportError::Handshake(format!("the keys of this end are of no use: {error}"))
}

/// Accepts the peer with this public key only.
#[derive(Debug)]
struct KnownKey(Vec<u8>);

impl KnownKey {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match **shown == *self.0 {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

/// Implements for both sides what their two traits have in common.
macro_rules! verify_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _key: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = ring::default_provider().signature_verification_algorithms;
            let key = key.as_ref().into();
            verify_tls13_signature_with_raw_key(message, &key, signature, &algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for KnownKey {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    verify_raw_keys!();
}

impl ClientCertVerifier for KnownKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    verify_raw_keys!();
}
