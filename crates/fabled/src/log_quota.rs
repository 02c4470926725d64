//! Limits the log lines that each user causes.
//!
//! The daemon's thread says with `acting` for whom it works. [`Writer`] then drops the lines that
//! exceed the user's rate, and `suppressed` returns how many, which the daemon logs once per
//! period. Lines of other threads, of root and of the user who runs the daemon are not limited.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use sys::output::STDERR;
use tracing_subscriber::fmt::MakeWriter;

use crate::quota::Account;

/// Lines that one user may cause at once after a silence, for each line per second of its rate.
const BURST_S: f64 = 25.0;
/// How many times the rate of one user all users together have.
const USERS_AT_FULL_RATE: f64 = 20.0;
/// Users whose rates are tracked. Lines of others are suppressed until the next report.
const USERS_MAX: usize = 4096;
/// How often suppressed lines are reported.
const REPORT_S: f64 = 5.0;

/// A token bucket: one token is one line.
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn full(rate: f64, now: Instant) -> Bucket {
        Bucket { tokens: rate * BURST_S, filled: now }
    }

    fn refill(&mut self, rate: f64, now: Instant) {
        let passed_s = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed_s * rate).min(rate * BURST_S);
        self.filled = now;
    }
}

#[derive(Default)]
struct UserLines {
    bucket: Option<Bucket>,
    /// Since the last report, and in all.
    suppressed: u64,
    suppressed_ever: u64,
}

#[derive(Default)]
struct Lines {
    acting: Option<Account>,
    /// Lines per second of one user; 0 limits nobody.
    rate: f64,
    own_uid: u32,
    all: Option<Bucket>,
    users: BTreeMap<Account, UserLines>,
    reported: Option<Instant>,
}

thread_local! {
    static LINES: RefCell<Lines> = RefCell::default();
}

impl Lines {
    fn admits(&mut self, now: Instant) -> bool {
        let Some(account) = self.acting.clone().filter(|account| !self.is_free(account)) else {
            return true;
        };
        let (rate, all_rate) = (self.rate, self.rate * USERS_AT_FULL_RATE);
        if rate <= 0.0 {
            return true;
        }
        let all = self.all.get_or_insert_with(|| Bucket::full(all_rate, now));
        all.refill(all_rate, now);
        if !self.users.contains_key(&account) && self.users.len() >= USERS_MAX {
            self.users.retain(|_, lines| lines.suppressed > 0);
            if self.users.len() >= USERS_MAX {
                return false;
            }
        }
        let user = self.users.entry(account).or_default();
        let bucket = user.bucket.get_or_insert_with(|| Bucket::full(rate, now));
        bucket.refill(rate, now);
        if bucket.tokens >= 1.0 && all.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            all.tokens -= 1.0;
            return true;
        }
        user.suppressed += 1;
        user.suppressed_ever += 1;
        false
    }

    fn is_free(&self, account: &Account) -> bool {
        matches!(account, Account::User(uid) if *uid == 0 || *uid == self.own_uid)
    }
}

/// Sets how many lines per second one user may cause, and who runs the daemon.
pub(crate) fn configure(lines_s: u32, own_uid: u32) {
    LINES.with_borrow_mut(|lines| {
        lines.rate = f64::from(lines_s);
        lines.own_uid = own_uid;
    });
}

/// Restores for whom the thread worked before.
pub(crate) struct Acting(Option<Account>);

impl Drop for Acting {
    fn drop(&mut self) {
        LINES.with_borrow_mut(|lines| lines.acting = self.0.take());
    }
}

/// Charges the lines of this thread to an account until the result is dropped; to none with `None`.
#[must_use]
pub(crate) fn acting(account: Option<Account>) -> Acting {
    Acting(LINES.with_borrow_mut(|lines| std::mem::replace(&mut lines.acting, account)))
}

/// Takes one line from the acting user's rate. Returns false if the line is to be suppressed.
pub(crate) fn take_line() -> bool {
    LINES.with_borrow_mut(|lines| lines.admits(Instant::now()))
}

/// Returns how many lines were suppressed since the last report, by account. Returns nothing
/// between two periods.
pub(crate) fn suppressed(now: Instant) -> Vec<(Account, u64)> {
    LINES.with_borrow_mut(|lines| {
        let is_early = |then: Instant| (now - then).as_secs_f64() < REPORT_S;
        if lines.reported.is_some_and(is_early) {
            return Vec::new();
        }
        lines.reported = Some(now);
        let users = lines.users.iter_mut().filter(|(_, user)| user.suppressed > 0);
        users
            .map(|(account, user)| (account.clone(), std::mem::take(&mut user.suppressed)))
            .collect()
    })
}

/// Returns how many lines of an account were suppressed so far; of all without an account.
pub(crate) fn suppressed_ever(account: Option<&Account>) -> u64 {
    LINES.with_borrow(|lines| match account {
        Some(account) => lines.users.get(account).map_or(0, |user| user.suppressed_ever),
        None => lines.users.values().map(|user| user.suppressed_ever).sum(),
    })
}

/// Writes log lines to standard error, except those that exceed the rate of the acting user. It
/// reports no error, of which `tracing_subscriber` would print a message and panic.
#[derive(Clone, Copy, Debug)]
pub struct Writer;

/// The place of one line.
#[derive(Debug)]
pub enum Line {
    /// Standard error.
    Written,
    /// Nowhere.
    Suppressed,
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Line::Written => STDERR.write(bytes),
            Line::Suppressed => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        if take_line() { Line::Written } else { Line::Suppressed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_user_has_a_burst_and_a_rate_and_others_are_not_affected() {
        configure(10, 1000);
        let count = |account: Account, now: Instant| {
            let _acting = acting(Some(account));
            (0..1000).filter(|_| LINES.with_borrow_mut(|lines| lines.admits(now))).count()
        };
        let start = Instant::now();
        assert_eq!(count(Account::User(7), start), 250);
        assert_eq!(count(Account::User(7), start + Duration::from_secs(2)), 20);
        assert_eq!(count(Account::User(8), start), 250);
        assert_eq!(count(Account::User(0), start), 1000);
        assert_eq!(count(Account::User(1000), start), 1000);
        let expected = [(Account::User(7), 750 + 980), (Account::User(8), 750)];
        assert_eq!(suppressed(start), expected);
        assert_eq!(suppressed(start + Duration::from_secs(1)), []);
        assert_eq!(suppressed_ever(None), 750 + 980 + 750);
        // All users together have a rate, too.
        let all: usize = (100..200).map(|uid| count(Account::User(uid), start)).sum();
        assert!(all <= 20 * 250, "{all}");
        assert!(take_line(), "nobody is acting");
    }
}
