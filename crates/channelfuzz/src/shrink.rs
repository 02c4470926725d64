//! Makes a failing script smaller as long as it fails in the same way.

use crate::script::{Op, Script};

/// Drops operations, then settings, as long as `fails` says so; asks it at most `tries` times.
pub(crate) fn shrink(
    script: &Script,
    mut tries: usize,
    mut fails: impl FnMut(&Script) -> bool,
) -> Script {
    let mut best = script.clone();
    let mut chunk = best.ops.len().div_ceil(2);
    while chunk > 0 && tries > 0 {
        let mut at = 0;
        let before = best.ops.len();
        while at < best.ops.len() && tries > 0 {
            let mut candidate = best.clone();
            candidate.ops.drain(at..(at + chunk).min(best.ops.len()));
            tries -= 1;
            if fails(&candidate) {
                best = candidate;
            } else {
                at += chunk;
            }
        }
        if chunk > 1 {
            chunk = chunk.div_ceil(2);
        } else if best.ops.len() == before {
            break;
        }
    }
    for smaller in simpler(&best) {
        if tries == 0 {
            break;
        }
        tries -= 1;
        if fails(&smaller) {
            best = smaller;
        }
    }
    best
}

/// The script without its unused links at the end.
fn simpler(script: &Script) -> Vec<Script> {
    let used = script.ops.iter().map(|op: &Op| op.member / 2 + 1).max().unwrap_or(1);
    if used >= script.links.len() {
        return Vec::new();
    }
    let mut smaller = script.clone();
    smaller.links.truncate(used);
    vec![smaller]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::script::Verb;

    #[test]
    fn only_what_makes_it_fail_is_left() {
        let seeds = (0..500).map(generate::script);
        let fails = |script: &Script| {
            let has = |verb| script.ops.iter().position(|op| op.verb == verb);
            matches!((has(Verb::Cancel), has(Verb::Write)), (Some(a), Some(b)) if a < b)
        };
        let mut count = 0;
        for script in seeds.filter(|script| fails(script)) {
            let small = shrink(&script, 1000, fails);
            let verbs: Vec<Verb> = small.ops.iter().map(|op| op.verb).collect();
            assert_eq!(verbs, [Verb::Cancel, Verb::Write]);
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
