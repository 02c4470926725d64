//! Compares the cases of one suite or program run plainly and under the library, and checks the
//! differences against the pinned list.

use super::journal::{Cases, End, Outcome};
use super::pins::Pin;

/// The results of a case without and with the library.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pair {
    /// The case without the suite's name.
    pub(crate) case: String,
    pub(crate) plain: End,
    pub(crate) under: End,
}

/// The result of the comparison with the pinned list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Same,
    /// A pinned difference.
    Pinned,
    /// A difference that is not pinned, or pinned differently.
    New,
    /// No difference, although one is pinned.
    UnexpectedPass,
}

fn absent() -> End {
    End { outcome: Outcome::Absent, detail: String::new(), seconds: 0.0 }
}

/// Returns all cases of either run, with `under`'s names; `plain_name` gives the name in the plain
/// run.
pub(crate) fn pairs(plain: &Cases, under: &Cases, prefix: &str) -> Vec<Pair> {
    let mut names: Vec<String> = plain.keys().map(|name| format!("{prefix}{name}")).collect();
    names.extend(
        under
            .keys()
            .filter(|name| !plain.contains_key(*name))
            .map(|name| format!("{prefix}{name}")),
    );
    let of = |cases: &Cases, name: &str| {
        cases.get(&name[prefix.len()..]).cloned().unwrap_or_else(absent)
    };
    let pair = |case: String| {
        let (plain, under) = (of(plain, &case), of(under, &case));
        Pair { case, plain, under }
    };
    names.into_iter().map(pair).collect()
}

impl Pair {
    /// Returns whether the outcome is worse under the library. A case that also fails plainly is no
    /// difference.
    pub(crate) fn differs(&self) -> bool {
        match self.plain.outcome {
            Outcome::Ok | Outcome::ExpectedFailure => !self.under.outcome.is_good(),
            Outcome::Absent | Outcome::Skipped => self.under.outcome > Outcome::ExpectedFailure,
            _ => false,
        }
    }

    /// Returns the pin of this case, which belongs to `suite`.
    fn pin<'a>(&self, suite: &str, pins: &'a [Pin]) -> Option<&'a Pin> {
        let name = format!("{suite}/{}", self.case);
        pins.iter().find(|pin| pin.is_of(&name))
    }

    /// Compares the results with each other and with the pinned list.
    pub(crate) fn finding(&self, suite: &str, pins: &[Pin]) -> Finding {
        let pin = self.pin(suite, pins);
        let is_expected = pin.is_some_and(|pin| pin.under.contains(&self.under.outcome));
        match (self.differs(), pin) {
            (true, _) if is_expected => Finding::Pinned,
            (true, _) => Finding::New,
            (false, Some(pin)) if self.plain.outcome == pin.plain && !is_expected => {
                Finding::UnexpectedPass
            }
            (false, _) => Finding::Same,
        }
    }

    /// Returns the line for the list.
    pub(crate) fn line(&self, suite: &str, pins: &[Pin]) -> Pin {
        let reason = match self.pin(suite, pins) {
            Some(pin) => pin.reason.clone(),
            None if self.under.detail.is_empty() => "no reason is known".to_string(),
            None => self.under.detail.clone(),
        };
        let name = format!("{suite}/{}", self.case);
        Pin { name, plain: self.plain.outcome, under: vec![self.under.outcome], reason }
    }
}

/// Returns whether a finding counts, from the runs in which the case differed: a difference must
/// appear in most runs, and an unexpected pass in all.
pub(crate) fn counts(finding: Finding, differed: &[bool]) -> bool {
    let times = differed.iter().filter(|differs| **differs).count();
    match finding {
        Finding::New => times * 2 > differed.len(),
        Finding::UnexpectedPass => times == 0,
        Finding::Same | Finding::Pinned => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(plain: Outcome, under: Outcome) -> Pair {
        let end = |outcome| End { outcome, ..absent() };
        Pair { case: "A.b".into(), plain: end(plain), under: end(under) }
    }

    fn pins(under: &[Outcome]) -> Vec<Pin> {
        let (name, reason) = ("s/A.b".to_string(), "F1".to_string());
        vec![Pin { name, plain: Outcome::Ok, under: under.to_vec(), reason }]
    }

    #[test]
    fn what_fails_plainly_too_is_no_difference() {
        use Outcome::{Absent, Error, Failed, Hung, Ok, Skipped};
        for (plain, under, differs) in [
            (Ok, Ok, false),
            (Ok, Failed, true),
            (Ok, Absent, true),
            (Ok, Skipped, true),
            (Failed, Hung, false),
            (Failed, Ok, false),
            (Skipped, Skipped, false),
            (Skipped, Error, true),
            (Absent, Error, true),
            (Absent, Ok, false),
        ] {
            assert_eq!(pair(plain, under).differs(), differs, "{plain} {under}");
        }
    }

    #[test]
    fn new_differences_and_unexpected_passes_are_found() {
        use Outcome::{Failed, Hung, Ok};
        let list = pins(&[Hung]);
        assert_eq!(pair(Ok, Hung).finding("s", &list), Finding::Pinned);
        assert_eq!(pair(Ok, Failed).finding("s", &list), Finding::New);
        assert_eq!(pair(Ok, Ok).finding("s", &list), Finding::UnexpectedPass);
        assert_eq!(pair(Failed, Failed).finding("s", &list), Finding::Same);
        assert_eq!(pair(Ok, Hung).finding("t", &list), Finding::New);
        assert_eq!(pair(Ok, Ok).finding("s", &pins(&[Hung, Ok])), Finding::Same);
        assert_eq!(pair(Ok, Failed).line("s", &list).to_string(), "s/A.b | ok | failed | F1");
    }

    #[test]
    fn a_difference_counts_if_it_is_there_most_times_and_a_pass_if_each_time() {
        assert!(counts(Finding::New, &[true, true, false, true]));
        assert!(!counts(Finding::New, &[true, true, false, false]));
        assert!(counts(Finding::UnexpectedPass, &[false; 4]));
        assert!(!counts(Finding::UnexpectedPass, &[false, true, false, false]));
    }

    #[test]
    fn cases_of_either_run_are_compared() {
        let end = |outcome| End { outcome, ..absent() };
        let plain = Cases::from([("x".to_string(), end(Outcome::Ok))]);
        let under = Cases::from([("y".to_string(), end(Outcome::Hung))]);
        let pairs = pairs(&plain, &under, "both/");
        assert_eq!(pairs.len(), 2);
        assert_eq!((pairs[0].case.as_str(), pairs[0].under.outcome), ("both/x", Outcome::Absent));
        assert_eq!((pairs[1].case.as_str(), pairs[1].plain.outcome), ("both/y", Outcome::Absent));
    }
}
