//! Chooses the two CPUs of the processes, and determines their relation.

use serde::Serialize;

use crate::cli::ipc::Where;
use crate::engine::placement::CpuChoice;
use crate::error::{Error, Result};
use crate::sys::affinity::core_of;

/// The relation of two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Relation {
    /// The same CPU.
    SameCore,
    /// Different CPUs of one socket.
    SameSocket,
    /// CPUs of two sockets.
    OtherSocket,
}

impl Relation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Relation::SameCore => "same-core",
            Relation::SameSocket => "same-socket",
            Relation::OtherSocket => "other-socket",
        }
    }
}

/// The CPU of the first process (which pings, or reads) and that of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) cpus: [usize; 2],
    pub(crate) relation: Relation,
    /// Two hardware threads of one core, or one of them twice.
    pub(crate) shares_core: bool,
}

/// A CPU with its core and socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) cpu: usize,
    pub(crate) socket: u32,
    pub(crate) core: u32,
}

/// Returns the topology of these CPUs. CPUs without information count as single cores of one
/// socket.
pub(crate) fn seats(cpus: &[usize]) -> Vec<Seat> {
    let seat = |&cpu: &usize| {
        let (socket, core) = core_of(cpu);
        Seat { cpu, socket, core }
    };
    cpus.iter().map(seat).collect()
}

fn pair(first: &Seat, second: &Seat) -> Pair {
    let relation = if first.cpu == second.cpu {
        Relation::SameCore
    } else if first.socket == second.socket {
        Relation::SameSocket
    } else {
        Relation::OtherSocket
    };
    let shares_core = first.socket == second.socket && first.core == second.core;
    Pair { cpus: [first.cpu, second.cpu], relation, shares_core }
}

/// Returns the pair of CPUs that the user named: that of the client's side, which pings or reads,
/// comes first.
pub(crate) fn of_cpus(choice: &CpuChoice, seats: &[Seat]) -> Result<Option<Pair>> {
    let (Some(clients), Some(servers)) = (&choice.client_cpus, &choice.server_cpus) else {
        return Ok(None);
    };
    let seat = |cpus: &[usize]| match cpus {
        [cpu] => seats.iter().find(|seat| seat.cpu == *cpu).ok_or_else(|| {
            Error::setup(
                format!("CPU {cpu} is not among those of this process"),
                "name other CPUs, or start with a wider taskset or cpuset",
            )
        }),
        cpus => Err(Error::setup(
            format!("each side runs on one CPU, not on {}", cpus.len()),
            "name one CPU with --client-cpus and one with --server-cpus",
        )),
    };
    Ok(Some(pair(seat(clients)?, seat(servers)?)))
}

/// Returns the requested pairs, each once; without a choice, one of each relation that exists.
pub(crate) fn choose(choice: &[Where], seats: &[Seat]) -> Result<Vec<Pair>> {
    let usual = [Where::SameCore, Where::SameSocket, Where::OtherSocket];
    let mut pairs: Vec<Pair> = Vec::new();
    for place in if choice.is_empty() { &usual[..] } else { choice } {
        let found = of_place(*place, seats);
        if found.is_empty() && !choice.is_empty() {
            return Err(missing(*place, seats));
        }
        pairs.extend(found);
    }
    let mut chosen: Vec<Pair> = Vec::new();
    for pair in pairs {
        if !chosen.contains(&pair) {
            chosen.push(pair);
        }
    }
    Ok(chosen)
}

fn of_place(place: Where, seats: &[Seat]) -> Vec<Pair> {
    let all = || {
        let with_others = |(index, first)| seats[index..].iter().map(move |s| pair(first, s));
        seats.iter().enumerate().flat_map(with_others)
    };
    let nearest = |relation| {
        let fitting = || all().filter(move |pair| pair.relation == relation);
        let chosen = fitting().find(|pair| !pair.shares_core).or_else(|| fitting().next());
        chosen.into_iter().collect()
    };
    match place {
        Where::SameCore => nearest(Relation::SameCore),
        Where::SameSocket => nearest(Relation::SameSocket),
        Where::OtherSocket => nearest(Relation::OtherSocket),
        Where::AllPairs => all().collect(),
    }
}

fn missing(place: Where, seats: &[Seat]) -> Error {
    let cpus: Vec<String> = seats.iter().map(|seat| seat.cpu.to_string()).collect();
    let mut sockets: Vec<u32> = seats.iter().map(|seat| seat.socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    let name = match place {
        Where::OtherSocket => "other-socket",
        _ => "same-socket",
    };
    Error::setup(
        format!(
            "this machine has no placement {name}: this process may use CPU {} on {} socket{}",
            cpus.join(","),
            sockets.len(),
            if sockets.len() == 1 { "" } else { "s" }
        ),
        "omit --placement to measure all that exist",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two cores with two threads each.
    fn large() -> Vec<Seat> {
        (0..8).map(|cpu| Seat { cpu, socket: cpu as u32 / 4, core: cpu as u32 / 2 % 2 }).collect()
    }

    fn cpus(choice: &[Where], seats: &[Seat]) -> Vec<[usize; 2]> {
        choose(choice, seats).unwrap().iter().map(|pair| pair.cpus).collect()
    }

    #[test]
    fn different_cores_are_preferred() {
        assert_eq!(cpus(&[], &large()), [[0, 0], [0, 2], [0, 4]]);
        let siblings = choose(&[Where::SameSocket], &large()[..2]).unwrap();
        assert_eq!((siblings[0].cpus, siblings[0].shares_core), ([0, 1], true));
    }

    #[test]
    fn all_pairs_are_every_two_and_each_twice() {
        assert_eq!(cpus(&[Where::AllPairs], &large()).len(), 8 * 9 / 2);
        let both = [Where::SameCore, Where::AllPairs];
        assert_eq!(cpus(&both, &large()[..2]), [[0, 0], [0, 1], [1, 1]]);
    }

    #[test]
    fn what_the_machine_has_not_is_an_error_only_if_it_was_asked_for() {
        assert_eq!(cpus(&[], &large()[..1]), [[0, 0]]);
        let error = choose(&[Where::OtherSocket], &large()[..2]).unwrap_err().to_string();
        assert!(error.contains("no placement other-socket"), "{error}");
        assert!(error.contains("CPU 0,1 on 1 socket;"), "{error}");
    }
}
