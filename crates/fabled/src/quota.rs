//! Accounts for what each user makes the daemon hold, and refuses what exceeds the user's share.
//!
//! [`Quotas`] has one [`Holder`] per user of this host and per other host. [`Holder::charge`] takes
//! from it; the [`Charge`] gives back when it is dropped, so an entry of a table and its charge end
//! together. [`Holder::take_line`] limits the log lines that an account causes, by their rate.
//! Three rules apply to what is charged:
//!
//! 1. A user has at most its quota, which is a key of the policy.
//! 2. A user has at most as much as is still free for users who have more than little. A quarter of
//!    each table is kept for those who have little, so whoever comes later gets something, too:
//!    users who take all they can must be more than 256 to leave nothing.
//! 3. A part of each table is for root only. Rules 1 and 2 apply neither to root nor to the user
//!    who runs the daemon.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use bucket::Bucket;

mod bucket;

/// Who is charged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Account {
    /// A user of this host.
    User(u32),
    /// All users of another host, whose daemon vouches for them.
    Host(String),
}

impl fmt::Display for Account {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::User(uid) => write!(formatter, "user {uid}"),
            Account::Host(host) => write!(formatter, "host {host}"),
        }
    }
}

/// Amounts of everything that is counted, in the order of [`TABLES`].
pub(crate) type Amounts = [usize; 4];

/// A table: what it counts, how many entries it has, and how many of them are for root only.
struct Table {
    /// What it counts.
    what: &'static str,
    /// The key of the policy that limits one user.
    key: &'static str,
    all: usize,
    for_root: usize,
}

const TABLES: [Table; 4] = [
    Table { what: "connections", key: "connections", all: 8192, for_root: 256 },
    Table { what: "names", key: "names", all: 16_384, for_root: 1024 },
    Table { what: "flows", key: "flows", all: 32_768, for_root: 1024 },
    Table { what: "bytes", key: "memory_kib", all: 768 << 20, for_root: 64 << 20 },
];

/// The part of a table that is kept for users who have little, and how much that is: a quarter, and
/// a 1024th.
const PART_FOR_LITTLE: usize = 4;
const LITTLE_PART: usize = 1024;

/// Two for a connection and its process, and as many as one again for flows that are being made.
const DESCRIPTORS_PER_CONNECTION: u64 = 3;

/// Memory that a connection without unsent packets takes.
const CONNECTION_BYTES: usize = 4096;
/// Memory that a name takes, without its lists.
const NAME_BYTES: usize = 1024;
/// Memory that a flow takes: its page, its entry, and the decisions that are kept of it.
const FLOW_BYTES: usize = 16 << 10;
/// Memory that an unsent packet takes besides its bytes.
pub(crate) const PACKET_BYTES: usize = 128;
/// What a descriptor in an unsent packet counts as. Descriptors are scarcer than memory.
const DESCRIPTOR_BYTES: usize = 16 << 10;

/// Returns what a connection costs.
pub(crate) fn connection() -> Amounts {
    [1, 0, 0, CONNECTION_BYTES]
}

/// Returns what a name costs whose lists have this many entries.
pub(crate) fn name(listed: usize) -> Amounts {
    [0, 1, 0, NAME_BYTES + listed * size_of::<u32>()]
}

/// Returns what a flow costs.
pub(crate) fn flow() -> Amounts {
    [0, 0, 1, FLOW_BYTES]
}

/// Returns what an unsent packet costs.
pub(crate) fn packet(bytes: usize, descriptors: usize) -> Amounts {
    [0, 0, 0, PACKET_BYTES + bytes + descriptors * DESCRIPTOR_BYTES]
}

type Counts = [Cell<usize>; 4];

/// What all holders share.
#[derive(Debug)]
struct Shared {
    own_uid: u32,
    /// The sizes of the tables.
    all: Amounts,
    quota: Cell<Amounts>,
    held: Counts,
    refused: Cell<u64>,
    /// Log lines per second of one user; 0: no limit.
    log_lines_s: Cell<u32>,
    lines: Bucket,
    suppressed: Cell<u64>,
}

/// All accounts.
#[derive(Debug)]
pub(crate) struct Quotas {
    shared: Rc<Shared>,
    holders: RefCell<BTreeMap<Account, Rc<Holder>>>,
    /// When suppressed lines were last reported.
    reported: Cell<Option<Instant>>,
}

/// An account.
#[derive(Debug)]
pub(crate) struct Holder {
    account: Account,
    shared: Rc<Shared>,
    held: Counts,
    refused: Cell<u64>,
    lines: Bucket,
    /// Lines that were suppressed: in all, and until the last report.
    suppressed: Cell<u64>,
    suppressed_before: Cell<u64>,
}

/// What an account holds, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    holder: Rc<Holder>,
    amounts: Amounts,
}

/// The state of an account, or of all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Which; `None` for all together.
    pub(crate) account: Option<Account>,
    /// What it holds.
    pub(crate) held: Amounts,
    /// What there is room for: the size of the tables, or the user's quota.
    pub(crate) limits: Amounts,
    /// How often it was refused something.
    pub(crate) refused: u64,
    /// How many of its log lines were suppressed.
    pub(crate) suppressed: u64,
}

/// Accounts without anything that are kept for their numbers of refusals and suppressed lines.
const IDLE_MAX: usize = 256;

/// How many times the rate of one user all users together have for log lines.
const USERS_AT_FULL_RATE: f64 = 20.0;
/// How often suppressed lines are reported.
const REPORT_S: f64 = 5.0;

impl Quotas {
    /// Opens the accounts of a daemon that runs as this user and may have so many descriptors. With
    /// few, it has fewer connections, so that they do not take the descriptors for new flows.
    pub(crate) fn new(own_uid: u32, quota: Amounts, log_lines_s: u32, descriptors: u64) -> Quotas {
        let mut all = TABLES.map(|table| table.all);
        let connections = descriptors / DESCRIPTORS_PER_CONNECTION;
        all[0] = all[0].min(usize::try_from(connections).unwrap_or(usize::MAX));
        let shared = Shared {
            own_uid,
            all,
            quota: Cell::new(quota),
            held: Counts::default(),
            refused: Cell::default(),
            log_lines_s: Cell::new(log_lines_s),
            lines: Bucket::default(),
            suppressed: Cell::default(),
        };
        let (holders, reported) = (RefCell::default(), Cell::default());
        Quotas { shared: Rc::new(shared), holders, reported }
    }

    /// Sets the quota of each user, and its log lines per second. What users hold already stays.
    pub(crate) fn set_quota(&self, quota: Amounts, log_lines_s: u32) {
        self.shared.quota.set(quota);
        self.shared.log_lines_s.set(log_lines_s);
    }

    /// Returns an account, which is opened if there is none.
    pub(crate) fn holder(&self, account: &Account) -> Rc<Holder> {
        let mut holders = self.holders.borrow_mut();
        if let Some(holder) = holders.get(account) {
            return Rc::clone(holder);
        }
        let idle = |holder: &Rc<Holder>| Rc::strong_count(holder) == 1;
        if holders.len() > IDLE_MAX
            && holders.values().filter(|holder| idle(holder)).count() > IDLE_MAX
        {
            holders.retain(|_, holder| !idle(holder));
        }
        let holder = Rc::new(Holder {
            account: account.clone(),
            shared: Rc::clone(&self.shared),
            held: Counts::default(),
            refused: Cell::default(),
            lines: Bucket::default(),
            suppressed: Cell::default(),
            suppressed_before: Cell::default(),
        });
        holders.insert(account.clone(), Rc::clone(&holder));
        holder
    }

    /// Returns the state of all accounts together, and of each that holds something or was refused
    /// something.
    pub(crate) fn standings(&self) -> Vec<Standing> {
        let all = Standing {
            account: None,
            held: self.shared.held.each_ref().map(Cell::get),
            limits: self.shared.all,
            refused: self.shared.refused.get(),
            suppressed: self.shared.suppressed.get(),
        };
        let holders = self.holders.borrow();
        let each = holders.values().map(|holder| holder.standing());
        let each = each.filter(|standing| standing.held != [0; 4] || standing.refused > 0);
        std::iter::once(all).chain(each).collect()
    }

    /// Returns how many log lines were suppressed since the last report, by account. Returns
    /// nothing between two periods.
    pub(crate) fn suppressed_lines(&self, now: Instant) -> Vec<(Account, u64)> {
        let is_early = |then: Instant| (now - then).as_secs_f64() < REPORT_S;
        if self.reported.get().is_some_and(is_early) {
            return Vec::new();
        }
        self.reported.set(Some(now));
        let holders = self.holders.borrow();
        let suppressed = holders.values().map(|holder| {
            let ever = holder.suppressed.get();
            (holder.account.clone(), ever - holder.suppressed_before.replace(ever))
        });
        suppressed.filter(|(_, lines)| *lines > 0).collect()
    }
}

impl Holder {
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Counts a refusal that no quota caused.
    pub(crate) fn count_refusal(&self) {
        self.refused.set(self.refused.get() + 1);
        self.shared.refused.set(self.shared.refused.get() + 1);
    }

    /// Takes one line from the rates of this account and of all. Returns false if the line is to be
    /// suppressed.
    pub(crate) fn take_line(&self, now: Instant) -> bool {
        let Shared { log_lines_s, lines, suppressed, .. } = &*self.shared;
        let rate = f64::from(log_lines_s.get());
        if rate == 0.0 || self.is_free() {
            return true;
        }
        let is_left = self.lines.refill(rate, now) & lines.refill(rate * USERS_AT_FULL_RATE, now);
        if is_left {
            self.lines.take();
            lines.take();
        } else {
            self.suppressed.set(self.suppressed.get() + 1);
            suppressed.set(suppressed.get() + 1);
        }
        is_left
    }

    /// Returns whether the account has no quota.
    fn is_free(&self) -> bool {
        matches!(self.account, Account::User(uid) if uid == 0 || uid == self.shared.own_uid)
    }

    /// Takes these amounts, all or none.
    ///
    /// # Errors
    /// Which quota is exhausted, and the remedy.
    pub(crate) fn charge(self: &Rc<Holder>, amounts: Amounts) -> Result<Charge, String> {
        for (index, amount) in amounts.into_iter().enumerate().filter(|(_, amount)| *amount > 0) {
            self.check(index, amount).inspect_err(|_| self.count_refusal())?;
        }
        self.add(amounts);
        Ok(Charge { holder: Rc::clone(self), amounts })
    }

    fn check(&self, index: usize, amount: usize) -> Result<(), String> {
        let Table { what, key, for_root, .. } = &TABLES[index];
        let all = self.shared.all[index];
        let held = self.held[index].get();
        let left = all - self.shared.held[index].get().min(all);
        let free = left.saturating_sub((*for_root).min(all / 8));
        let quota = self.shared.quota.get()[index];
        let account = &self.account;
        match account {
            Account::User(0) if amount <= left => return Ok(()),
            Account::User(0) => {
                return Err(format!("this daemon holds all {all} {what} that it may have"));
            }
            Account::User(uid) if *uid == self.shared.own_uid && amount <= free => return Ok(()),
            _ => {}
        }
        if held + amount > quota {
            return Err(format!(
                "{account} has {held} of the {quota} {what} that one user may have: give some up, \
                 or raise `{key}` in the section [quota] of the daemon's policy"
            ));
        }
        let is_little = held + amount <= (all / LITTLE_PART).max(1) && amount <= free;
        let free = free.saturating_sub(all / PART_FOR_LITTLE);
        if held + amount > free && !is_little {
            return Err(format!(
                "{account} has {held} {what} and may not have more while only {free} are free for \
                 all users: give some up; `fable stat` shows who has how many"
            ));
        }
        Ok(())
    }

    fn add(&self, amounts: Amounts) {
        for (index, amount) in amounts.into_iter().enumerate() {
            for held in [&self.held[index], &self.shared.held[index]] {
                held.set(held.get() + amount);
            }
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            account: Some(self.account.clone()),
            held: self.held.each_ref().map(Cell::get),
            limits: match self.is_free() {
                true => self.shared.all,
                false => self.shared.quota.get(),
            },
            refused: self.refused.get(),
            suppressed: self.suppressed.get(),
        }
    }
}

impl Charge {
    /// Returns the account that is charged.
    pub(crate) fn holder(&self) -> &Rc<Holder> {
        &self.holder
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for (index, amount) in self.amounts.into_iter().enumerate() {
            for held in [&self.holder.held[index], &self.holder.shared.held[index]] {
                held.set(held.get() - amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const QUOTA: Amounts = [2048, 4096, 8192, 192 << 20];
    const MANY: u64 = 65_536;

    fn fill(holder: &Rc<Holder>) -> (Vec<Charge>, String) {
        let mut charges = Vec::new();
        loop {
            match holder.charge(name(0)) {
                Ok(charge) => charges.push(charge),
                Err(reason) => return (charges, reason),
            }
        }
    }

    #[test]
    fn a_user_has_its_quota_and_gets_back_what_it_gives_up() {
        let quotas = Quotas::new(0, QUOTA, 10, MANY);
        let holder = quotas.holder(&Account::User(7));
        let (mut charges, reason) = fill(&holder);
        assert_eq!(charges.len(), 4096);
        assert!(reason.contains("user 7") && reason.contains("`names`"), "{reason}");
        charges.pop();
        assert!(holder.charge(name(0)).is_ok());
        assert_eq!(quotas.standings()[1].refused, 1);
        drop(charges);
        assert_eq!(quotas.standings()[0].held, [0; 4]);
    }

    #[test]
    fn many_users_leave_room_for_another_one_and_for_root() {
        let quotas = Quotas::new(0, QUOTA, 10, MANY);
        let greedy: Vec<_> =
            (1..=100).map(|uid| fill(&quotas.holder(&Account::User(uid))).0).collect();
        let held: usize = greedy.iter().map(Vec::len).sum();
        assert!(held < 16_384 - 1024 - 2048, "{held}");
        assert!(quotas.holder(&Account::User(500)).charge(name(0)).is_ok());
        let (root, reason) = fill(&quotas.holder(&Account::User(0)));
        assert!(root.len() > 1024 && root.len() + held == 16_384, "{}", root.len());
        assert!(reason.contains("all 16384 names"), "{reason}");
        let reason = quotas.holder(&Account::User(501)).charge(name(0)).unwrap_err();
        assert!(reason.contains("free") && reason.contains("fable stat"), "{reason}");
    }

    #[test]
    fn the_user_of_the_daemon_leaves_the_reserve_to_root() {
        let quotas = Quotas::new(1000, QUOTA, 10, MANY);
        let (own, _) = fill(&quotas.holder(&Account::User(1000)));
        assert_eq!(own.len(), 16_384 - 1024);
        assert_eq!(fill(&quotas.holder(&Account::User(0))).0.len(), 1024);
    }

    #[test]
    fn few_descriptors_are_shared_like_all_else() {
        let quotas = Quotas::new(0, QUOTA, 10, 300);
        let connect = |uid| {
            let holder = quotas.holder(&Account::User(uid));
            std::iter::from_fn(|| holder.charge(connection()).ok()).collect::<Vec<_>>()
        };
        let (greedy, late, root) = (connect(7), connect(8), connect(0));
        // Of 100, 12 are for root and 25 for users who have little.
        assert_eq!(greedy.len(), 32);
        assert!(late.len() >= 10 && root.len() >= 12, "{} {}", late.len(), root.len());
    }

    #[test]
    fn a_refusal_takes_nothing() {
        let quotas = Quotas::new(0, [1, 1, 1, 100], 10, MANY);
        let holder = quotas.holder(&Account::Host("node7".to_owned()));
        assert!(holder.charge(flow()).unwrap_err().contains("host node7 has 0 of the 100 bytes"));
        assert_eq!(quotas.standings()[1].held, [0; 4]);
        assert!(holder.charge([0, 0, 0, 100]).is_ok());
    }

    #[test]
    fn a_user_has_a_burst_and_a_rate_of_lines_and_others_are_not_affected() {
        let quotas = Quotas::new(1000, QUOTA, 10, MANY);
        let count = |uid: u32, now: Instant| {
            let holder = quotas.holder(&Account::User(uid));
            (0..1000).filter(|_| holder.take_line(now)).count()
        };
        let start = Instant::now();
        assert_eq!(count(7, start), 250);
        assert_eq!(count(7, start + Duration::from_secs(2)), 20);
        assert_eq!(count(8, start), 250);
        assert_eq!(count(0, start), 1000);
        assert_eq!(count(1000, start), 1000);
        let expected = [(Account::User(7), 750 + 980), (Account::User(8), 750)];
        assert_eq!(quotas.suppressed_lines(start), expected);
        assert_eq!(quotas.suppressed_lines(start + Duration::from_secs(1)), []);
        assert_eq!(quotas.standings()[0].suppressed, 750 + 980 + 750);
        // All users together have a rate, too.
        let all: usize = (100..200).map(|uid| count(uid, start)).sum();
        assert!(all <= 20 * 250, "{all}");
        quotas.set_quota(QUOTA, 0);
        assert_eq!(count(7, start), 1000, "0: no limit");
    }

    #[test]
    fn accounts_without_anything_are_closed() {
        let quotas = Quotas::new(0, QUOTA, 10, MANY);
        for uid in 0..10_000 {
            quotas.holder(&Account::User(uid));
        }
        assert!(quotas.holders.borrow().len() <= IDLE_MAX + 2);
    }
}
