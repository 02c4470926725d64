//! The certificate authority of a host: signs the certificates of the ends of TLS paths.
//!
//! Each host has one authority, whose certificate is in etcd beside the host's addresses. Each end
//! of each flow gets its own key and a certificate that is valid for one hour, for the name
//! `<role>.<flow>.flow.fable`. With it the other end verifies that its peer is the process that the
//! two daemons have connected.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fable::protocol::{FlowId, Role};
use fable::transport::TlsKeys;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::private_file::{self, PrivateFileError};

/// The option that names the directory.
const OPTION: &str = "--state-directory";
const VERSION: u32 = 1;
const FILE: &str = "authority.json";
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// How long a flow's certificate is valid. A path that was opened with it may stay open longer.
const LEAF_LIFE: Duration = Duration::from_secs(3600);
/// The largest accepted difference between the clocks of two hosts.
const SKEW: Duration = Duration::from_secs(300);
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Errors of the authority and of its file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The authority's file cannot be written.
    #[error(
        "cannot {what} {path}: {source}; use a --state-directory that belongs to the daemon's user"
    )]
    File {
        /// The failed operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The authority's file cannot be read, or other users could have read or replaced it.
    #[error(
        "{0}; use a --state-directory that belongs to the daemon's user, or remove the file, and \
         fabled makes a new one"
    )]
    Private(#[from] PrivateFileError),
    /// The file's content is not an authority.
    #[error("{path} contains no authority ({why}); remove it, and fabled makes a new one")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A key or certificate could not be made.
    #[error("cannot sign a certificate: {0}; remove the authority from --state-directory")]
    Signing(#[from] rcgen::Error),
}

type Result<T> = std::result::Result<T, AuthorityError>;

/// Signs the certificates of the ends of one host's flows.
pub struct Authority {
    certificate: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// Content of the authority's file. Key and certificate are in one file, so that they always match.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    host: String,
    /// DER in base64.
    certificate: String,
    /// PKCS #8 in base64.
    private_key: String,
}

impl Authority {
    /// Makes a new authority that exists only in this process. Flows that continue with a later
    /// daemon need its certificate only when they open their next path.
    ///
    /// # Errors
    /// [`AuthorityError::Signing`] if there is no randomness.
    pub fn in_memory(host: &str) -> Result<Authority> {
        let key = KeyPair::generate()?;
        let params = authority_params(host);
        let certificate = params.self_signed(&key)?.der().to_vec();
        Ok(Authority { certificate, issuer: Issuer::new(params, key) })
    }

    /// Loads the authority of an earlier daemon of this host from `authority.json` in a directory,
    /// or makes a new one and stores it there, readable by this user only.
    ///
    /// # Errors
    /// [`AuthorityError`] if the file is unusable or cannot be written.
    pub fn in_directory(host: &str, directory: &Path) -> Result<Authority> {
        let path = directory.join(FILE);
        let text = match private_file::read(&path, OPTION, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(PrivateFileError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                return Authority::create(host, &path);
            }
            Err(error) => return Err(error.into()),
        };
        let unusable = |why: String| AuthorityError::Unusable { path: path.clone(), why };
        let stored: Stored =
            serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
        if stored.version != VERSION {
            return Err(unusable(format!("it has version {}", stored.version)));
        }
        if stored.host != host {
            return Err(unusable(format!("it belongs to host {}", stored.host)));
        }
        let decoded = |text: &str| STANDARD.decode(text).map_err(|why| unusable(why.to_string()));
        let certificate = decoded(&stored.certificate)?;
        let key = KeyPair::try_from(decoded(&stored.private_key)?.as_slice())
            .map_err(|error| unusable(error.to_string()))?;
        let public = key.der_bytes();
        if !certificate.windows(public.len()).any(|part| part == public) {
            return Err(unusable("the certificate is for another key".to_owned()));
        }
        Ok(Authority { certificate, issuer: Issuer::new(authority_params(host), key) })
    }

    fn create(host: &str, path: &Path) -> Result<Authority> {
        let authority = Authority::in_memory(host)?;
        let stored = Stored {
            version: VERSION,
            host: host.to_owned(),
            certificate: STANDARD.encode(&authority.certificate),
            private_key: STANDARD.encode(authority.issuer.key().serialize_der()),
        };
        let failed = |what| {
            let path = path.to_owned();
            move |source| AuthorityError::File { what, path, source }
        };
        let text = serde_json::to_vec(&stored).map_err(io::Error::from).map_err(failed("write"))?;
        // A new file beside it, of which no other user knows the name or has access, is renamed, so
        // that there is never half an authority.
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut draft = NamedTempFile::new_in(directory).map_err(failed("create"))?;
        draft
            .write_all(&text)
            .and_then(|()| draft.as_file().sync_all())
            .map_err(failed("write"))?;
        draft.persist(path).map_err(|error| failed("rename")(error.error))?;
        Ok(authority)
    }

    /// Returns the certificate as DER, which other hosts must trust.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Makes a new key and certificate for one end of a flow. The other end's certificate must be
    /// signed by one of these authorities (DER).
    ///
    /// # Errors
    /// [`AuthorityError::Signing`] if there is no randomness.
    pub fn issue(&self, flow: FlowId, role: Role, authorities: Vec<Vec<u8>>) -> Result<TlsKeys> {
        let key = KeyPair::generate()?;
        let name = end_name(flow, role);
        let mut params = CertificateParams::new(vec![name.clone()])?;
        params.distinguished_name = common_name(&name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let now = SystemTime::now();
        params.not_before = (now - SKEW).into();
        params.not_after = (now + LEAF_LIFE).into();
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(TlsKeys {
            chain: vec![certificate.der().to_vec(), self.certificate.clone()],
            private_key: key.serialize_der(),
            authorities,
            peer_name: end_name(flow, role.other()),
        })
    }
}

/// Returns the name in the certificate of one end.
fn end_name(flow: FlowId, role: Role) -> String {
    let role = match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
    };
    format!("{role}.{flow}.flow.fable")
}

fn authority_params(host: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&format!("FABLE authority of host {host}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let now = SystemTime::now();
    params.not_before = (now - SKEW).into();
    params.not_after = (now + AUTHORITY_LIFE).into();
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    const FLOW: FlowId = FlowId(0xabcd);

    fn roots(keys: &TlsKeys) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for authority in &keys.authorities {
            roots.add(CertificateDer::from(authority.clone())).unwrap();
        }
        Arc::new(roots)
    }

    fn chain(keys: &TlsKeys) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = keys.chain.iter().cloned().map(CertificateDer::from).collect();
        (chain, PrivateKeyDer::try_from(keys.private_key.clone()).unwrap())
    }

    /// Runs a handshake with client certificates between two ends, in memory.
    fn handshake(leader: &TlsKeys, follower: &TlsKeys) -> std::result::Result<(), String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(leader), provider.clone());
        let (certificates, key) = chain(leader);
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(certificates, key)
            .unwrap();
        let (certificates, key) = chain(follower);
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots(follower))
            .with_client_auth_cert(certificates, key)
            .unwrap();
        let name = ServerName::try_from(follower.peer_name.clone()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets().map_err(|error| format!("leader: {error}"))?;
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets().map_err(|error| format!("follower: {error}"))?;
        }
        Ok(())
    }

    fn issue(own: &Authority, role: Role, flow: FlowId, other: &Authority) -> TlsKeys {
        own.issue(flow, role, vec![other.certificate().to_vec()]).unwrap()
    }

    #[test]
    fn the_two_ends_of_a_flow_trust_each_other_and_nobody_else() {
        let [a, b, stranger] = ["a", "b", "a"].map(|host| Authority::in_memory(host).unwrap());
        let leader = issue(&a, Role::Leader, FLOW, &b);
        let follower = issue(&b, Role::Follower, FLOW, &a);
        assert_eq!(leader.peer_name, "follower.000000000000abcd.flow.fable");
        handshake(&leader, &follower).unwrap();

        let forged = issue(&stranger, Role::Leader, FLOW, &b);
        assert!(handshake(&forged, &follower).unwrap_err().starts_with("follower"));
        let forged = issue(&stranger, Role::Follower, FLOW, &a);
        assert!(handshake(&leader, &forged).unwrap_err().starts_with("leader"));
        let other_flow = issue(&a, Role::Leader, FlowId(1), &b);
        assert!(handshake(&other_flow, &follower).unwrap_err().starts_with("follower"));
        let other_role = issue(&a, Role::Follower, FLOW, &b);
        assert!(handshake(&other_role, &follower).unwrap_err().starts_with("follower"));
    }

    #[test]
    fn an_authority_survives_in_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = Authority::in_directory("a", directory.path()).unwrap();
        let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let again = Authority::in_directory("a", directory.path()).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        let b = Authority::in_memory("b").unwrap();
        let leader = issue(&again, Role::Leader, FLOW, &b);
        handshake(&leader, &issue(&b, Role::Follower, FLOW, &first)).unwrap();
    }

    #[test]
    fn files_that_hold_no_authority_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        Authority::in_directory("a", directory.path()).unwrap();
        let refused = |host: &str| match Authority::in_directory(host, directory.path()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("accepted"),
        };
        assert!(refused("b").contains("belongs to host a"));
        let good: Stored = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let other = Authority::in_memory("a").unwrap();
        let mixed = Stored { certificate: STANDARD.encode(other.certificate()), ..good };
        fs::write(&path, serde_json::to_vec(&mixed).unwrap()).unwrap();
        assert!(refused("a").contains("for another key"));
        fs::write(&path, "{}").unwrap();
        assert!(refused("a").contains("contains no authority"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(refused("a").contains("(mode 640, user "));
        let missing = directory.path().join("missing");
        assert!(
            Authority::in_directory("a", &missing)
                .is_err_and(|error| { error.to_string().starts_with("cannot create ") })
        );
    }

    /// In a directory that others may write, they may know the draft's name and keep it open.
    #[test]
    fn the_key_is_written_to_a_new_file_only() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["authority.new", "authority.json.new", "authority.json.tmp"];
        for name in names {
            fs::write(directory.path().join(name), "").unwrap();
        }
        Authority::in_directory("a", directory.path()).unwrap();
        for name in names {
            let planted = fs::read(directory.path().join(name)).expect("it was there before");
            assert_eq!(planted, b"", "{name} has got the key");
        }
        let made = fs::metadata(directory.path().join(FILE)).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), names.len() + 1);
    }
}
