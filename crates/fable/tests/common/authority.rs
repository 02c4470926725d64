//! A certificate authority for tests, in place of a daemon's.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use fable::Role;
use fable::transport::TlsKeys;

/// The largest clock difference between two hosts.
const SKEW: Duration = Duration::from_secs(300);

/// How long an authority's certificate is valid.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the DNS name in the certificate of this end of a flow.
fn end_name(flow: u64, role: Role) -> String {
    let role = match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
    };
    format!("{role}.{flow:016x}.flow.fable")
}

/// The error for a key or certificate that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the certificate authority failed: {0}")]
pub(crate) struct AuthorityError(#[from] rcgen::Error);

/// Issues the keys of one host's ends.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

impl Authority {
    /// Makes an authority with a key of its own (P-256), which stays in this process.
    ///
    /// # Errors
    /// If no key can be made, for lack of randomness.
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

    /// Returns the authority's certificate as DER, for the daemons of other hosts.
    pub(crate) fn anchor(&self) -> &[u8] {
        self.certificate.der()
    }

    /// Issues the keys of one end of a flow, valid for `lifetime` from now, and from five minutes
    /// before, because clocks differ. The peer's certificate must come from the authority
    /// `peer_anchor`.
    ///
    /// # Errors
    /// Those of [`Authority::new`].
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

    /// Issues keys as `issue` does, for any period.
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
