//! Records in etcd: their keys, and parsing and checks of their values.
//!
//! | key | value | lease |
//! | --- | --- | --- |
//! | `/fable/<zone>/names/<service>/<instance>` | [`NameRecord`] | of the host |
//! | `/fable/<zone>/hosts/<host>` | [`HostRecord`] | of the host |
//! | `/fable/<zone>/key` | [`KeyRecord`] | none |
//!
//! Values are JSON with a version; in a zone with a secret they are authenticated, see
//! [`ZoneKeys`](super::zone_secret::ZoneKeys). Any process with access to etcd can write any value:
//! a value that does not match its key, is too long, or is not authenticated, is ignored.

use std::net::SocketAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fable::Name;
use fable::protocol::Peer;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
const VALUE_BYTES_MAX: usize = 16 * 1024;
/// The longest value with an authenticated record, whose text is escaped once more.
pub(super) const SEALED_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX + 256;
const LABEL_BYTES_MAX: usize = 64;
const ADDRESSES_MAX: usize = 16;
const PROGRAM_BYTES_MAX: usize = 256;
/// The length of a zone's secret.
pub(super) const SECRET_BYTES: usize = 32;

/// A key of a zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Name(Name),
    Host(String),
    Secret,
}

/// The record of a name: which process holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NameRecord {
    version: u32,
    /// That of the host's record, in case two daemons use one host name.
    pub(super) identity: String,
    pub(super) owner: Peer,
}

/// The record of a host: the addresses of its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostRecord {
    version: u32,
    pub(super) addresses: Vec<SocketAddr>,
    /// Distinguishes daemons that use the same host name.
    pub(super) identity: String,
}

/// The record that identifies a store. In a zone without a secret file it also has the secret with
/// which tickets are signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyRecord {
    version: u32,
    /// The secret, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// A random number, drawn when this record is created. A changed number means that etcd has
    /// lost its data since.
    pub(super) store: String,
}

/// Why a value is ignored.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadRecord {
    #[error("its key is none of ours")]
    Key,
    #[error("it is longer than {VALUE_BYTES_MAX} bytes")]
    TooLong,
    #[error("it is not understood: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error(
        "it is not authenticated by this zone's secret; give every host of the zone the same \
         --zone-secret, and use a new --zone after a change of the secret"
    )]
    Forged,
    #[error("it has version {0}, this daemon knows {VERSION}")]
    Version(u32),
    #[error("{0}")]
    Content(&'static str),
}

/// Returns whether a text can name a zone or host: it must be valid as one part of a key.
pub(super) fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LABEL_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

/// Returns the prefix of all keys of a zone.
pub(super) fn prefix(zone: &str) -> String {
    format!("/fable/{zone}/")
}

impl Key {
    /// Returns the full key. A name without an instance has none.
    pub(super) fn path(&self, zone: &str) -> Option<String> {
        let prefix = prefix(zone);
        match self {
            Key::Name(Name::Fable { service, instance: Some(instance) }) => {
                Some(format!("{prefix}names/{service}/{instance}"))
            }
            Key::Name(_) => None,
            Key::Host(host) => Some(format!("{prefix}hosts/{host}")),
            Key::Secret => Some(format!("{prefix}key")),
        }
    }

    /// Parses a key of this zone.
    pub(super) fn parse(zone: &str, key: &[u8]) -> Result<Key, BadRecord> {
        let text = std::str::from_utf8(key).map_err(|_| BadRecord::Key)?;
        let rest = text.strip_prefix(&prefix(zone)).ok_or(BadRecord::Key)?;
        let mut parts = rest.split('/');
        let key = (parts.next(), parts.next(), parts.next(), parts.next());
        match key {
            (Some("key"), None, ..) => Ok(Key::Secret),
            (Some("hosts"), Some(host), None, _) if is_label(host) => {
                Ok(Key::Host(host.to_owned()))
            }
            (Some("names"), Some(service), Some(instance), None) => {
                let name = format!("fable://{service}/{instance}").parse();
                name.map(Key::Name).map_err(|_| BadRecord::Key)
            }
            _ => Err(BadRecord::Key),
        }
    }
}

impl NameRecord {
    /// Makes the record of a name that `owner` holds.
    pub(super) fn new(identity: &str, owner: &Peer) -> NameRecord {
        NameRecord { version: VERSION, identity: identity.to_owned(), owner: owner.clone() }
    }

    /// Parses and checks a value.
    pub(super) fn parse(value: &[u8]) -> Result<NameRecord, BadRecord> {
        let record: NameRecord = parse(value, |record: &NameRecord| record.version)?;
        check(is_label(&record.identity), "its identity is none")?;
        check(is_label(&record.owner.host), "its host's name is none")?;
        check(record.owner.program.len() <= PROGRAM_BYTES_MAX, "its program's name is too long")?;
        Ok(record)
    }
}

impl HostRecord {
    /// Makes the record of a host.
    pub(super) fn new(addresses: &[SocketAddr], identity: &str) -> HostRecord {
        let identity = identity.to_owned();
        HostRecord { version: VERSION, addresses: Vec::new(), identity }.with_addresses(addresses)
    }

    /// Returns a copy with these addresses; those beyond the limit of a record are left out.
    pub(super) fn with_addresses(&self, addresses: &[SocketAddr]) -> HostRecord {
        let addresses = addresses.iter().take(ADDRESSES_MAX).copied().collect();
        HostRecord { addresses, ..self.clone() }
    }

    /// Parses and checks a value.
    pub(super) fn parse(value: &[u8]) -> Result<HostRecord, BadRecord> {
        let record: HostRecord = parse(value, |record: &HostRecord| record.version)?;
        check(record.addresses.len() <= ADDRESSES_MAX, "it has too many addresses")?;
        let usable = |address: &SocketAddr| address.port() != 0 && !address.ip().is_unspecified();
        check(record.addresses.iter().all(usable), "an address cannot be connected to")?;
        check(is_label(&record.identity), "its identity is none")?;
        Ok(record)
    }
}

impl KeyRecord {
    /// Makes the record of a secret.
    pub(super) fn new(secret: Option<&[u8; SECRET_BYTES]>, store: [u8; 16]) -> KeyRecord {
        let (secret, store) = (secret.map(|secret| STANDARD.encode(secret)), hexadecimal(&store));
        KeyRecord { version: VERSION, secret, store }
    }

    /// Parses and checks a value.
    pub(super) fn parse(value: &[u8]) -> Result<KeyRecord, BadRecord> {
        let record: KeyRecord = parse(value, |record: &KeyRecord| record.version)?;
        let usable = record.secret.is_none() || record.secret().is_some();
        check(usable, "its secret has not 256 bits")?;
        check(is_label(&record.store), "its store has no name")?;
        Ok(record)
    }

    /// Returns the secret.
    pub(super) fn secret(&self) -> Option<[u8; SECRET_BYTES]> {
        STANDARD.decode(self.secret.as_ref()?).ok()?.try_into().ok()
    }
}

/// Returns the digits of these bytes.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse<'a, T: Deserialize<'a>>(
    value: &'a [u8],
    version: impl Fn(&T) -> u32,
) -> Result<T, BadRecord> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(BadRecord::TooLong);
    }
    let record: T = serde_json::from_slice(value)?;
    match version(&record) {
        VERSION => Ok(record),
        other => Err(BadRecord::Version(other)),
    }
}

fn check(holds: bool, otherwise: &'static str) -> Result<(), BadRecord> {
    if holds { Ok(()) } else { Err(BadRecord::Content(otherwise)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Peer {
        let (host, program) = ("a".to_owned(), "kv".to_owned());
        Peer { host, pid: 1, uid: 2, gid: 3, program }
    }

    #[test]
    fn keys_parse_back() {
        for key in [
            Key::Name("fable://kv/1".parse().unwrap()),
            Key::Host("host-1.example".to_owned()),
            Key::Secret,
        ] {
            let path = key.path("zone").unwrap();
            assert_eq!(Key::parse("zone", path.as_bytes()).unwrap(), key);
            assert!(Key::parse("other", path.as_bytes()).is_err());
        }
        assert_eq!(Key::Name("fable://kv".parse().unwrap()).path("zone"), None);
    }

    #[test]
    fn foreign_keys_are_none_of_ours() {
        for key in [
            &b"/fable/zone/"[..],
            b"/fable/zone/key/x",
            b"/fable/zone/hosts/",
            b"/fable/zone/hosts/a/b",
            b"/fable/zone/hosts/a b",
            b"/fable/zone/names/kv",
            b"/fable/zone/names/kv/1/2",
            b"/fable/zone/names/k v/1",
            b"/fable/zone/names/\xff/1",
        ] {
            assert!(Key::parse("zone", key).is_err(), "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn records_parse_back() {
        let name = NameRecord::new("abc", &owner());
        assert_eq!(NameRecord::parse(&serde_json::to_vec(&name).unwrap()).unwrap(), name);
        let host = HostRecord::new(&["10.0.0.1:7000".parse().unwrap()], "identity");
        assert_eq!(HostRecord::parse(&serde_json::to_vec(&host).unwrap()).unwrap(), host);
        for secret in [None, Some([7; SECRET_BYTES])] {
            let key = KeyRecord::new(secret.as_ref(), [1; 16]);
            assert_eq!(KeyRecord::parse(&serde_json::to_vec(&key).unwrap()).unwrap(), key);
            assert_eq!(key.secret(), secret);
        }
    }

    #[test]
    fn hostile_values_are_no_records() {
        let good = serde_json::to_value(NameRecord::new("abc", &owner())).unwrap();
        let tampered = |path: &str, value: serde_json::Value| {
            let mut record = good.clone();
            *record.pointer_mut(path).unwrap() = value;
            NameRecord::parse(record.to_string().as_bytes())
        };
        assert!(matches!(tampered("/version", 2.into()), Err(BadRecord::Version(2))));
        assert!(matches!(tampered("/owner/host", "../b".into()), Err(BadRecord::Content(_))));
        assert!(matches!(tampered("/identity", "".into()), Err(BadRecord::Content(_))));
        let long = "x".repeat(PROGRAM_BYTES_MAX + 1);
        assert!(matches!(tampered("/owner/program", long.into()), Err(BadRecord::Content(_))));
        assert!(matches!(tampered("/owner/pid", "one".into()), Err(BadRecord::Malformed(_))));
        let long = "x".repeat(VALUE_BYTES_MAX);
        assert!(matches!(tampered("/owner/program", long.into()), Err(BadRecord::TooLong)));
        for value in ["", "[]", "{}", "\u{0}", r#"{"version":1}"#] {
            assert!(NameRecord::parse(value.as_bytes()).is_err(), "{value}");
            assert!(HostRecord::parse(value.as_bytes()).is_err(), "{value}");
            assert!(KeyRecord::parse(value.as_bytes()).is_err(), "{value}");
        }
        for addresses in [vec!["0.0.0.0:1"], vec!["10.0.0.1:0"]] {
            let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let value = serde_json::to_vec(&HostRecord::new(&addresses, "identity")).unwrap();
            assert!(HostRecord::parse(&value).is_err());
        }
        let short = r#"{"version":1,"secret":"AAAA","store":"a"}"#;
        assert!(KeyRecord::parse(short.as_bytes()).is_err());
    }
}
