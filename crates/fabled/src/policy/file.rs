//! The policy as people write it: TOML.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fable::{Kind, Name};
use serde::{Deserialize, Deserializer};

use super::{Facts, Network, Reach};

/// The built-in policy, with comments.
pub const DEFAULT: &str = include_str!("default.toml");

/// A policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Who may connect to a name whose owner did not say.
    #[serde(default)]
    pub access: Access,
    /// Where flows need no TLS.
    #[serde(default = "loopback")]
    pub trusted_networks: Vec<Network>,
    /// The period of observations, in milliseconds.
    #[serde(default = "default_period_ms")]
    observe_every_ms: u64,
    /// When to change.
    #[serde(default)]
    pub thresholds: Thresholds,
    /// What to change to.
    #[serde(default)]
    pub transports: Transports,
    /// Exceptions, in order.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
    /// Names that not everybody may register, in order.
    #[serde(default, rename = "reserve")]
    pub reserved: Vec<Reserve>,
}

/// Names that are kept for some users.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Names like this, in which `*` stands for anything.
    pub name: String,
    /// Who may register them, apart from root.
    pub users: Vec<u32>,
}

/// Who may connect by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Who runs as the same user, and root.
    #[default]
    SameUser,
    /// Everybody on the hosts of the cluster.
    Everyone,
}

/// When to change; see the built-in policy for the meaning.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "explained where people read them, in default.toml")]
pub struct Thresholds {
    pub busy_messages_s: f64,
    pub calm_messages_s: f64,
    pub spin_load: f64,
    pub crowded_load: f64,
    pub dwell_ms: u64,
    pub dwell_ms_max: u64,
    pub observations: u32,
    pub retry_ms: u64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            busy_messages_s: 20_000.0,
            calm_messages_s: 5_000.0,
            spin_load: 1.25,
            crowded_load: 1.75,
            dwell_ms: 2_000,
            dwell_ms_max: 60_000,
            observations: 4,
            retry_ms: 30_000,
        }
    }
}

/// Which transport for which situation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transports {
    /// Both ends on one CPU.
    #[serde(deserialize_with = "kind")]
    pub shared_cpu: Kind,
    /// Different CPUs, few messages.
    #[serde(deserialize_with = "kind")]
    pub calm: Kind,
    /// Different CPUs, many messages.
    #[serde(deserialize_with = "kind")]
    pub busy: Kind,
    /// Different hosts.
    #[serde(deserialize_with = "kind")]
    pub remote: Kind,
}

impl Default for Transports {
    fn default() -> Transports {
        let safe = fable::Form::Safe;
        Transports {
            shared_cpu: Kind::MempipeFutex(safe),
            calm: Kind::MempipeFutex(safe),
            busy: Kind::MempipeSpin(safe),
            remote: Kind::TcpNodelay,
        }
    }
}

/// An exception.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Fits names like this, in which `*` stands for anything.
    pub name: Option<String>,
    /// Fits if both ends run as one of these users.
    pub users: Option<Vec<u32>>,
    /// Fits if both ends trust each other, or if they do not.
    pub trusted: Option<bool>,
    /// Fits if the ends are on different hosts, or if they are not.
    pub remote: Option<bool>,
    /// Use this transport.
    #[serde(deserialize_with = "some_kind")]
    pub transport: Option<Kind>,
    /// False: never spin.
    pub spin: Option<bool>,
    /// True: TLS beyond the host.
    pub protected: Option<bool>,
    /// For people.
    pub why: Option<String>,
}

fn loopback() -> Vec<Network> {
    ["127.0.0.0/8", "::1/128"].iter().filter_map(|text| text.parse().ok()).collect()
}

fn default_period_ms() -> u64 {
    250
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    let name = String::deserialize(deserializer)?;
    let kind: Kind = name.parse().map_err(serde::de::Error::custom)?;
    if kind == Kind::Cacheline {
        return Err(serde::de::Error::custom("cacheline is for measuring only"));
    }
    Ok(kind)
}

fn some_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Kind>, D::Error> {
    kind(deserializer).map(Some)
}

/// Why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error(
        "cannot read the policy {}: {source}; name a readable file with --policy",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no policy. The message has line and column.
    #[error(
        "the policy {} is wrong: {source}`fabled --print-policy` shows what may stand there",
        path.display()
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A number in it makes no sense.
    #[error("the policy {} is wrong: {what}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which, and what it should be.
        what: &'static str,
    },
}

impl Policy {
    /// Reads a file.
    ///
    /// # Errors
    /// [`FileError`], which names line and remedy.
    pub fn read(path: &Path) -> Result<Policy, FileError> {
        let text = fs::read_to_string(path)
            .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Policy::parse(&text, path)
    }

    /// The built-in one.
    pub fn built_in() -> Policy {
        Policy {
            access: Access::SameUser,
            trusted_networks: loopback(),
            observe_every_ms: default_period_ms(),
            thresholds: Thresholds::default(),
            transports: Transports::default(),
            rules: Vec::new(),
            reserved: Vec::new(),
        }
    }

    /// Understands a text; `path` is for errors.
    ///
    /// # Errors
    /// [`FileError`], which names line and remedy.
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
                "observe_every_ms is a number from 10 to 60000",
            ),
            (
                limits.calm_messages_s >= 0.0 && limits.calm_messages_s < limits.busy_messages_s,
                "calm_messages_s is at least 0 and less than busy_messages_s: \
                 the gap keeps flows from changing all the time",
            ),
            (
                limits.spin_load > 0.0 && limits.spin_load < limits.crowded_load,
                "spin_load is more than 0 and less than crowded_load",
            ),
            (
                limits.dwell_ms <= limits.dwell_ms_max && limits.dwell_ms_max <= 86_400_000,
                "dwell_ms is at most dwell_ms_max, which is at most a day",
            ),
            ((1..=1000).contains(&limits.observations), "observations is a number from 1 to 1000"),
            (limits.retry_ms <= 86_400_000, "retry_ms is at most a day"),
            (
                self.transports.remote.crosses_hosts(),
                "transports.remote is one that reaches another host: tcp, tcp-nodelay, mptcp, tls",
            ),
            (
                self.rules.len() <= 1000 && self.reserved.len() <= 1000,
                "there are at most 1000 rules and as many reservations",
            ),
        ];
        checks.into_iter().find(|(holds, _)| !holds).map(|(_, what)| what)
    }

    /// The period of observations.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.observe_every_ms)
    }

    /// Whether an address lies in a trusted network.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_networks.iter().any(|network| network.contains(address))
    }

    /// The first rule that fits.
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

    /// Whether a user may register a name.
    pub fn may_register(&self, name: &Name, user: u32) -> bool {
        let reserve = self.reserved.iter().find(|reserve| fits(&reserve.name, name));
        user == 0 || reserve.is_none_or(|reserve| reserve.users.contains(&user))
    }

    /// Whether the rules demand protection beyond the host.
    pub fn protects(&self, facts: &Facts) -> bool {
        self.rule_for(facts).and_then(|rule| rule.protected).unwrap_or(false)
    }
}

/// Whether a name fits a pattern in which `*` stands for anything. Takes time proportional to the
/// product of the lengths, whatever the pattern is.
fn fits(pattern: &str, name: &Name) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.to_string());
    let name = name.as_bytes();
    // Whether the pattern so far fits the first n bytes of the name.
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
            lines.filter(|line| line.starts_with("[[") || line.contains(" = ")).collect();
        let policy = parse(&text.join("\n")).unwrap();
        assert_eq!(policy.rules[0].transport, Some(Kind::Unix));
        assert_eq!(policy.reserved[0].users, [990]);
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        let error = parse("access = \"same-user\"\nbuzy = 1\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("--print-policy"), "{error}");
        let error = parse("[transports]\nbusy = \"pigeon\"\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("mempipe-spin-safe"), "{error}");
        let error = parse("trusted_networks = [\"10/8\"]").unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("10.0.0.0/8"), "{error}");
        let error = parse("[thresholds]\ncalm_messages_s = 1e9").unwrap_err().to_string();
        assert!(error.contains("less than busy_messages_s"), "{error}");
        let error = parse("[transports]\nremote = \"pipe\"").unwrap_err().to_string();
        assert!(error.contains("tcp-nodelay"), "{error}");
        let error = Policy::read(Path::new("/nowhere/policy.toml")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/policy.toml") && error.contains("--policy"), "{error}");
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
