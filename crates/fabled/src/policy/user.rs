//! Parses users in the policy: uids, or names in `/etc/passwd`.

use std::fs;

use serde::{Deserialize, Deserializer};

const PASSWD: &str = "/etc/passwd";

/// A user, by its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u32);

#[derive(Deserialize)]
#[serde(untagged, expecting = "a user is a uid or the name of a user")]
enum Written {
    Uid(u32),
    Name(String),
}

impl<'de> Deserialize<'de> for User {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<User, D::Error> {
        let name = match Written::deserialize(deserializer)? {
            Written::Uid(uid) => return Ok(User(uid)),
            Written::Name(name) => name,
        };
        let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
        uid_of(&passwd, &name).map(User).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "there is no user `{name}` in {PASSWD}: write the uid, which `id -u {name}` prints"
            ))
        })
    }
}

fn uid_of(passwd: &str, name: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name) && !name.is_empty();
        if is_it { fields.nth(1)?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_a_whole() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n\nbank:x:991:991::/:/bin/false\nodd\n";
        let uids = ["root", "bank", "ban", "odd", ""].map(|name| uid_of(passwd, name));
        assert_eq!(uids, [Some(0), Some(991), None, None, None]);
    }
}
