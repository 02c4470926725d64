//! Generates a random script from a seed.

use crate::script::{LISTENER, LinkKind, Op, PROCESSES, REFUSED, SLOTS, Script, TCP_STATE, Verb};
use fuzzkit::Random;

/// More bytes than all buffers of a connection hold.
const FULL_BYTES: u32 = 6_000_000;

const VERBS: &[(u64, Verb)] = &[
    (26, Verb::Write),
    (26, Verb::Read),
    (12, Verb::Poll),
    (4, Verb::Shutdown),
    (5, Verb::Close),
    (4, Verb::Duplicate),
    (3, Verb::Nonblock),
    (3, Verb::Unread),
    (4, Verb::SetOption),
    (3, Verb::GetOption),
    (1, Verb::Name),
    (1, Verb::Flags),
    (3, Verb::Execute),
    (2, Verb::Fork),
    (1, Verb::Exit),
    (1, Verb::Kill),
    (1, Verb::Again),
    (2, Verb::Interrupt),
    (3, Verb::Pass),
    (1, Verb::Descriptors),
    (3, Verb::EpollCreate),
    (5, Verb::EpollAdd),
    (2, Verb::EpollModify),
    (1, Verb::EpollDelete),
    (8, Verb::EpollWait),
    (3, Verb::Socket),
    (1, Verb::Bind),
    (1, Verb::Listen),
    (3, Verb::Connect),
    (4, Verb::Accept),
];

/// The target for which scripts are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Connections through shared memory, which follow processes.
    Memory,
    /// A user-level stack: connections stay with their process, and operations that are documented
    /// as different there are left out.
    Stack,
}

/// Operations that a script for a stack does not use.
const MEMORY_ONLY: [Verb; 5] =
    [Verb::Execute, Verb::Fork, Verb::Again, Verb::Pass, Verb::Descriptors];

/// Operations that some scripts for a stack use more often.
const CONNECTING: &[(u64, Verb)] = &[
    (8, Verb::Socket),
    (3, Verb::Bind),
    (3, Verb::Listen),
    (12, Verb::Connect),
    (8, Verb::Accept),
    (6, Verb::Close),
];

/// The same for scripts in which both processes have an epoll set from the beginning.
const WATCHING: &[(u64, Verb)] = &[
    (16, Verb::EpollAdd),
    (6, Verb::EpollModify),
    (2, Verb::EpollDelete),
    (30, Verb::EpollWait),
    (4, Verb::Shutdown),
];

/// Operations that a script for a stack also uses on a listening socket.
const TO_LISTENERS: [Verb; 10] = [
    Verb::Shutdown,
    Verb::Close,
    Verb::Poll,
    Verb::EpollAdd,
    Verb::Nonblock,
    Verb::Unread,
    Verb::SetOption,
    Verb::GetOption,
    Verb::Read,
    Verb::Write,
];

/// Returns the script of a seed, for connections through memory.
pub fn script(seed: u64) -> Script {
    script_of(seed, Dialect::Memory)
}

/// Returns the script of a seed.
pub fn script_of(seed: u64, dialect: Dialect) -> Script {
    let mut random = Random::new(seed);
    let links = (0..random.weighted(&[(6, 1), (2, 2), (1, 0)]))
        .map(|_| random.pick(&[LinkKind::Blocking, LinkKind::Nonblocking]))
        .collect();
    let mut script = Script { seed, is_six: random.chance(10), links, ops: Vec::new() };
    // A case uses only some of the verbs, so that these occur together more often.
    let mut verbs = VERBS.to_vec();
    verbs.retain(|(weight, _)| *weight > 20 || random.chance(45));
    if dialect == Dialect::Stack {
        verbs.retain(|(_, verb)| !MEMORY_ONLY.contains(verb));
        if random.chance(30) {
            verbs.extend_from_slice(CONNECTING);
        }
        if random.chance(40) {
            let create = |process| Op { verb: Verb::EpollCreate, process, slot: 5, a: 0, b: 0 };
            script.ops.extend([create(0), create(1)]);
            verbs.extend_from_slice(WATCHING);
        }
    }
    for _ in 0..random.range(3, 30) {
        let op = op(&mut random, &verbs, &script);
        let op = if dialect == Dialect::Stack { of_stack(&mut random, op) } else { op };
        script.ops.push(op);
    }
    script
}

fn op(random: &mut Random, verbs: &[(u64, Verb)], script: &Script) -> Op {
    let verb = random.weighted(verbs);
    let forked = script.ops.iter().any(|op| op.verb == Verb::Fork);
    let processes = if forked { PROCESSES as u64 } else { 2 };
    let process = random.below(processes) as usize;
    let links = script.links.len().max(1) as u64;
    let linked = random.below(links) as usize;
    let any = random.below(SLOTS as u64) as usize;
    // The slots that scripts use for more sockets and for epoll sets.
    let (other, set) = (random.range(2, 3) as usize, 5);
    let near = if random.chance(75) { linked } else { other };
    let (slot, a, b) = match verb {
        Verb::Read => (near, count(random), reading(random)),
        Verb::Write => {
            let b = writing(random);
            let a = if random.chance(3) { FULL_BYTES } else { count(random) };
            (near, if b & 128 != 0 { 1 } else { a }, b)
        }
        Verb::Poll => {
            let all = if random.chance(30) { 16 } else { 0 };
            (near, random.pick(&[1, 4, 5, 7, 0x2005, 0]), random.below(4) as u32 + all)
        }
        Verb::EpollCreate => (set, 0, 0),
        Verb::EpollWait => (set, 0, 0),
        Verb::EpollAdd | Verb::EpollModify | Verb::EpollDelete => {
            let edges = random.pick(&[0, 0, 1 << 31, 1 << 31, 1 << 30]);
            (set, near as u32, random.pick(&[1, 4, 5, 0x2005]) | edges)
        }
        Verb::Shutdown => (near, random.weighted(&[(1, 0), (4, 1), (1, 2)]), 0),
        Verb::Close => (near, 0, random.weighted(&[(4, 0), (1, 1), (1, 2)])),
        Verb::Duplicate => (near, any as u32, random.below(5) as u32),
        Verb::Nonblock => (near, random.below(2) as u32, random.below(2) as u32),
        Verb::SetOption => {
            let (which, value) = option(random);
            (near, which, value)
        }
        Verb::GetOption => (near, random.pick(&[0, 0, 0, 1, 2, 5, 6, 7, 8, 10, 11]), 0),
        Verb::Name => (near, random.below(2) as u32, 0),
        Verb::Execute => {
            let a = if random.chance(50) { 0 } else { count(random) };
            (near, a, random.below(2) as u32)
        }
        Verb::Pass => (near, any as u32, 0),
        Verb::Socket => (other, random.weighted(&[(2, 0), (2, 1), (1, 2)]), 0),
        Verb::Bind => (other, 0, 0),
        Verb::Listen => (other, 4, 0),
        Verb::Connect => {
            let process = random.below(2) as u32 * SLOTS as u32;
            let own = random.chance(20).then_some(process + other as u32);
            (other, own.unwrap_or((SLOTS + LISTENER) as u32), 0)
        }
        Verb::Accept => {
            let slot = if random.chance(80) { LISTENER } else { other };
            (slot, random.range(0, 4) as u32, random.pick(&[0, 1, 2, 2 + 16, 2 + 32]))
        }
        _ => (near, 0, 0),
    };
    let process = match verb {
        Verb::Accept if slot == LISTENER => 1,
        Verb::Fork | Verb::Pass => process % 2,
        _ => process,
    };
    Op { verb, process, slot, a, b }
}

/// Changes an operation to one that has a meaning for a stack alone, or that is not in its limits.
fn of_stack(random: &mut Random, op: Op) -> Op {
    let mut op = op;
    match op.verb {
        Verb::Read if op.b & 15 == 6 => op.b &= !15,
        Verb::Write if op.b & 15 == 7 => op.b &= !15,
        Verb::Poll if random.chance(20) => op.b |= 32,
        Verb::EpollWait if random.chance(20) => op.a = 1,
        Verb::GetOption if random.chance(30) => op.a = TCP_STATE,
        Verb::Connect if random.chance(20) => op.a = REFUSED as u32 + random.below(2) as u32,
        _ => {}
    }
    if op.verb == Verb::Connect && op.a as usize >= REFUSED && random.chance(30) {
        op.slot = 0;
    }
    if TO_LISTENERS.contains(&op.verb) && random.chance(6) {
        op.process = 1;
        if op.verb == Verb::EpollAdd {
            op.a = LISTENER as u32;
        } else {
            op.slot = LISTENER;
        }
    }
    op
}

/// Returns an option and its value.
fn option(random: &mut Random) -> (u32, u32) {
    let which = random.pick(&[1, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let value = match which {
        1 => random.pick(&[u32::MAX, 0, 0, 1]),
        2 | 3 => random.pick(&[0, 5, 20]),
        4 => 1 << 20,
        7 => random.pick(&[1, 1, 100]),
        _ => random.below(2) as u32,
    };
    (which, value)
}

fn count(random: &mut Random) -> u32 {
    match random.below(10) {
        0 => random.range(0, 1) as u32,
        1..=5 => random.range(1, 40) as u32,
        6..=8 => random.range(40, 2000) as u32,
        _ => random.range(2000, 20_000) as u32,
    }
}

fn reading(random: &mut Random) -> u32 {
    let how = random.weighted(&[(4, 0), (4, 1), (1, 2), (2, 3), (2, 4), (1, 5), (1, 6)]);
    let mut flags = if random.chance(50) { 16 } else { 0 };
    if [1, 2, 4].contains(&how) {
        flags |= random.weighted(&[(12, 0), (5, 32), (3, 64), (1, 128), (1, 256)]);
    }
    how + flags
}

fn writing(random: &mut Random) -> u32 {
    let how = random.weighted(&[(4, 0), (4, 1), (1, 2), (2, 3), (2, 4), (1, 5), (2, 6), (1, 7)]);
    let mut flags = if random.chance(50) { 16 } else { 0 };
    if [1, 2, 4].contains(&how) {
        flags |= random.weighted(&[(12, 0), (2, 32), (4, 64), (1, 128)]);
    }
    how + flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_verb_is_used() {
        let used: HashSet<Verb> =
            (0..300).flat_map(|seed| script(seed).ops).map(|op| op.verb).collect();
        let missing: Vec<_> = Verb::ALL.iter().filter(|verb| !used.contains(verb)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_same_seed_makes_the_same_script() {
        assert_eq!(script(5), script(5));
        assert_ne!(script(5).ops, script(6).ops);
    }
}
