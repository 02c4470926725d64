//! Chooses a transport from facts.

use fable::{Form, Kind};

use super::file::Rule;
use super::{Facts, Policy, Reach, Urgency, Verdict};

/// Checks whether a flow may use this transport at all.
///
/// # Errors
/// The reason, with a remedy if there is one.
pub fn permitted(kind: Kind, facts: &Facts, policy: &Policy) -> Result<(), String> {
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
        Kind::MempipeFutex(_) => Kind::MempipeFutex(form),
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
        Reach::SameHost { .. } => local(facts, policy),
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
        Reach::SameHost { separated_by } if !separated_by.is_empty() => {
            Err(format!("they are in different {} namespaces", separated_by.join(", ")))
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
fn local(facts: &Facts, policy: &Policy) -> (Kind, String) {
    let reason = "both ends are on this host";
    let candidates = [policy.transports.local, Kind::Unix, Kind::TcpNodelay];
    let mut candidates = candidates.into_iter().map(|kind| best_form(kind, facts));
    let preferred = best_form(policy.transports.local, facts);
    match candidates.find(|kind| !facts.failed.contains(kind)) {
        Some(kind) if kind != preferred => {
            (kind, format!("{reason}; but {preferred} failed lately, and {kind} is next"))
        }
        _ if preferred.form() == Some(Form::Safe) && facts.both_trust => {
            let why = unsafe_form(facts).err().unwrap_or_default();
            (preferred, format!("{reason}; in the safe form, as {why}"))
        }
        _ => (preferred, reason.to_owned()),
    }
}
