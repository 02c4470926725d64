//! What an end needs for TLS.

use serde::{Deserialize, Serialize};

/// The keys of one end of one flow, made by its host's daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsKeys {
    /// This end's certificate chain, DER, its own first.
    pub chain: Vec<Vec<u8>>,
    /// This end's private key, PKCS #8 in DER.
    pub private_key: Vec<u8>,
    /// The authorities that may have signed the other end's certificate, DER.
    pub authorities: Vec<Vec<u8>>,
    /// The name that the other end's certificate must have.
    pub peer_name: String,
}
