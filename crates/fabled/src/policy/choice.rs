//! Chooses a transport from facts.

use fable::{Form, Kind};

use super::file::Rule;
use super::{Facts, Placement, Policy, Reach, Urgency, Verdict};

/// Checks whether a flow may use this transport at all.
///
/// # Errors
/// The reason, with a remedy if there is one.
pub fn permitted(kind: Kind, facts: &Facts, policy: &Policy) -> Result<(), String> {
    if kind == Kind::Cacheline {
        return Err("cacheline carries no messages: it is for measuring only".to_owned());
    }
    if let Reach::OtherHost { trusted_network } = facts.reach {
        if !kind.crosses_hosts() {
            return Err(format!("{kind} does not reach another host"));
        }
        if kind != Kind::Tls {
            if let Some(demand) = &facts.encryption {
                return Err(demand.refusal(kind));
            }
            if facts.protected || policy.protects(facts) {
                return Err(format!(
                    "the flow must be protected and leaves the host; {kind} is \
                     not protected"
                ));
            }
            if !trusted_network {
                return Err(format!(
                    "{kind} is not protected and the network between the hosts is not in the \
                     policy's trusted_networks"
                ));
            }
        }
    }
    if kind.form() == Some(Form::Unsafe) {
        unsafe_form(facts)
            .map_err(|why| format!("{kind} is for ends that trust each other: {why}"))?;
    }
    Ok(())
}

/// Returns the kind in the fastest form that the ends' trust allows; a kind without forms as it is.
pub fn best_form(kind: Kind, facts: &Facts) -> Kind {
    let form = if unsafe_form(facts).is_ok() { Form::Unsafe } else { Form::Safe };
    match kind {
        Kind::ShmemPipe(_) => Kind::ShmemPipe(form),
        Kind::MempipeFutex(_) => Kind::MempipeFutex(form),
        Kind::MempipeSpin(_) => Kind::MempipeSpin(form),
        other => other,
    }
}

/// Chooses the transport that the flow should use, with the reason. There is always a result, even
/// if the transport failed recently ([`Facts::failed`]); the caller decides whether to wait before
/// it tries again.
pub fn choose(facts: &Facts, policy: &Policy) -> Verdict {
    let rule = policy.rule_for(facts);
    let mut remark = String::new();
    for (wanted, by) in [
        (facts.pinned, by_operator(&facts.pinned_by)),
        (facts.insisted, "the application insists on it".to_owned()),
        (rule.and_then(|rule| rule.transport), by_rule(rule)),
    ] {
        // An explicit choice is used in the form that it names, if that is permitted.
        let Some(kind) = wanted else { continue };
        match permitted(kind, facts, policy) {
            Ok(()) => {
                let reason = format!("{remark}{by}");
                return Verdict { kind, reason, urgency: urgency(facts, policy, Urgency::Wanted) };
            }
            Err(why) => remark.push_str(&format!("{by}, but {why}; ")),
        }
    }
    let (kind, reason) = match &facts.reach {
        Reach::OtherHost { trusted_network } => remote(facts, policy, *trusted_network),
        Reach::SameHost(placement) => local(facts, policy, rule, placement),
    };
    let urgency = urgency(facts, policy, Urgency::Better);
    Verdict { kind, reason: format!("{remark}{reason}"), urgency }
}

/// Returns this urgency, or `Must` if the present transport is not permitted.
fn urgency(facts: &Facts, policy: &Policy, otherwise: Urgency) -> Urgency {
    let allowed = facts.current.is_some_and(|kind| permitted(kind, facts, policy).is_ok());
    if allowed { otherwise } else { Urgency::Must }
}

fn by_operator(who: &str) -> String {
    match who {
        "" => "an operator chose it".to_owned(),
        who => format!("{who} ordered it"),
    }
}

fn by_rule(rule: Option<&Rule>) -> String {
    match rule.and_then(|rule| rule.why.as_deref()) {
        Some(why) => format!("a rule of the policy says so: {why}"),
        None => "a rule of the policy says so".to_owned(),
    }
}

fn unsafe_form(facts: &Facts) -> Result<(), String> {
    if !facts.both_trust {
        return Err("not both of them have said so".to_owned());
    }
    if facts.users[0] != facts.users[1] {
        return Err(format!("they run as users {} and {}", facts.users[0], facts.users[1]));
    }
    match &facts.reach {
        Reach::SameHost(placement) if !placement.separated_by.is_empty() => {
            Err(format!("they are in different {} namespaces", placement.separated_by.join(", ")))
        }
        _ => Ok(()),
    }
}

fn remote(facts: &Facts, policy: &Policy, trusted_network: bool) -> (Kind, String) {
    if let Some(demand) = &facts.encryption {
        return (Kind::Tls, demand.wish());
    }
    if facts.protected || policy.protects(facts) {
        return (Kind::Tls, "the flow leaves the host and must be protected".to_owned());
    }
    if !trusted_network {
        let reason = "the flow leaves the host over a network that the policy does not trust";
        return (Kind::Tls, reason.to_owned());
    }
    let kind = policy.transports.remote;
    (kind, "the ends are on different hosts, and the network between them is trusted".to_owned())
}

/// Chooses a fast transport on one host, except those that failed recently.
fn local(
    facts: &Facts,
    policy: &Policy,
    rule: Option<&Rule>,
    placement: &Placement,
) -> (Kind, String) {
    let (first, reason) = fastest(facts, policy, rule, placement);
    let candidates = [first, policy.transports.calm, Kind::Unix, Kind::TcpNodelay];
    let mut candidates = candidates.into_iter().map(|kind| best_form(kind, facts));
    let preferred = best_form(first, facts);
    match candidates.find(|kind| !facts.failed.contains(kind)) {
        Some(kind) if kind != preferred => {
            (kind, format!("{reason}; but {preferred} failed lately, and {kind} is next"))
        }
        _ if preferred.form() == Some(Form::Safe) && facts.both_trust => {
            let why = unsafe_form(facts).err().unwrap_or_default();
            (preferred, format!("{reason}; in the safe form, as {why}"))
        }
        _ => (preferred, reason),
    }
}

fn fastest(
    facts: &Facts,
    policy: &Policy,
    rule: Option<&Rule>,
    placement: &Placement,
) -> (Kind, String) {
    let transports = &policy.transports;
    let place = match placement.cpus {
        _ if placement.cpu_count < 2 => {
            return (transports.shared_cpu, "this host has one CPU".to_owned());
        }
        [Some(leader), Some(follower)] if leader == follower => {
            let reason =
                format!("both ends run on CPU {leader}, where who waits must let the other run");
            return (transports.shared_cpu, reason);
        }
        [Some(leader), Some(follower)] => match placement.nodes {
            [Some(one), Some(other)] if one != other => format!(
                "the ends run on CPUs {leader} and {follower} of NUMA nodes {one} and {other}"
            ),
            _ => format!("the ends run on CPUs {leader} and {follower}"),
        },
        _ => return (transports.calm, "both ends are on this host".to_owned()),
    };
    if rule.and_then(|rule| rule.spin) == Some(false) {
        return (transports.calm, format!("{place}, and a rule of the policy forbids spinning"));
    }
    let limits = &policy.thresholds;
    let spins = facts.current.is_some_and(|kind| kind.base_name() == transports.busy.base_name());
    let busy_from = if spins { limits.calm_messages_s } else { limits.busy_messages_s };
    let rate = format!("{:.0} messages/s", facts.messages_s);
    if facts.messages_s < busy_from {
        return (transports.calm, format!("{place}, and {rate} are too few to keep them busy"));
    }
    if placement.watched && matches!(transports.busy, Kind::MempipeSpin(_)) {
        let reason = format!(
            "{place}, and {rate}; but an end waits by a descriptor, which a \
             spinning peer does not ring"
        );
        return (transports.calm, reason);
    }
    let load = placement.runnable / f64::from(placement.cpu_count);
    let load_max = if spins { limits.crowded_load } else { limits.spin_load };
    if load > load_max {
        let reason = format!("{place}, and {rate}; but {load:.1} threads per CPU want to run");
        return (transports.calm, reason);
    }
    (transports.busy, format!("{place}, {rate}, and {load:.1} threads per CPU want to run"))
}
