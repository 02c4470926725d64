//! The zone's secret: a file that every host of the zone has and that is never sent anywhere.
//!
//! Two keys are derived from it with HKDF-SHA256 (RFC 5869): one signs tickets, the other one
//! authenticates the records in etcd. So a process with access to etcd can neither sign a ticket
//! nor write a record that the hosts believe. A process that has the secret is trusted with
//! everything in the zone.
//!
//! The keys of the ends of TLS paths are derived from the key of the tickets, so that two hosts
//! have keys that fit without exchanging any.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fable::protocol::{FlowId, Role};
use fable::transport::TlsKeys;
use ring::hkdf::{self, KeyType};
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::private_file::{self, PrivateFileError};
use super::random;
use super::records::{BadRecord, SECRET_BYTES};
use crate::cluster_link::ClusterError;

const BYTES_MIN: usize = 32;
const BYTES_MAX: u64 = 4096;
const SALT: &[u8] = b"fable zone secret 1";
const FLOWS_SALT: &[u8] = b"fable flow keys 1";

/// The keys of one zone, derived from its secret.
#[derive(Clone)]
pub(super) struct ZoneKeys {
    tickets: [u8; SECRET_BYTES],
    records: hmac::Key,
}

/// A record with its authentication code. The code covers the record's key, so that no record can
/// be moved to another key or zone.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    /// The record, as JSON text.
    record: String,
    /// HMAC-SHA256 in base64.
    mac: String,
}

/// The length of a derived key.
struct Length;

impl KeyType for Length {
    fn len(&self) -> usize {
        SECRET_BYTES
    }
}

/// Writes a new secret to a file that must not exist yet, readable by this user only.
///
/// # Errors
/// The error of the system call.
pub fn make_secret(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    // Text survives every way of copying it.
    let text = STANDARD.encode(random::<48>());
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // It would be refused as a secret, and bar the next try.
        let _ = fs::remove_file(path);
    }
    written
}

/// Reads a file that [`make_secret`] has made, and that `option` names.
pub(super) fn read(path: &Path, option: &'static str) -> Result<Vec<u8>, PrivateFileError> {
    let secret = private_file::read(path, option, BYTES_MAX)?;
    if secret.len() < BYTES_MIN {
        let why = format!(
            "it has {} bytes, a secret has at least {BYTES_MIN}; make one with `fabled \
             --make-secret FILE`",
            secret.len()
        );
        return Err(PrivateFileError::content(path, option, why));
    }
    Ok(secret)
}

impl ZoneKeys {
    /// Reads the secret of a zone, and derives its keys.
    pub(super) fn read(path: &Path, zone: &str) -> Result<ZoneKeys, PrivateFileError> {
        Ok(ZoneKeys::derive(&read(path, "--zone-secret")?, zone))
    }

    /// Derives the keys of a zone from its secret.
    pub(super) fn derive(secret: &[u8], zone: &str) -> ZoneKeys {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret);
        let key = |purpose: &str| expand(&root, &[purpose.as_bytes(), b"\0", zone.as_bytes()]);
        let records = hmac::Key::new(hmac::HMAC_SHA256, &key("records"));
        ZoneKeys { tickets: key("tickets"), records }
    }

    /// Returns the key that signs tickets.
    pub(super) fn tickets(&self) -> [u8; SECRET_BYTES] {
        self.tickets
    }

    /// Returns the value to write at this key of etcd.
    pub(super) fn seal(&self, path: &str, record: Vec<u8>) -> Option<Vec<u8>> {
        let record = String::from_utf8(record).ok()?;
        let mac = STANDARD.encode(hmac::sign(&self.records, &message(path, &record)));
        serde_json::to_vec(&Sealed { record, mac }).ok()
    }

    /// Returns the record in the value found at this key of etcd, if a host of the zone wrote it.
    pub(super) fn open(&self, path: &str, value: &[u8]) -> Result<Vec<u8>, BadRecord> {
        let sealed: Sealed = serde_json::from_slice(value).map_err(|_| BadRecord::Forged)?;
        let mac = STANDARD.decode(&sealed.mac).map_err(|_| BadRecord::Forged)?;
        hmac::verify(&self.records, &message(path, &sealed.record), &mac)
            .map_err(|_| BadRecord::Forged)?;
        Ok(sealed.record.into_bytes())
    }
}

/// Derives the keys of one end of a flow from the key that signs the zone's tickets.
pub(super) fn flow_keys(
    tickets: &[u8; SECRET_BYTES],
    flow: FlowId,
    role: Role,
) -> Result<TlsKeys, ClusterError> {
    let root = hkdf::Salt::new(hkdf::HKDF_SHA256, FLOWS_SALT).extract(tickets);
    let key = |role: Role| expand(&root, &[&flow.0.to_be_bytes(), &[role as u8]]);
    TlsKeys::new(key(role), &key(role.other()))
        .map_err(|error| ClusterError { reason: error.to_string() })
}

fn expand(root: &hkdf::Prk, info: &[&[u8]]) -> [u8; SECRET_BYTES] {
    let mut key = [0; SECRET_BYTES];
    let filled = root.expand(info, Length).and_then(|okm| okm.fill(&mut key));
    filled.expect("HKDF-SHA256 gives up to 8160 bytes");
    key
}

/// A path contains no NUL, so no two pairs give the same message.
fn message(path: &str, record: &str) -> Vec<u8> {
    [path.as_bytes(), b"\0", record.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const SECRET: &[u8] = &[7; BYTES_MIN];

    #[test]
    fn a_new_secret_is_private_and_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zone");
        make_secret(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let first = ZoneKeys::read(&path, "z").unwrap();
        assert_eq!(make_secret(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(ZoneKeys::read(&path, "z").unwrap().tickets, first.tickets);
        let other = directory.path().join("other");
        make_secret(&other).unwrap();
        assert_ne!(ZoneKeys::read(&other, "z").unwrap().tickets, first.tickets);
        fs::write(&path, [1; BYTES_MIN - 1]).unwrap();
        let text = ZoneKeys::read(&path, "z").err().unwrap().to_string();
        assert!(text.contains("it has 31 bytes") && text.contains("--make-secret"), "{text}");
    }

    #[test]
    fn keys_differ_by_secret_zone_and_purpose() {
        let keys = ZoneKeys::derive(SECRET, "z");
        assert_eq!(keys.tickets, ZoneKeys::derive(SECRET, "z").tickets);
        assert_ne!(keys.tickets, ZoneKeys::derive(SECRET, "y").tickets);
        assert_ne!(keys.tickets, ZoneKeys::derive(&[8; BYTES_MIN], "z").tickets);
        let signed_for_tickets = hmac::Key::new(hmac::HMAC_SHA256, &keys.tickets);
        let code = |key| hmac::sign(key, b"x").as_ref().to_vec();
        assert_ne!(code(&signed_for_tickets), code(&keys.records));
    }

    #[test]
    fn the_keys_of_two_ends_fit_and_those_of_others_do_not() {
        let keys = |secret: u8, flow, role| {
            flow_keys(&[secret; SECRET_BYTES], FlowId(flow), role).unwrap()
        };
        let fit = |one: &TlsKeys, other: &TlsKeys| {
            let public_key = |keys: &TlsKeys| TlsKeys::new([0; 32], &keys.private_key).unwrap();
            public_key(one).peer_key == other.peer_key && public_key(other).peer_key == one.peer_key
        };
        let leader = keys(1, 7, Role::Leader);
        assert!(fit(&leader, &keys(1, 7, Role::Follower)));
        for other in
            [keys(1, 7, Role::Leader), keys(1, 8, Role::Follower), keys(2, 7, Role::Follower)]
        {
            assert!(!fit(&leader, &other));
        }
        assert_ne!(leader.private_key, [1; SECRET_BYTES], "no process gets the zone's key");
    }

    #[test]
    fn a_sealed_record_opens_only_at_its_key_and_unchanged() {
        let keys = ZoneKeys::derive(SECRET, "z");
        let value = keys.seal("/fable/z/hosts/a", b"{\"x\":1}".to_vec()).unwrap();
        assert_eq!(keys.open("/fable/z/hosts/a", &value).unwrap(), b"{\"x\":1}");
        let refused =
            |path: &str, value: &[u8]| matches!(keys.open(path, value), Err(BadRecord::Forged));
        assert!(refused("/fable/z/hosts/b", &value));
        assert!(refused("/fable/z/hosts/a", b"{\"x\":1}"));
        assert!(refused("/fable/z/hosts/a", br#"{"record":"{\"x\":1}","mac":""}"#));
        let changed = String::from_utf8(value.clone()).unwrap().replace(":1}", ":2}");
        assert!(refused("/fable/z/hosts/a", changed.as_bytes()));
        for other in [ZoneKeys::derive(SECRET, "y"), ZoneKeys::derive(&[8; 32], "z")] {
            assert!(other.open("/fable/z/hosts/a", &value).is_err());
        }
    }
}
