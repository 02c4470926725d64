//! Defines the differences that are allowed, each with its reason, and counts how often each was
//! used.

/// An enum of rules, made by [`rules!`](crate::rules!).
pub trait RuleSet: Copy + PartialEq + 'static {
    /// All rules, in the order of their numbers.
    const ALL: &'static [Self];

    /// Returns the rule's name and its reason.
    fn text(self) -> (&'static str, &'static str);

    /// Returns the rule's number.
    fn index(self) -> usize;
}

/// Defines the rules: each with a name and a text, which is also its documentation.
///
/// Rules whose names begin with `KnownFault` are for faults of the tested program: delete each of
/// them when its fault is corrected.
#[macro_export]
macro_rules! rules {
    ($(#[$of:meta])* $public:vis $set:ident { $($name:ident: $text:literal,)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $public enum $set { $(#[doc = $text] $name,)+ }

        impl $crate::RuleSet for $set {
            const ALL: &'static [$set] = &[$($set::$name,)+];

            fn text(self) -> (&'static str, &'static str) {
                match self { $($set::$name => (stringify!($name), $text),)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// How often each rule was used.
#[derive(Clone, Debug)]
pub struct RuleCounts<R> {
    counts: Vec<u64>,
    rules: std::marker::PhantomData<R>,
}

impl<R: RuleSet> Default for RuleCounts<R> {
    fn default() -> RuleCounts<R> {
        RuleCounts { counts: vec![0; R::ALL.len()], rules: std::marker::PhantomData }
    }
}

impl<R: RuleSet> RuleCounts<R> {
    /// Counts one use of a rule.
    pub fn used(&mut self, rule: R) {
        self.counts[rule.index()] += 1;
    }

    /// Adds the uses of another count.
    pub fn add(&mut self, other: &RuleCounts<R>) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
    }

    /// Returns the number of uses of a rule.
    pub fn count(&self, rule: R) -> u64 {
        self.counts[rule.index()]
    }

    /// Returns a rule that was used and whose name begins with `prefix`.
    pub fn first_used(&self, prefix: &str) -> Option<R> {
        let is_such = |rule: &R| rule.text().0.starts_with(prefix) && self.count(*rule) > 0;
        R::ALL.iter().copied().find(is_such)
    }

    /// Returns the rules that were never used: after a long run, they may be obsolete.
    pub fn unused(&self) -> impl Iterator<Item = R> + '_ {
        R::ALL.iter().copied().filter(|rule| self.count(*rule) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::rules! {
        /// Rules for the tests.
        Rule {
            Segments: "A stream has no boundaries.",
            Edges: "An edge may come twice.",
            KnownFaultLost: "Something is lost.",
        }
    }

    #[test]
    fn uses_are_counted_by_rule() {
        let mut counts = RuleCounts::default();
        counts.used(Rule::Segments);
        let mut sum = counts.clone();
        sum.add(&counts);
        assert_eq!((sum.count(Rule::Segments), sum.count(Rule::Edges)), (2, 0));
        assert_eq!(sum.unused().count(), Rule::ALL.len() - 1);
        assert_eq!(Rule::Segments.text().0, "Segments");
        assert_eq!(sum.first_used("KnownFault"), None);
        sum.used(Rule::KnownFaultLost);
        assert_eq!(sum.first_used("KnownFault"), Some(Rule::KnownFaultLost));
        assert_eq!(sum.first_used("Segments"), Some(Rule::Segments));
    }
}
