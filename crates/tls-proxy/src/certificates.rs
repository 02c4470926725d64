//! Loads certificate and key, and builds the settings of TLS.

use crate::arguments::Arguments;
use crate::error::ProxyError;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{Error, InconsistentKeys};
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The application protocol, if a client negotiates one (RFC 7301).
const PROTOCOL: &[u8] = b"http/1.1";
/// Most certificates in a file.
const MOST_CERTIFICATES: usize = 16;

/// Builds the settings of TLS for all cores. Sessions are resumed by tickets (RFC 8446, section
/// 4.6.1; RFC 5077), whose keys all cores share and change every six hours. No state is stored for
/// a session. If there are earlier settings, their tickets stay valid.
pub(crate) fn settings(
    arguments: &Arguments,
    earlier: Option<&ServerConfig>,
) -> Result<Arc<ServerConfig>, ProxyError> {
    let (certificate, key) = (&arguments.certificate, &arguments.key);
    let chain = read_chain(certificate)?;
    let secret = read_key(key, arguments.allow_readable_key)?;
    let provider = Arc::new(ring::default_provider());
    let unusable = |source: Error| match source {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            ProxyError::Mismatch { certificate: certificate.clone(), key: key.clone() }
        }
        source => {
            let (certificate, key) = (certificate.clone(), key.clone());
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
    settings.ticketer = match earlier {
        Some(earlier) => Arc::clone(&earlier.ticketer),
        None => ring::Ticketer::new().map_err(ProxyError::Tickets)?,
    };
    Ok(Arc::new(settings))
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, ProxyError> {
    const WANTED: &str = "the server's certificate and its issuers' (-----BEGIN CERTIFICATE)";
    let wrong = |error| pem_error(path, error, WANTED);
    let sections = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    let chain = sections.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    match chain.len() {
        1..=MOST_CERTIFICATES => Ok(chain),
        0 => Err(wrong(pem::Error::NoItemsFound)),
        count => {
            let what = format!("{count} certificates exceed the limit of {MOST_CERTIFICATES}");
            Err(ProxyError::Pem { path: path.to_owned(), what, wanted: WANTED })
        }
    }
}

fn read_key(path: &Path, allows_readers: bool) -> Result<PrivateKeyDer<'static>, ProxyError> {
    const WANTED: &str = "one private key without a password (-----BEGIN PRIVATE KEY)";
    let unreadable = |source| ProxyError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !allows_readers && !is_private(found.mode(), found.uid()) {
        let (mode, owner) = (found.mode() & 0o777, found.uid());
        return Err(ProxyError::ReadableKey { path: path.to_owned(), mode, owner });
    }
    PrivateKeyDer::from_pem_reader(BufReader::new(file))
        .map_err(|error| pem_error(path, error, WANTED))
}

/// Returns whether a key with this mode and owner is known only to those who shall know it. The
/// group may read a key of root's: the administrator has chosen it, as with the group ssl-cert of
/// Debian. A user's own group may have any members.
fn is_private(mode: u32, owner: u32) -> bool {
    const OTHERS: u32 = 0o007;
    const GROUP_READS: u32 = 0o040;
    const GROUP_WRITES: u32 = 0o020;
    mode & (OTHERS | GROUP_WRITES) == 0 && (mode & GROUP_READS == 0 || owner == 0)
}

fn pem_error(path: &Path, error: pem::Error, wanted: &'static str) -> ProxyError {
    let path = path.to_owned();
    let what = match error {
        pem::Error::Io(source) => return ProxyError::Read { path, source },
        pem::Error::NoItemsFound => "it contains no such section".to_owned(),
        pem::Error::MissingSectionEnd { .. } => "it is cut off: a section has no end".into(),
        other => other.to_string(),
    };
    ProxyError::Pem { path, what, wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_private_to_its_owner_or_to_a_group_that_root_chose() {
        for (mode, owner) in [(0o600, 0), (0o400, 1000), (0o640, 0), (0o440, 0), (0o100_600, 7)] {
            assert!(is_private(mode, owner), "{mode:o} {owner}");
        }
        for (mode, owner) in [(0o644, 0), (0o604, 0), (0o640, 1000), (0o660, 0), (0o602, 0)] {
            assert!(!is_private(mode, owner), "{mode:o} {owner}");
        }
    }
}
