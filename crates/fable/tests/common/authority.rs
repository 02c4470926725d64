//! A certificate authority for tests, in the place of a daemon's.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use fable::Role;
use fable::transport::TlsKeys;

/// Clocks of two hosts may be this far apart.
const SKEW: Duration = Duration::from_secs(300);

/// How long an authority is good for. A daemon that lives longer makes a new one.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The name that the certificate of this end of a flow is for.
fn end_name(flow: u64, role: Role) -> String {
    let role = match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
    };
    format!("{role}.{flow:016x}.flow.fable")
}

/// A key or certificate that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate authority failed: {0}")]
pub(crate) struct AuthorityError(#[from] rcgen::Error);

/// Issues the keys of one host's ends.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

impl Authority {
    /// A new authority with a key of its own (P-256), which never leaves this process.
    ///
    /// # Errors
    /// If no key can be made, which happens without a source of randomness.
    pub(crate) fn new(host: &str) -> Result<Authority, AuthorityError> {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.distinguished_name.push(DnType::CommonName, format!("fable on {host}"));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let now = SystemTime::now();
        parameters.not_before = (now - SKEW).into();
        parameters.not_after = (now + LIFETIME).into();
        let key = KeyPair::generate()?;
        let certificate = parameters.self_signed(&key)?;
        Ok(Authority { issuer: Issuer::new(parameters, key), certificate })
    }

    /// The authority's certificate as DER, for the daemons of other hosts.
    pub(crate) fn anchor(&self) -> &[u8] {
        self.certificate.der()
    }

    /// The keys of one end of a flow, good for `lifetime` from now (and for five minutes before,
    /// as clocks differ). The peer's certificate must come from the authority `peer_anchor`.
    ///
    /// # Errors
    /// As [`Authority::new`].
    pub(crate) fn issue(
        &self,
        flow: u64,
        role: Role,
        lifetime: Duration,
        peer_anchor: &[u8],
    ) -> Result<TlsKeys, AuthorityError> {
        let now = SystemTime::now();
        self.issue_between(flow, role, now - SKEW, now + lifetime, peer_anchor)
    }

    pub(crate) fn issue_between(
        &self,
        flow: u64,
        role: Role,
        not_before: SystemTime,
        not_after: SystemTime,
        peer_anchor: &[u8],
    ) -> Result<TlsKeys, AuthorityError> {
        let name = end_name(flow, role);
        let mut parameters = CertificateParams::new(vec![name.clone()])?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        parameters.not_before = not_before.into();
        parameters.not_after = not_after.into();
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        Ok(TlsKeys {
            chain: vec![certificate.der().to_vec()],
            private_key: key.serialize_der(),
            authorities: vec![peer_anchor.to_vec()],
            peer_name: end_name(flow, role.other()),
        })
    }
}
