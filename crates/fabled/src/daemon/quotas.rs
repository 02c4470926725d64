//! Applies the policy's quotas, and shows what users hold.

use std::time::Instant;

use fable::protocol::{Answer, Usage, UserEntry};

use super::Daemon;
use crate::log_quota;
use crate::policy::Quota;
use crate::quota::{Account, Amounts, Standing};
use crate::registry::ClientId;

/// Returns the quota of one user as amounts.
pub(super) fn amounts(quota: &Quota) -> Amounts {
    let memory = quota.memory_kib as usize * 1024;
    [quota.connections as usize, quota.names as usize, quota.flows as usize, memory]
}

impl Daemon {
    /// Applies the quotas of a policy that was read again.
    pub(super) fn apply_quotas(&mut self) {
        self.quotas.set_quota(amounts(&self.policy.quota));
        log_quota::configure(self.policy.quota.log_lines_s, self.own_uid);
    }

    /// Logs how many lines were suppressed lately, one line per user.
    pub(super) fn report_suppressed_lines(&mut self) {
        for (account, lines) in log_quota::suppressed(Instant::now()) {
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
    let Standing { account, held, limits, refused } = standing;
    let usage = |index: usize| Usage { held: held[index], limit: limits[index] };
    UserEntry {
        user: account.as_ref().map_or_else(|| "all".to_owned(), Account::to_string),
        connections: usage(0),
        names: usage(1),
        flows: usage(2),
        bytes: usage(3),
        refused,
        suppressed: log_quota::suppressed_ever(account.as_ref()),
    }
}
