//! Access to etcd: endpoints, TLS, and user with password.
//!
//! TLS verifies etcd by the CA of --etcd-ca and nothing else. The user is that of etcd's own access
//! control: etcd's JSON gateway does not use the name in a client's certificate.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::etcd_error::EtcdError;
use super::private_file::{self, PrivateFileError};

const DEFAULT_PORT: u16 = 2379;
const KEY_BYTES_MAX: u64 = 64 * 1024;
const CREDENTIALS_BYTES_MAX: u64 = 1024;
const CA: &str = "--etcd-ca";
const CERTIFICATE: &str = "--etcd-certificate";
const KEY: &str = "--etcd-key";
const CREDENTIALS: &str = "--etcd-credentials";

/// The files that give access to etcd.
#[derive(Clone, Debug, Default)]
pub struct EtcdAccess {
    /// The certificates, in PEM, of the CAs that may have signed etcd's certificate. `https://`
    /// endpoints need it, and with it there are no others.
    pub ca: Option<PathBuf>,
    /// This host's certificate and its issuers', in PEM, with `key`.
    pub certificate: Option<PathBuf>,
    /// The private key of `certificate`, in PEM, that only this process's user can read.
    pub key: Option<PathBuf>,
    /// One line `USER:PASSWORD`, in a file that only this process's user can read.
    pub credentials: Option<PathBuf>,
}

/// A user of etcd.
pub(super) struct Credentials {
    pub(super) name: String,
    pub(super) password: String,
}

/// An endpoint of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `host:port`.
    pub(super) address: String,
    /// The name in its certificate, if it uses TLS.
    pub(super) server_name: Option<ServerName<'static>>,
}

impl EtcdAccess {
    /// Parses endpoints, and checks that these files can protect them.
    pub(super) fn endpoints(&self, urls: &[String]) -> Result<Vec<Endpoint>, EtcdError> {
        let checked = urls.iter().map(|text| {
            let endpoint = Endpoint::parse(text)?;
            let bad = |why| Err(EtcdError::BadEndpoint { text: text.clone(), why });
            match (&endpoint.server_name, &self.ca) {
                (Some(_), None) => bad("TLS needs the certificate of etcd's CA: --etcd-ca FILE"),
                (None, Some(_)) => bad("--etcd-ca is given, but http uses no TLS"),
                (None, None) if self.credentials.is_some() && !endpoint.is_loopback() => {
                    bad("the password of --etcd-credentials would cross the network unencrypted")
                }
                _ => Ok(endpoint),
            }
        });
        checked.collect()
    }

    /// Builds the settings of TLS, if there is a CA.
    pub(super) fn tls(&self) -> Result<Option<TlsConnector>, EtcdError> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca, CA)? {
            roots.add(certificate).map_err(|error| unusable(ca, CA, error))?;
        }
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
                .build()
                .map_err(|error| unusable(ca, CA, error))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(ca, CA, error))?
            .with_webpki_verifier(verifier);
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => builder
                .with_client_auth_cert(certificates(certificate, CERTIFICATE)?, private_key(key)?)
                .map_err(|error| unusable(certificate, CERTIFICATE, error))?,
            _ => builder.with_no_client_auth(),
        };
        Ok(Some(TlsConnector::from(Arc::new(config))))
    }

    /// Reads user and password, if there is a file with them.
    pub(super) fn credentials(&self) -> Result<Option<Credentials>, EtcdError> {
        let Some(path) = &self.credentials else { return Ok(None) };
        let content = private_file::read(path, CREDENTIALS, CREDENTIALS_BYTES_MAX)?;
        let credentials = String::from_utf8(content).ok().and_then(|text| parse_user(&text));
        let wrong = || {
            let why = "it is not one line USER:PASSWORD; write that line, such as fabled:PASSWORD";
            PrivateFileError::content(path, CREDENTIALS, why)
        };
        Ok(Some(credentials.ok_or_else(wrong)?))
    }
}

fn parse_user(text: &str) -> Option<Credentials> {
    let (name, password) = text.trim_end_matches(['\r', '\n']).split_once(':')?;
    let usable = |text: &str| !text.is_empty() && !text.contains(['\r', '\n']);
    let both = usable(name) && usable(password);
    both.then(|| Credentials { name: name.to_owned(), password: password.to_owned() })
}

fn certificates(
    path: &Path,
    option: &'static str,
) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let sections = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(path, option, error))?;
    match sections.is_empty() {
        true => Err(unusable(path, option, "it contains no certificate")),
        false => Ok(sections),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, EtcdError> {
    let text = private_file::read(path, KEY, KEY_BYTES_MAX)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| unusable(path, KEY, error))
}

fn unusable(path: &Path, option: &'static str, why: impl ToString) -> EtcdError {
    EtcdError::BadFile { path: path.to_owned(), option, why: why.to_string() }
}

impl Endpoint {
    /// Parses a URL.
    fn parse(text: &str) -> Result<Endpoint, EtcdError> {
        let bad = |why| EtcdError::BadEndpoint { text: text.to_owned(), why };
        let (encrypted, rest) = match text.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("http://").unwrap_or(text)),
        };
        let address = address(rest.trim_end_matches('/')).map_err(bad)?;
        let mut endpoint = Endpoint { address, server_name: None };
        if encrypted {
            let name = ServerName::try_from(endpoint.host().to_owned());
            endpoint.server_name = Some(name.map_err(|_| bad("its host is no name or address"))?);
        }
        Ok(endpoint)
    }

    fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns whether its traffic stays on this host.
    pub(super) fn is_loopback(&self) -> bool {
        let host = self.host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// Parses `host:port`, with etcd's port by default.
fn address(rest: &str) -> Result<String, &'static str> {
    let port_follows = |rest: &str| {
        let port = rest
            .rsplit_once(':')
            .map(|(host, port)| (host.ends_with(']') || !host.contains(':'), port));
        matches!(port, Some((true, port)) if port.parse::<u16>().is_ok())
    };
    match rest {
        "" => Err("it lacks a host"),
        _ if rest.contains('/') || rest.contains('@') => Err("only host and port are allowed"),
        _ if port_follows(rest) => Ok(rest.to_owned()),
        _ if rest.contains(':') && !rest.ends_with(']') => Err("its port is no number"),
        _ => Ok(format!("{rest}:{DEFAULT_PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn endpoints_are_hosts_with_ports() {
        for (text, expected, encrypted) in [
            ("http://etcd:1", "etcd:1", false),
            ("http://10.0.0.1", "10.0.0.1:2379", false),
            ("[::1]:2379", "[::1]:2379", false),
            ("http://[::1]/", "[::1]:2379", false),
            ("https://etcd:1", "etcd:1", true),
            ("https://[fd00::1]", "[fd00::1]:2379", true),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.address, expected);
            assert_eq!(endpoint.server_name.is_some(), encrypted, "{text}");
        }
        for text in ["", "http://", "http://a:b", "::1", "http://a/b", "u@h:1", "https://a b"] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
        for (text, loopback) in [("[::1]:1", true), ("127.1.2.3", true), ("localhost", true)]
            .into_iter()
            .chain([("10.0.0.1", false), ("localhost.example", false), ("[fd00::1]:1", false)])
        {
            assert_eq!(Endpoint::parse(text).unwrap().is_loopback(), loopback, "{text}");
        }
    }

    #[test]
    fn no_protection_is_lost_without_notice() {
        let with = |ca: Option<&str>, credentials: Option<&str>, url: &str| {
            let (ca, credentials) = (ca.map(PathBuf::from), credentials.map(PathBuf::from));
            let access = EtcdAccess { ca, credentials, ..EtcdAccess::default() };
            access.endpoints(&[url.to_owned()]).map_err(|error| error.to_string())
        };
        assert!(with(Some("ca"), Some("user"), "https://etcd").is_ok());
        assert!(with(None, Some("user"), "http://127.0.0.1").is_ok());
        assert!(with(None, None, "http://10.0.0.1").is_ok());
        for (ca, credentials, url, why) in [
            (None, None, "https://etcd", "--etcd-ca FILE"),
            (Some("ca"), None, "http://etcd", "http uses no TLS"),
            (None, Some("user"), "http://10.0.0.1", "unencrypted"),
        ] {
            let text = with(ca, credentials, url).unwrap_err();
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn credentials_are_one_line_in_a_private_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("user");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let credentials = Some(path.clone());
            let access = EtcdAccess { credentials, ..EtcdAccess::default() };
            access.credentials().map_err(|error| error.to_string())
        };
        let user = read("fabled:a:b c\n", 0o600).unwrap().unwrap();
        assert_eq!((&*user.name, &*user.password), ("fabled", "a:b c"));
        for text in ["", "fabled", ":x", "fabled:", "a:b\nc:d\n"] {
            let error = read(text, 0o600).err().unwrap();
            assert!(error.contains("USER:PASSWORD") && !error.contains("c:d"), "{error}");
        }
        assert!(read("fabled:x", 0o644).err().unwrap().contains("chmod 600"));
    }

    #[test]
    fn unusable_certificates_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        let text = |ca: &Path| {
            let access = EtcdAccess { ca: Some(ca.to_owned()), ..EtcdAccess::default() };
            access.tls().err().unwrap().to_string()
        };
        assert!(text(&path).contains("--etcd-ca"));
        fs::write(&path, "nothing").unwrap();
        assert!(text(&path).contains("it contains no certificate"), "{}", text(&path));
    }
}
