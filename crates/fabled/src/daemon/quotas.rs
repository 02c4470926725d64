//! Applies the policy's quotas, and shows what users hold.

use std::time::Instant;

use fable::protocol::{Answer, Usage, UserEntry};

use super::Daemon;
use crate::policy::Quota;
use crate::quota::{Account, Amounts, Quotas, Standing};
use crate::registry::ClientId;

/// Opens the accounts of a daemon that runs as this user and may have so many descriptors.
pub(super) fn open(quota: &Quota, own_uid: u32, descriptors: u64) -> Quotas {
    Quotas::new(own_uid, amounts(quota), quota.log_lines_s, descriptors)
}

/// Returns the quota of one user as amounts.
fn amounts(quota: &Quota) -> Amounts {
    let memory = quota.memory_kib as usize * 1024;
    [quota.connections as usize, quota.names as usize, quota.flows as usize, memory]
}

impl Daemon {
    /// Applies the quotas of a policy that was read again.
    pub(super) fn apply_quotas(&mut self) {
        let quota = &self.policy.quota;
        self.quotas.set_quota(amounts(quota), quota.log_lines_s);
    }

    /// Logs how many lines were suppressed lately, one line per user.
    pub(super) fn report_suppressed_lines(&mut self) {
        for (account, lines) in self.quotas.suppressed_lines(Instant::now()) {
            let rate = self.policy.quota.log_lines_s;
            let what = format!(
                "{lines} more lines about {account} were suppressed: a user may cause {rate} per \
                 second (`log_lines_s` in the section [quota] of the policy)"
            );
            self.event(None, &what);
        }
    }

    pub(super) fn list_users(&mut self, id: ClientId, request: u64) {
        let is_operator = self.is_operator(id);
        let own = self.clients.get(&id).map(|client| client.holder.account().clone());
        let may_see = |standing: &Standing| {
            is_operator || standing.account.is_none() || standing.account == own
        };
        let standings = self.quotas.standings().into_iter().filter(may_see);
        let users: Vec<UserEntry> = standings.map(entry).collect();
        self.answer_in_parts(id, request, users, |users, more| Answer::Users { users, more });
    }
}

fn entry(standing: Standing) -> UserEntry {
    let Standing { account, held, limits, refused, suppressed } = standing;
    let usage = |index: usize| Usage { held: held[index], limit: limits[index] };
    UserEntry {
        user: account.as_ref().map_or_else(|| "all".to_owned(), Account::to_string),
        connections: usage(0),
        names: usage(1),
        flows: usage(2),
        bytes: usage(3),
        refused,
        suppressed,
    }
}
