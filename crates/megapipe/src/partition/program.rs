//! Generates the classic BPF programs that select the socket for a connection: by CPU, or at
//! random.

use crate::cpuset::CpuSet;

/// CPU numbers from this one on cannot be in a set.
const CPUS: usize = 1024;

/// Consecutive CPU numbers with the same socket: from `first` up to the next range's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    index: u32,
}

/// Generates the program for a group whose socket of index `i + 1` owns the CPUs `owned[i]`. A CPU
/// that several sockets own goes to one of them at random, and a CPU without an owner to the socket
/// of index 0.
///
/// It loads the CPU number and finds its range by binary search. That takes two instructions per
/// range, so even with 1,024 ranges it is about half of BPF_MAXINSNS. Sets that overlap in many
/// ways may exceed that: see [`fits`].
pub(super) fn generate(owned: &[CpuSet]) -> Vec<libc::sock_filter> {
    let mut owners = vec![Vec::new(); CPUS + 1];
    for (cpus, index) in owned.iter().zip(1..) {
        cpus.iter().for_each(|cpu| owners[cpu].push(index));
    }
    let mut targets = vec![vec![0]];
    let lists = owners.into_iter().map(|owners| {
        let list = if owners.is_empty() { vec![0] } else { owners };
        let known = targets.iter().position(|target| *target == list);
        known.unwrap_or_else(|| {
            targets.push(list);
            targets.len() - 1
        })
    });
    let lists: Vec<u32> = lists.map(|list| list as u32).collect();
    steering(&lists, &targets)
}

/// Generates the program for a group in which connections of the CPUs `claimed` go at random to one
/// of the sockets with the indices `targets`, and all others to the socket of index 0. There is a
/// target, and no more targets than claimed CPUs, so the program is never too long.
pub(super) fn generate_spread(claimed: &CpuSet, targets: &[u32]) -> Vec<libc::sock_filter> {
    let mut claims = vec![0; CPUS + 1];
    claimed.iter().for_each(|cpu| claims[cpu] = 1);
    steering(&claims, &[vec![0], targets.to_vec()])
}

/// Returns whether the kernel accepts a program of this length.
pub(super) fn fits(program: &[libc::sock_filter]) -> bool {
    program.len() <= libc::BPF_MAXINSNS as usize
}

/// Returns a placeholder target of a jump to the list with this number, until the rest of the
/// program is generated.
const fn later(list: u32) -> u32 {
    u32::MAX - list
}

/// Generates the program that gives a connection of a CPU to one of `targets[lists[cpu]]`, at
/// random.
fn steering(lists: &[u32], targets: &[Vec<u32>]) -> Vec<libc::sock_filter> {
    let mut program = vec![load(libc::SKF_AD_CPU)];
    search(&ranges(lists), &mut program, &|list, program| {
        program.push(match targets[list as usize][..] {
            [target] => statement(libc::BPF_RET | libc::BPF_K, target),
            _ => statement(libc::BPF_JMP | libc::BPF_JA, later(list)),
        });
    });
    for (list, targets) in (0..).zip(targets).filter(|(_, targets)| targets.len() > 1) {
        let here = program.len();
        for (at, step) in program.iter_mut().enumerate().filter(|(_, step)| step.k == later(list)) {
            step.k = (here - at - 1) as u32;
        }
        program.push(load(libc::SKF_AD_RANDOM));
        let count = targets.len() as u32;
        program.push(statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count));
        let mut drawn = Vec::new();
        search(&ranges(targets), &mut drawn, &|index, program| {
            program.push(statement(libc::BPF_RET | libc::BPF_K, index));
        });
        program.append(&mut drawn);
    }
    program
}

/// Divides all numbers from 0 up into ranges of equal indices; the last range has no end.
fn ranges(indices: &[u32]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for (number, index) in indices.iter().copied().enumerate() {
        if ranges.last().is_none_or(|last| last.index != index) {
            ranges.push(Range { first: number as u32, index });
        }
    }
    ranges
}

/// Appends the binary search for the number in the accumulator through `ranges`, which is not
/// empty; `found` appends the use of the index.
fn search(
    ranges: &[Range],
    program: &mut Vec<libc::sock_filter>,
    found: &dyn Fn(u32, &mut Vec<libc::sock_filter>),
) {
    if let [range] = ranges {
        return found(range.index, program);
    }
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let mut lower = Vec::new();
    search(below, &mut lower, found);
    let first = above[0].first;
    match u8::try_from(lower.len()) {
        Ok(skip) => program.push(at_least(first, skip, 0)),
        // Conditional jumps reach 255 instructions; plain jumps reach all.
        Err(_) => {
            program.push(at_least(first, 0, 1));
            program.push(statement(libc::BPF_JMP | libc::BPF_JA, lower.len() as u32));
        }
    }
    program.append(&mut lower);
    search(above, program, found);
}

/// Loads a property of the packet.
fn load(what: libc::c_int) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (libc::SKF_AD_OFF + what) as u32)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Jumps over `jt` instructions if the CPU number is `first` or more, else over `jf`.
fn at_least(first: u32, jt: u8, jf: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    libc::sock_filter { code, jt, jf, k: first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns what the kernel would return on a CPU that draws a random number; panics on a
    /// program that the kernel's checker would refuse.
    fn run_with(program: &[libc::sock_filter], cpu: u32, random: u32) -> u32 {
        let mut accumulator = None;
        let mut at = 0;
        loop {
            let step = &program[at];
            at += 1;
            let code = u32::from(step.code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                accumulator = match step.k as i32 - libc::SKF_AD_OFF {
                    libc::SKF_AD_CPU => Some(cpu),
                    libc::SKF_AD_RANDOM => Some(random),
                    other => panic!("an unexpected load: {other}"),
                };
            } else if code == libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K {
                accumulator = accumulator.map(|value| value % step.k);
            } else if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K {
                let taken = accumulator.unwrap() >= step.k;
                at += usize::from(if taken { step.jt } else { step.jf });
            } else if code == libc::BPF_JMP | libc::BPF_JA {
                at += step.k as usize;
            } else {
                assert_eq!(code, libc::BPF_RET | libc::BPF_K);
                return step.k;
            }
        }
    }

    fn check(owned: &[CpuSet]) {
        let program = generate(owned);
        assert!(fits(&program));
        for cpu in (0..CPUS).chain([CPUS, 4096]) {
            let owners = owned.iter().zip(1..).filter(|(cpus, _)| cpus.contains(cpu));
            let mut owners: Vec<u32> = owners.map(|(_, index)| index).collect();
            if owners.is_empty() {
                owners.push(0);
            }
            for (random, owner) in (0..).zip(owners) {
                let found = run_with(&program, cpu as u32, random);
                assert_eq!(found, owner, "CPU {cpu} of {owned:?}");
            }
        }
    }

    fn split(owners: &[usize]) -> Vec<CpuSet> {
        let sets = owners.iter().copied().max().unwrap_or(0);
        let owned_by = |set| (0..owners.len()).filter(move |cpu| owners[*cpu] == set);
        (1..=sets).map(|set| owned_by(set).collect()).collect()
    }

    #[test]
    fn without_owners_all_cpus_are_the_originals() {
        check(&[]);
        assert_eq!(generate(&[]).len(), 2);
        check(&[CpuSet::empty(), CpuSet::empty()]);
    }

    #[test]
    fn the_longest_program_fits() {
        check(&(0..CPUS).map(CpuSet::one).collect::<Vec<_>>());
        check(&(0..CPUS).rev().map(CpuSet::one).collect::<Vec<_>>());
        check(&[(0..CPUS).step_by(2).collect(), (1..CPUS).step_by(2).collect()]);
    }

    #[test]
    fn cpus_of_several_owners_are_shared() {
        let all: CpuSet = (0..CPUS).collect();
        check(&[all, all]);
        check(&[all, all, CpuSet::one(3), CpuSet::empty(), CpuSet::one(1000)]);
        check(&[(0..4).collect(), (2..6).collect(), (3..9).collect()]);
        // Each CPU is in a list of its own, which a program of the permitted length cannot
        // distinguish.
        let bits = |bit: usize| (0..CPUS).filter(move |cpu| cpu >> bit & 1 == 1);
        let sets: Vec<CpuSet> = (0..10).map(|bit| bits(bit).collect()).collect();
        assert!(!fits(&generate(&sets)));
    }

    fn check_spread(claimed: &CpuSet, targets: &[u32]) {
        let program = generate_spread(claimed, targets);
        assert!(fits(&program));
        for cpu in (0..CPUS).chain([CPUS, 4096]) {
            for (random, target) in targets.iter().enumerate() {
                let expected = if claimed.contains(cpu) { *target } else { 0 };
                let far = (random + targets.len() * 1000) as u32;
                assert_eq!(run_with(&program, cpu as u32, random as u32), expected);
                assert_eq!(run_with(&program, cpu as u32, far), expected);
            }
        }
    }

    #[test]
    fn connections_of_claimed_cpus_are_spread() {
        let all: CpuSet = (0..CPUS).collect();
        check_spread(&all, &[1, 2]);
        check_spread(&[0, 2, 3, 1000].into_iter().collect(), &[1, 2, 4, 9]);
        check_spread(&CpuSet::empty(), &[1]);
        let odd: CpuSet = (1..CPUS).step_by(2).collect();
        check_spread(&odd, &[3]);
        for (claimed, targets) in [(&odd, 512), (&all, 1024)] {
            let targets: Vec<u32> = (1..=targets).collect();
            let program = generate_spread(claimed, &targets);
            assert!(fits(&program), "{}", program.len());
            for random in [0, 1, 511] {
                assert_eq!(run_with(&program, 7, random), random + 1);
                assert_eq!(run_with(&program, 8, random) > 0, claimed.contains(8));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(64)
        })]

        #[test]
        fn every_cpu_finds_its_owner(owners in prop::collection::vec(0usize..9, 0..=CPUS)) {
            check(&split(&owners));
        }

        #[test]
        fn every_cpu_finds_its_owner_in_long_ranges(
            runs in prop::collection::vec((0usize..40, 1usize..200), 0..40),
        ) {
            let owners = runs.iter().flat_map(|(set, count)| std::iter::repeat_n(*set, *count));
            check(&split(&owners.take(CPUS).collect::<Vec<_>>()));
        }
    }
}
