//! What an end needs for TLS.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The keys of one end of one flow, made by its host's daemon.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Without the private key, so that no log ever has it.
impl fmt::Debug for TlsKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("TlsKeys");
        shown.field("peer_name", &self.peer_name).finish_non_exhaustive()
    }
}
