//! Tracks which user owns each service name of this host.
//!
//! A service belongs to the user who registers its first instance: as long as it has instances, and
//! for some time afterwards, so that a service that restarts does not lose its name. A file keeps
//! the owners while the daemon restarts. The policy's `[owner]` section has precedence; see
//! `Daemon::owner_of`.

mod file;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use file::OwnersFile;

/// Services without instances that are remembered, and of one user. When there are more, the user
/// with the most loses its oldest ones.
const KEPT_MAX: usize = 16_384;
const KEPT_OF_USER_MAX: usize = 1024;

/// The least time for which the owners that an earlier daemon knew are kept: longer than the
/// library pauses between two attempts to connect.
const KEPT_AFTER_RESTART: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Claim {
    uid: u32,
    instances: usize,
    /// Set while there are no instances.
    until: Option<Instant>,
}

/// The owners of services.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    claims: HashMap<String, Claim>,
    /// How many claims have no instances, and how many of them each user has.
    kept: usize,
    kept_of: HashMap<u32, usize>,
    /// What the next daemon reads; `None` in tests.
    file: Option<OwnersFile>,
}

impl Owners {
    /// Reads the owners that an earlier daemon of this socket has left.
    pub(crate) fn of_socket(socket: &Path, kept_for: Duration, now: Instant) -> Owners {
        let mut file = OwnersFile::new(socket);
        let until = Some(now + kept_for.max(KEPT_AFTER_RESTART));
        let claim = |(service, uid)| (service, Claim { uid, instances: 0, until });
        let claims = file.read().into_iter().map(claim).collect();
        let mut owners = Owners { claims, file: Some(file), ..Owners::default() };
        owners.count();
        owners
    }

    /// Removes the file for the next daemon, if no service has an owner now.
    pub(crate) fn close(&mut self, now: Instant) {
        self.claims.retain(|_, claim| claim.until.is_none_or(|until| until > now));
        if let Some(file) = self.file.take_if(|_| self.claims.is_empty()) {
            file.remove();
        }
    }

    /// Returns the owner of a service, and how long it stays the owner if it has no instances.
    pub(crate) fn owner(&self, service: &str, now: Instant) -> Option<(u32, Option<Duration>)> {
        let claim = self.claims.get(service)?;
        match claim.until {
            Some(until) if until <= now => None,
            until => Some((claim.uid, until.map(|until| until - now))),
        }
    }

    /// Records a new instance. The user becomes the owner if there is none, or if `is_assigned`.
    pub(crate) fn add(&mut self, service: &str, uid: u32, is_assigned: bool, now: Instant) {
        let is_owned = self.owner(service, now).is_some();
        let claim = self.claims.entry(service.to_owned());
        let claim = claim.or_insert(Claim { uid, instances: 0, until: None });
        if claim.until.take().is_some() {
            self.kept -= 1;
            if let Some(of_user) = self.kept_of.get_mut(&claim.uid) {
                *of_user -= 1;
            }
        }
        claim.instances += 1;
        let is_new = !is_owned || (is_assigned && claim.uid != uid);
        if is_new {
            claim.uid = uid;
            if let Some(file) = &mut self.file {
                let all = self.claims.iter().map(|(service, claim)| (service.as_str(), claim.uid));
                file.append(service, uid, all);
            }
        }
    }

    /// Records that an instance is gone. After the last one, the owner is kept for `kept_for`.
    pub(crate) fn remove(&mut self, service: &str, kept_for: Duration, now: Instant) {
        let Some(claim) = self.claims.get_mut(service) else { return };
        claim.instances = claim.instances.saturating_sub(1);
        if claim.instances > 0 {
            return;
        }
        claim.until = Some(now + kept_for);
        let uid = claim.uid;
        self.kept += 1;
        let of_user = self.kept_of.entry(uid).or_default();
        *of_user += 1;
        if *of_user > KEPT_OF_USER_MAX || self.kept > KEPT_MAX {
            self.make_room(now);
        }
    }

    /// Forgets what is over, and the older half of what the user with the most claims has left.
    /// Half of them, so that this is seldom.
    fn make_room(&mut self, now: Instant) {
        self.claims.retain(|_, claim| claim.until.is_none_or(|until| until > now));
        self.count();
        let most =
            self.kept_of.iter().max_by_key(|(_, kept)| **kept).map(|(uid, kept)| (*uid, *kept));
        let Some((uid, kept)) = most else { return };
        if kept <= KEPT_OF_USER_MAX && self.kept <= KEPT_MAX {
            return;
        }
        let own = self.claims.iter().filter(|(_, claim)| claim.uid == uid);
        let mut own: Vec<_> =
            own.filter_map(|(service, claim)| Some((claim.until?, service.clone()))).collect();
        own.sort();
        for (_, service) in own.iter().take(kept.div_ceil(2)) {
            self.claims.remove(service);
        }
        self.count();
    }

    fn count(&mut self) {
        self.kept_of.clear();
        for claim in self.claims.values().filter(|claim| claim.until.is_some()) {
            *self.kept_of.entry(claim.uid).or_default() += 1;
        }
        self.kept = self.kept_of.values().sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(60);

    #[test]
    fn a_service_belongs_to_its_first_user_until_some_time_after_its_last_instance() {
        let mut owners = Owners::default();
        let start = Instant::now();
        assert_eq!(owners.owner("bank", start), None);
        owners.add("bank", 1000, false, start);
        owners.add("bank", 0, false, start);
        assert_eq!(owners.owner("bank", start), Some((1000, None)));
        owners.remove("bank", KEPT, start);
        assert_eq!(owners.owner("bank", start), Some((1000, None)));
        owners.remove("bank", KEPT, start);
        assert_eq!(owners.owner("bank", start), Some((1000, Some(KEPT))));
        let later = start + KEPT;
        assert_eq!(owners.owner("bank", later), None);
        owners.add("bank", 7, false, later);
        assert_eq!(owners.owner("bank", later), Some((7, None)));
        // The policy has given it to somebody else.
        owners.add("bank", 8, true, later);
        assert_eq!(owners.owner("bank", later), Some((8, None)));
        assert_eq!(owners.kept, 0);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_a_user_displaces_only_its_own() {
        let mut owners = Owners::default();
        let start = Instant::now();
        owners.add("bank", 1000, false, start);
        owners.remove("bank", KEPT, start);
        for number in 0..3000 {
            let (service, now) = (format!("s{number}"), start + Duration::from_millis(number));
            owners.add(&service, 7, false, now);
            owners.remove(&service, KEPT, now);
        }
        assert!((500..=KEPT_OF_USER_MAX + 1).contains(&owners.kept), "{}", owners.kept);
        assert_eq!(owners.claims.len(), owners.kept);
        let now = start + Duration::from_secs(3);
        assert_eq!(owners.owner("bank", now).map(|(uid, _)| uid), Some(1000));
        assert_eq!(owners.owner("s0", now), None);
        assert_eq!(owners.owner("s2999", now).map(|(uid, _)| uid), Some(7));
    }
}
