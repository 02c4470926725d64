//! Tests of choices for typical facts, and property tests for any facts.

use std::path::Path;

use fable::{Form, Kind};
use proptest::prelude::*;

use super::steady::Steady;
use super::*;

const RING: Kind = Kind::MempipeFutex(Form::Safe);

fn local_facts() -> Facts {
    Facts {
        name: "fable://kv/1".parse().unwrap(),
        users: [1000, 1000],
        both_trust: false,
        reach: Reach::SameHost { separated_by: Vec::new() },
        protected: false,
        encryption: None,
        pinned: None,
        pinned_by: String::new(),
        insisted: None,
        current: Some(RING),
        failed: Vec::new(),
    }
}

fn chosen(facts: &Facts) -> Verdict {
    choose(facts, &Policy::built_in())
}

#[test]
fn unsafe_forms_are_for_ends_that_trust_each_other() {
    let mut facts = local_facts();
    assert_eq!(chosen(&facts).kind, RING);
    facts.both_trust = true;
    assert_eq!(chosen(&facts).kind, Kind::MempipeFutex(Form::Unsafe));
    facts.users = [1000, 1001];
    let verdict = chosen(&facts);
    assert_eq!(verdict.kind, RING);
    assert!(verdict.reason.contains("1001"), "{}", verdict.reason);
    facts.users = [1000, 1000];
    facts.reach = Reach::SameHost { separated_by: vec!["mount"] };
    assert_eq!(chosen(&facts).kind, RING);
    facts.pinned = Some(Kind::MempipeFutex(Form::Unsafe));
    let verdict = chosen(&facts);
    assert_eq!(verdict.kind, RING);
    assert!(verdict.reason.contains("operator"), "{}", verdict.reason);
}

#[test]
fn other_hosts_get_tls_unless_trusted() {
    let mut facts = local_facts();
    facts.reach = Reach::OtherHost { trusted_network: false };
    assert_eq!(chosen(&facts).kind, Kind::Tls);
    assert_eq!(chosen(&facts).urgency, Urgency::Must);
    facts.reach = Reach::OtherHost { trusted_network: true };
    assert_eq!(chosen(&facts).kind, Kind::TcpNodelay);
    facts.insisted = Some(Kind::Mptcp);
    assert_eq!(chosen(&facts).kind, Kind::Mptcp);
    facts.protected = true;
    facts.current = Some(Kind::Mptcp);
    assert_eq!(chosen(&facts).kind, Kind::Tls);
    assert_eq!(chosen(&facts).urgency, Urgency::Must);
}

#[test]
fn rules_count_from_the_top() {
    let text = "[[rule]]\nname = \"fable://kv/*\"\nusers = [1000]\ntransport = \"unix\"\n\
                [[rule]]\ntransport = \"tcp\"\nwhy = \"we like TCP\"\n";
    let policy = Policy::parse(text, Path::new("test")).unwrap();
    let mut facts = local_facts();
    assert_eq!(choose(&facts, &policy).kind, Kind::Unix);
    facts.users = [0, 1000];
    let verdict = choose(&facts, &policy);
    assert_eq!(verdict.kind, Kind::Tcp);
    assert!(verdict.reason.contains("we like TCP"), "{}", verdict.reason);
}

#[test]
fn what_failed_lately_is_left_out() {
    let mut facts = local_facts();
    facts.failed = vec![RING];
    let verdict = chosen(&facts);
    assert_eq!(verdict.kind, Kind::Unix);
    assert!(verdict.reason.contains("failed lately"), "{}", verdict.reason);
    facts.failed = vec![RING, Kind::Unix];
    assert_eq!(chosen(&facts).kind, Kind::TcpNodelay);
}

fn any_kind() -> impl Strategy<Value = Kind> {
    (0..Kind::ALL.len()).prop_map(|index| Kind::ALL[index])
}

fn any_reach() -> impl Strategy<Value = Reach> {
    any::<[bool; 2]>().prop_map(|[is_local, choice]| match (is_local, choice) {
        (false, trusted_network) => Reach::OtherHost { trusted_network },
        (true, true) => Reach::SameHost { separated_by: vec!["pid", "network"] },
        (true, false) => Reach::SameHost { separated_by: Vec::new() },
    })
}

prop_compose! {
    fn any_facts()(
        users in (0_u32..3, 0_u32..3),
        both_trust: bool,
        reach in any_reach(),
        protected: bool,
        pinned in proptest::option::of(any_kind()),
        insisted in proptest::option::of(any_kind()),
        current in proptest::option::of(any_kind()),
        failed in proptest::collection::vec(any_kind(), 0..4),
    ) -> Facts {
        Facts {
            name: "fable://kv/1".parse().unwrap(),
            users: [users.0, users.1],
            both_trust, reach, protected, encryption: None, pinned,
            pinned_by: String::new(), insisted, current, failed,
        }
    }
}

proptest! {
    #[test]
    fn every_choice_is_permitted_explained_and_repeatable(facts in any_facts()) {
        let verdict = chosen(&facts);
        prop_assert!(!verdict.reason.trim().is_empty());
        prop_assert_eq!(permitted(verdict.kind, &facts, &Policy::built_in()), Ok(()));
        prop_assert_eq!(&verdict, &chosen(&facts));
    }

    #[test]
    fn a_choice_stands_once_it_is_followed(mut facts in any_facts()) {
        // The choice for one state is not changed in the same state.
        facts.current = Some(chosen(&facts).kind);
        let again = chosen(&facts).kind;
        prop_assert_eq!(Some(again), facts.current);
    }

    #[test]
    fn changes_are_at_least_a_dwell_time_apart_whatever_is_seen(
        seen in proptest::collection::vec(any::<bool>(), 1..2_000),
    ) {
        let policy = Policy::built_in();
        let limits = &policy.thresholds;
        let mut facts = local_facts();
        let mut steady = Steady::new(0, limits);
        let mut changes = vec![0];
        for (turn, has_failed) in (1_u64..).zip(seen) {
            facts.failed = if has_failed { vec![RING] } else { Vec::new() };
            let (now_ns, verdict) = (turn * 250_000_000, choose(&facts, &policy));
            if steady.observe(now_ns, facts.current, &verdict, limits) {
                steady.changed(now_ns, limits);
                facts.current = Some(verdict.kind);
                changes.push(now_ns);
            }
        }
        for pair in changes.windows(2) {
            prop_assert!(pair[1] - pair[0] >= limits.dwell_ms * 1_000_000);
        }
    }

    #[test]
    fn a_lasting_advantage_is_taken_once_and_a_short_one_is_not(blip in 1_u32..4) {
        let policy = Policy::built_in();
        let limits = &policy.thresholds;
        let mut facts = local_facts();
        facts.current = Some(Kind::Unix);
        let mut steady = Steady::new(0, limits);
        let mut followed = 0;
        for turn in 1..200_u64 {
            // The ring works for ever from the 100th observation on, and for moments before.
            let works = turn >= 100 || turn % 10 < u64::from(blip);
            facts.failed = if works { Vec::new() } else { vec![RING] };
            let (now_ns, verdict) = (turn * 250_000_000, choose(&facts, &policy));
            if steady.observe(now_ns, facts.current, &verdict, limits) {
                prop_assert!(turn >= 100, "a blip of {} observations was followed", blip);
                steady.changed(now_ns, limits);
                facts.current = Some(verdict.kind);
                followed += 1;
            }
        }
        prop_assert_eq!((followed, facts.current), (1, Some(RING)));
    }
}

#[test]
fn what_somebody_wants_waits_when_the_flow_goes_to_and_fro() {
    let policy = Policy::built_in();
    let limits = &policy.thresholds;
    let mut steady = Steady::new(0, limits);
    let wanted = |kind| Verdict { kind, reason: String::new(), urgency: Urgency::Wanted };
    let (mut current, mut now_ns, mut changes) = (RING, 0, Vec::new());
    // Two sources want opposite transports, each checking every 250 ms, for ten minutes.
    for turn in 0..2_400_u64 {
        now_ns = turn * 250_000_000;
        let kind = if turn % 2 == 0 { Kind::Unix } else { RING };
        if steady.observe(now_ns, Some(current), &wanted(kind), limits) {
            steady.moved(now_ns, Some(current), kind, limits);
            current = kind;
            changes.push(now_ns);
        }
    }
    assert!(changes.len() <= 20, "{} changes in ten minutes", changes.len());
    assert!(changes[1] - changes[0] < 1_000_000_000, "two opposite orders are followed at once");
    // Protection does not wait, and after a quiet time no change does.
    let other = if current == Kind::Unix { RING } else { Kind::Unix };
    let must = Verdict { urgency: Urgency::Must, ..wanted(other) };
    assert!(steady.observe(now_ns, Some(current), &must, limits));
    now_ns += 301_000_000_000;
    assert!(!steady.is_flapping(now_ns));
    assert!(steady.observe(now_ns, Some(current), &wanted(other), limits));
}
