//! The differences that are allowed, each with its reason, and how often each was used.

/// Defines the rules: each with a name and a text, which is also its documentation.
macro_rules! rules {
    ($($name:ident: $text:literal,)+) => {
        /// Why a difference between the drivers, or from what is expected, is allowed.
        ///
        /// The rules `KnownFault...` are for faults of the channel: each is to be deleted with the
        /// fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule { $(#[doc = $text] $name,)+ }

        impl Rule {
            /// All of them.
            pub const ALL: &[Rule] = &[$(Rule::$name,)+];

            /// Its name and its reason.
            pub fn text(self) -> (&'static str, &'static str) {
                match self { $(Rule::$name => (stringify!($name), $text),)+ }
            }
        }
    };
}

rules! {
    StreamSegments: "A stream of bytes has no boundaries: a request may bring more bytes with one \
        driver than with the other. That nothing is lost or out of order is checked by position.",
    CancelRace: "A cancelled request completes with ECANCELED or, if that was quicker, with its \
        result: the epoll driver tries an operation when it is filed, io_uring when it is \
        submitted.",
    WithdrawnRace: "A request that was filed before its handle was unregistered or closed may have \
        completed before that with one driver only.",
    PartialWrite: "How much of a write that was cancelled or met an error had been taken depends \
        on the room in the kernel's buffers at that moment.",
    TimerExpiries: "How often a timer expired between two looks depends on the clock.",
    PollEdges: "A repeating poll may tell an event twice, so that only the last completion of a \
        poll is compared, and of a single one whether it was told.",
    PollBesideRead: "A poll and a read of one handle go on side by side: whether the poll looks \
        before the read has taken the data is not determined.",
    AcceptedAhead: "An accept of several connections may take more than were asked for, and keeps \
        them for the next one; a poll of the listener does not see them.",
    SharedFile: "Two members with one open file share what comes: which of them gets a message is \
        not determined.",
    BuffersHeld: "While the application holds leases, a receive may have to wait for a buffer with \
        io_uring, which keeps some of the free ones in the kernel's hands, and not with epoll; a \
        poll beside it sees the data meanwhile.",
    ErrorToldOnce: "The kernel tells an error of a socket once, to whichever asks first: a poll \
        beside a read may or may not see POLLERR, and a read after a write that was cut finds the \
        end instead of ECONNRESET, and a write EPIPE instead.",
    LooseOrder: "Without dispatching after each operation, the order of an operation of the \
        channel and of one of the peer is not determined; only what holds for each driver alone \
        is checked.",
    Backpressure: "A request is refused (too many requests or handles, queue full) when others \
        have not completed, which may have happened earlier with one driver.",
    DivergedState: "After an allowed difference on a link, its later requests meet another state \
        and are not compared with each other any more.",
    UnreadReset: "Closing a TCP socket with unread data resets the connection: the peer may lose \
        bytes that were on their way to it.",
    DatagramLoss: "UDP may lose datagrams when the receiver's buffer is full.",
    DeferredClose: "A close, an abort or an unregistration takes effect with the next flush or \
        dispatch at the latest: until then a pending receive may take data from a duplicate of the \
        handle, so that the fuzzer flushes after it.",
    NotRepeated: "The difference did not come again when the case was run at a slower pace: it was \
        one of timing.",
}

/// How often each rule was used.
#[derive(Clone, Debug)]
pub struct RuleCounts(Vec<u64>);

impl Default for RuleCounts {
    fn default() -> RuleCounts {
        RuleCounts(vec![0; Rule::ALL.len()])
    }
}

impl RuleCounts {
    pub(crate) fn used(&mut self, rule: Rule) {
        self.0[rule as usize] += 1;
    }

    pub(crate) fn add(&mut self, other: &RuleCounts) {
        self.0.iter_mut().zip(&other.0).for_each(|(count, other)| *count += other);
    }

    /// The uses of a rule.
    pub fn count(&self, rule: Rule) -> u64 {
        self.0[rule as usize]
    }

    /// A rule for a known fault of the channel that was used and whose name begins so.
    pub fn known_fault(&self, prefix: &str) -> Option<Rule> {
        let is_known = |rule: &Rule| {
            let name = rule.text().0;
            name.starts_with("KnownFault") && name.starts_with(prefix)
        };
        Rule::ALL.iter().copied().find(|rule| is_known(rule) && self.count(*rule) > 0)
    }

    /// The rules that were never used: in a long run, they may be stale.
    pub fn unused(&self) -> impl Iterator<Item = Rule> + '_ {
        Rule::ALL.iter().copied().filter(|rule| self.count(*rule) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_by_rule() {
        let mut counts = RuleCounts::default();
        counts.used(Rule::CancelRace);
        let mut sum = counts.clone();
        sum.add(&counts);
        assert_eq!((sum.count(Rule::CancelRace), sum.count(Rule::PollEdges)), (2, 0));
        assert_eq!(sum.unused().count(), Rule::ALL.len() - 1);
        assert_eq!(Rule::CancelRace.text().0, "CancelRace");
        assert_eq!(sum.known_fault("KnownFault"), None);
        sum.used(Rule::DeferredClose);
        assert_eq!(sum.known_fault("Deferred"), None);
    }
}
