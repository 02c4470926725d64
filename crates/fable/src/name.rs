//! Names of endpoints (section 3.1.1 of the paper): parses and formats their URIs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest service or instance name, in bytes.
const PART_BYTES_MAX: usize = 64;

/// The name of an endpoint, or the address of a foreign program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Name {
    /// `fable://service[/instance]`: an endpoint that is registered with the name daemon.
    Fable {
        /// The service.
        service: String,
        /// The instance of the service. A client that names none gets any instance.
        instance: Option<String>,
    },
    /// `tcp://host:port`: a TCP server.
    Tcp {
        /// A host name or address, without the brackets of IPv6.
        host: String,
        /// The port.
        port: u16,
    },
    /// `unix:///path`: a server on a UNIX stream socket; `unix://@name` is an abstract one.
    Unix {
        /// The path, or `@` and the abstract name.
        path: String,
    },
}

/// The error for a text that is not the name of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no endpoint: {why}")]
pub struct BadName {
    text: String,
    why: &'static str,
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Name, BadName> {
        let bad = |why| BadName { text: text.chars().take(256).collect(), why };
        let expected =
            "a name looks like fable://kv, fable://kv/1, tcp://host:port or unix:///path";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad(expected))?;
        match scheme {
            "fable" => {
                let (service, instance) = match rest.split_once('/') {
                    Some((service, instance)) => (service, Some(instance)),
                    None => (rest, None),
                };
                if ![Some(service), instance].into_iter().flatten().all(is_part) {
                    return Err(bad(
                        "service and instance have 1 to 64 letters, digits, dots, dashes and \
                         underscores",
                    ));
                }
                let instance = instance.map(str::to_owned);
                Ok(Name::Fable { service: service.to_owned(), instance })
            }
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("it lacks a port"))?;
                let port = port.parse().map_err(|_| bad("its port is no number up to 65535"))?;
                let host =
                    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                if host.is_empty() || host.len() > 255 {
                    return Err(bad("it lacks a host"));
                }
                Ok(Name::Tcp { host: host.to_owned(), port })
            }
            // The longest path that fits a socket address, see unix(7).
            "unix" if rest.len() > 107 => Err(bad("the path is longer than 107 bytes")),
            "unix" if rest.starts_with('/') || rest.len() > 1 && rest.starts_with('@') => {
                Ok(Name::Unix { path: rest.to_owned() })
            }
            "unix" => Err(bad("the path is absolute, or an abstract name behind an @")),
            _ => Err(bad(expected)),
        }
    }
}

fn is_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=PART_BYTES_MAX).contains(&part.len()) && part.bytes().all(allowed)
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Fable { service, instance: None } => write!(formatter, "fable://{service}"),
            Name::Fable { service, instance: Some(instance) } => {
                write!(formatter, "fable://{service}/{instance}")
            }
            Name::Tcp { host, port } if host.contains(':') => {
                write!(formatter, "tcp://[{host}]:{port}")
            }
            Name::Tcp { host, port } => write!(formatter, "tcp://{host}:{port}"),
            Name::Unix { path } => write!(formatter, "unix://{path}"),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Name, BadName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for text in [
            "fable://kv",
            "fable://kv/replica-1",
            "tcp://localhost:6379",
            "tcp://[::1]:6379",
            "unix:///run/kv.sock",
            "unix://@kv",
        ] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_a_reason() {
        for text in [
            "kv",
            "fable://",
            "fable://k v",
            "fable://kv/",
            "fable://kv/a/b",
            "tcp://host",
            "tcp://:1",
            "tcp://host:70000",
            "unix://relative",
            "unix://@",
            "http://kv",
        ] {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("names no endpoint: "), "{error}");
        }
    }
}
