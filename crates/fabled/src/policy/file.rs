//! Parses the policy file (TOML).

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fable::{Kind, Name};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use super::{Facts, Reach, User};

/// The built-in policy, with comments.
pub const DEFAULT: &str = include_str!("default.toml");

/// The policy: access, trusted networks, thresholds, transports, rules.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The users that may connect to a name whose owner has set no access.
    #[serde(default)]
    pub access: Access,
    /// The networks in which flows need no TLS, in CIDR notation (RFC 4632).
    #[serde(default = "loopback", deserialize_with = "networks")]
    pub trusted_networks: Vec<IpNet>,
    /// The period of observations, in milliseconds.
    #[serde(default = "default_period_ms")]
    observe_every_ms: u64,
    /// The thresholds for changes of the transport.
    #[serde(default)]
    pub thresholds: Thresholds,
    /// The transport for each situation.
    #[serde(default)]
    pub transports: Transports,
    /// Exceptions; the first matching one applies.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
    /// Names that only some users may register; the first match applies.
    #[serde(default, rename = "reserve")]
    pub reserved: Vec<Reserve>,
    /// Owners of services, by service.
    #[serde(default, rename = "owner")]
    pub owners: BTreeMap<String, User>,
    /// For how long a service belongs to its owner after its last instance, in seconds.
    #[serde(default = "default_owner_kept_s")]
    owner_kept_s: u64,
    /// For how long after its start a daemon learns of flows from announcements, in seconds.
    #[serde(default = "default_announced_within_s")]
    announced_within_s: u64,
    /// What one user may hold.
    #[serde(default)]
    pub quota: Quota,
}

/// What one user may hold; the built-in policy explains it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "explained where people read them, in default.toml")]
pub struct Quota {
    pub connections: u32,
    pub names: u32,
    pub flows: u32,
    pub memory_kib: u32,
    pub log_lines_s: u32,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota {
            connections: 2048,
            names: 4096,
            flows: 8192,
            memory_kib: 192 << 10,
            log_lines_s: 10,
        }
    }
}

/// Names that are kept for some users.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Names that match this pattern, in which `*` stands for any text.
    pub name: String,
    /// The users that may register them, besides root.
    pub users: Vec<u32>,
}

/// The users that may connect by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// The owner's user, and root.
    #[default]
    SameUser,
    /// All users on the hosts of the cluster.
    Everyone,
}

/// Thresholds for changes of the transport; the built-in policy explains them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "explained where people read them, in default.toml")]
pub struct Thresholds {
    pub dwell_ms: u64,
    pub dwell_ms_max: u64,
    pub observations: u32,
    pub retry_ms: u64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds { dwell_ms: 2_000, dwell_ms_max: 60_000, observations: 4, retry_ms: 30_000 }
    }
}

/// The transport for each situation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transports {
    /// One host.
    #[serde(deserialize_with = "kind")]
    pub local: Kind,
    /// Different hosts.
    #[serde(deserialize_with = "kind")]
    pub remote: Kind,
}

impl Default for Transports {
    fn default() -> Transports {
        Transports { local: Kind::MempipeFutex(fable::Form::Safe), remote: Kind::TcpNodelay }
    }
}

/// A rule: conditions, and what applies if all of them hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Matches names that fit this pattern, in which `*` stands for any text.
    pub name: Option<String>,
    /// Matches if both ends run as one of these users.
    pub users: Option<Vec<u32>>,
    /// Matches if both ends trust each other (true), or if they do not (false).
    pub trusted: Option<bool>,
    /// Matches if the ends are on different hosts (true), or if they are not (false).
    pub remote: Option<bool>,
    /// The transport to use.
    #[serde(deserialize_with = "some_kind")]
    pub transport: Option<Kind>,
    /// If true, TLS between hosts.
    pub protected: Option<bool>,
    /// The reason, for displays.
    pub why: Option<String>,
}

fn loopback() -> Vec<IpNet> {
    ["127.0.0.0/8", "::1/128"].iter().filter_map(|text| text.parse().ok()).collect()
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let network = |text: String| {
        text.parse().map_err(|_| {
            let text: String = text.chars().take(64).collect();
            let what = format!("`{text}` is no network: write one such as 10.0.0.0/8 or fd00::/8");
            serde::de::Error::custom(what)
        })
    };
    texts.into_iter().map(network).collect()
}

fn default_period_ms() -> u64 {
    250
}

fn default_owner_kept_s() -> u64 {
    60
}

fn default_announced_within_s() -> u64 {
    30
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(serde::de::Error::custom)
}

fn some_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Kind>, D::Error> {
    kind(deserializer).map(Some)
}

/// Why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error(
        "cannot read the policy {}: {source}; name a readable file with --policy",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// The file is not a policy. The message has line and column.
    #[error(
        "cannot use the policy {}: {source}`fabled --print-policy` prints all settings and values",
        path.display()
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's error, with its place.
        source: Box<toml::de::Error>,
    },
    /// A number in the file is out of range.
    #[error("cannot use the policy {}: {what}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The setting, and its valid values.
        what: &'static str,
    },
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// [`FileError`], which includes line and remedy.
    pub fn read(path: &Path) -> Result<Policy, FileError> {
        let text = fs::read_to_string(path)
            .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Policy::parse(&text, path)
    }

    /// Returns the built-in policy.
    pub fn built_in() -> Policy {
        Policy {
            access: Access::SameUser,
            trusted_networks: loopback(),
            observe_every_ms: default_period_ms(),
            thresholds: Thresholds::default(),
            transports: Transports::default(),
            rules: Vec::new(),
            reserved: Vec::new(),
            owners: BTreeMap::new(),
            owner_kept_s: default_owner_kept_s(),
            announced_within_s: default_announced_within_s(),
            quota: Quota::default(),
        }
    }

    /// Parses a text; `path` is used in errors.
    ///
    /// # Errors
    /// [`FileError`], which includes line and remedy.
    pub fn parse(text: &str, path: &Path) -> Result<Policy, FileError> {
        let policy: Policy = toml::from_str(text).map_err(|source| FileError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        match policy.nonsense() {
            Some(what) => Err(FileError::Value { path: path.to_owned(), what }),
            None => Ok(policy),
        }
    }

    fn nonsense(&self) -> Option<&'static str> {
        let limits = &self.thresholds;
        let checks = [
            (
                (10..=60_000).contains(&self.observe_every_ms),
                "observe_every_ms must be 10 to 60000",
            ),
            (
                limits.dwell_ms <= limits.dwell_ms_max && limits.dwell_ms_max <= 86_400_000,
                "dwell_ms must be at most dwell_ms_max, and that at most 86400000 (a day)",
            ),
            ((1..=1000).contains(&limits.observations), "observations must be 1 to 1000"),
            (limits.retry_ms <= 86_400_000, "retry_ms must be at most 86400000 (a day)"),
            (
                self.transports.remote.crosses_hosts(),
                "transports.remote must reach another host: use tcp, tcp-nodelay, mptcp or tls",
            ),
            (
                self.rules.len() <= 1000 && self.reserved.len() <= 1000,
                "there are more than 1000 rules or reservations: remove some",
            ),
            (self.owners.len() <= 10_000, "the section [owner] has at most 10000 entries"),
            (
                self.owners.keys().all(|service| is_service(service)),
                "a key of the section [owner] is the name of a service: `bank` for fable://bank/1",
            ),
            (
                self.owner_kept_s <= 86_400 && self.announced_within_s <= 86_400,
                "owner_kept_s and announced_within_s are at most a day",
            ),
            (
                self.quota.memory_kib >= 64 && self.quota.connections >= 1,
                "each user needs a quota of 1 connection and 64 KiB at least",
            ),
        ];
        checks.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
    }

    /// Returns the period of observations.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.observe_every_ms)
    }

    /// Returns for how long a service belongs to its owner after its last instance.
    pub fn owner_kept(&self) -> Duration {
        Duration::from_secs(self.owner_kept_s)
    }

    /// Returns for how long after its start a daemon learns of flows from announcements.
    pub fn announced_within(&self) -> Duration {
        Duration::from_secs(self.announced_within_s)
    }

    /// Returns the user to whom the policy gives a service.
    pub fn owner_of(&self, service: &str) -> Option<u32> {
        self.owners.get(service).map(|user| user.0)
    }

    /// Returns whether an address lies in a trusted network. IPv4 addresses mapped into IPv6 count
    /// as IPv4.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted_networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the first rule that matches.
    pub fn rule_for(&self, facts: &Facts) -> Option<&Rule> {
        let remote = matches!(facts.reach, Reach::OtherHost { .. });
        self.rules.iter().find(|rule| {
            rule.name.as_ref().is_none_or(|pattern| fits(pattern, &facts.name))
                && rule
                    .users
                    .as_ref()
                    .is_none_or(|users| facts.users.iter().all(|user| users.contains(user)))
                && rule.trusted.is_none_or(|trusted| trusted == facts.both_trust)
                && rule.remote.is_none_or(|wanted| wanted == remote)
        })
    }

    /// Returns whether a user may register a name.
    pub fn may_register(&self, name: &Name, user: u32) -> bool {
        let reserve = self.reserved.iter().find(|reserve| fits(&reserve.name, name));
        user == 0 || reserve.is_none_or(|reserve| reserve.users.contains(&user))
    }

    /// Returns whether the rules demand encryption between hosts.
    pub fn protects(&self, facts: &Facts) -> bool {
        self.rule_for(facts).and_then(|rule| rule.protected).unwrap_or(false)
    }
}

fn is_service(text: &str) -> bool {
    matches!(format!("fable://{text}").parse(), Ok(Name::Fable { instance: None, .. }))
}

/// Returns whether a name matches a pattern in which `*` stands for anything. Takes time
/// proportional to the product of the lengths, for any pattern.
fn fits(pattern: &str, name: &Name) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.to_string());
    let name = name.as_bytes();
    // Whether the pattern so far matches the first n bytes of the name.
    let mut reachable = vec![false; name.len() + 1];
    reachable[0] = true;
    for &byte in pattern {
        if byte == b'*' {
            let first = reachable.iter().position(|&fits| fits).unwrap_or(reachable.len());
            reachable[first..].fill(true);
        } else {
            for end in (1..reachable.len()).rev() {
                reachable[end] = reachable[end - 1] && name[end - 1] == byte;
            }
            reachable[0] = false;
        }
    }
    reachable[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Policy, FileError> {
        Policy::parse(text, Path::new("policy.toml"))
    }

    #[test]
    fn the_printed_policy_is_the_built_in_one() {
        let printed = parse(DEFAULT).unwrap();
        assert_eq!(format!("{printed:?}"), format!("{:?}", Policy::built_in()));
        assert_eq!(format!("{:?}", parse("").unwrap()), format!("{:?}", Policy::built_in()));
    }

    #[test]
    fn the_examples_in_the_printed_policy_can_be_used() {
        let lines = DEFAULT.lines().filter_map(|line| line.strip_prefix("# "));
        let text: Vec<_> =
            lines.filter(|line| line.starts_with('[') || line.contains(" = ")).collect();
        let policy = parse(&text.join("\n")).unwrap();
        assert_eq!(policy.rules[0].transport, Some(Kind::Unix));
        assert_eq!(policy.reserved[0].users, [990]);
        assert_eq!(policy.owner_of("bank"), Some(991));
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        let error = parse("access = \"same-user\"\nbuzy = 1\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("--print-policy"), "{error}");
        let error = parse("[transports]\nlocal = \"pigeon\"\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("mempipe-futex-safe"), "{error}");
        let error = parse("trusted_networks = [\"10/8\"]").unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("10.0.0.0/8"), "{error}");
        let error = parse("[thresholds]\ndwell_ms = 90000").unwrap_err().to_string();
        assert!(error.contains("at most dwell_ms_max"), "{error}");
        let error = parse("[transports]\nremote = \"pipe\"").unwrap_err().to_string();
        assert!(error.contains("tcp-nodelay"), "{error}");
        let error = Policy::read(Path::new("/nowhere/policy.toml")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/policy.toml") && error.contains("--policy"), "{error}");
    }

    #[test]
    fn networks_are_trusted_as_they_are_written() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3/8", "10.255.0.1", "11.0.0.1"),
            ("192.168.1.7/32", "192.168.1.7", "192.168.1.6"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("127.0.0.0/8", "::ffff:127.0.0.1", "::1"),
        ] {
            let policy = parse(&format!("trusted_networks = [\"{network}\"]")).unwrap();
            let trusts = [inside, outside].map(|text| policy.trusts(text.parse().unwrap()));
            assert_eq!(trusts, [true, false], "{network}");
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "::/129", "host/8", "/8", "10.0.0.0/-1"] {
            let error = parse(&format!("trusted_networks = [\"{text}\"]")).unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}` is no network")), "{error}");
        }
    }

    #[test]
    fn reserved_names_are_for_those_who_are_named() {
        let policy = parse("[[reserve]]\nname = \"fable://kv*\"\nusers = [7]\n").unwrap();
        let (kv, other) = ("fable://kv/1".parse().unwrap(), "fable://web".parse().unwrap());
        let may = |name, users: [u32; 3]| users.map(|user| policy.may_register(name, user));
        assert_eq!(may(&kv, [0, 7, 8]), [true, true, false]);
        assert_eq!(may(&other, [0, 7, 8]), [true; 3]);
    }

    #[test]
    fn services_have_the_owners_that_are_named() {
        let policy = parse("[owner]\nbank = 7\n\"web.example\" = \"root\"\n").unwrap();
        let owners = ["bank", "web.example", "kv"].map(|service| policy.owner_of(service));
        assert_eq!(owners, [Some(7), Some(0), None]);
        let error = parse("[owner]\nbank = \"no-such-user\"\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("/etc/passwd"), "{error}");
        let error = parse("[owner]\n\"bank/1\" = 7\n").unwrap_err().to_string();
        assert!(error.contains("name of a service"), "{error}");
        let error = parse("[quota]\nmemory_kib = 1\n").unwrap_err().to_string();
        assert!(error.contains("64 KiB"), "{error}");
    }

    #[test]
    fn patterns_fit() {
        let name: Name = "fable://kv/replica-1".parse().unwrap();
        for pattern in ["*", "fable://kv*", "fable://kv/replica-1", "*1", "*kv*-*", "fable://*/*"] {
            assert!(fits(pattern, &name), "{pattern}");
        }
        for pattern in ["", "fable://kv", "kv*", "*2", "fable://kv/replica-1?"] {
            assert!(!fits(pattern, &name), "{pattern}");
        }
    }
}
