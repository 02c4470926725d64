//! Chooses the CPUs of servers and clients.

use serde::Serialize;

use crate::error::{Error, Result};
use crate::sys::affinity::core_of;

/// A socket's number and that of a core in it.
pub(crate) type Core = (u32, u32);

/// The CPUs of one measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Placement {
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
}

impl Placement {
    /// Puts `cores` servers on the first CPUs that the user named, or else on the first of
    /// [`by_core`], and the clients on the rest of `allowed`: on cores without a server if there
    /// are any, on the servers' CPUs if there is no rest.
    pub(crate) fn choose(cores: usize, allowed: &[usize], choice: &CpuChoice) -> Result<Placement> {
        Placement::choose_on(cores, allowed, choice, core_of)
    }

    fn choose_on(
        cores: usize,
        allowed: &[usize],
        choice: &CpuChoice,
        core_of: impl Fn(usize) -> Core,
    ) -> Result<Placement> {
        let pool = choice.server_cpus.clone().unwrap_or_else(|| by_core(allowed, &core_of));
        if cores == 0 || cores > pool.len() {
            return Err(Error::setup(
                format!("{cores} server threads do not fit on {} CPUs", pool.len()),
                format!("choose --cores from 1 to {}", pool.len()),
            ));
        }
        let server_cpus = pool[..cores].to_vec();
        let client_cpus = choice.client_cpus.clone().unwrap_or_else(|| {
            let taken: Vec<Core> = server_cpus.iter().map(|cpu| core_of(*cpu)).collect();
            let mut rest = allowed.to_vec();
            rest.retain(|cpu| !server_cpus.contains(cpu));
            let mut apart = rest.clone();
            apart.retain(|cpu| !taken.contains(&core_of(*cpu)));
            let chosen = [apart, rest].into_iter().find(|cpus| !cpus.is_empty());
            chosen.unwrap_or_else(|| server_cpus.clone())
        });
        for cpu in server_cpus.iter().chain(&client_cpus) {
            if !allowed.contains(cpu) {
                return Err(Error::setup(
                    format!("CPU {cpu} is not among the CPUs {allowed:?} of this process"),
                    "name other CPUs, or start with a wider taskset or cpuset",
                ));
            }
        }
        for cpus in [&server_cpus, &client_cpus] {
            if unique(cpus).len() < cpus.len() {
                return Err(Error::setup(
                    format!("a CPU occurs twice in {cpus:?}"),
                    "give every thread a CPU of its own",
                ));
            }
        }
        Ok(Placement { server_cpus, client_cpus })
    }

    /// Returns whether server and clients share a CPU.
    pub(crate) fn is_shared(&self) -> bool {
        self.client_cpus.iter().any(|cpu| self.server_cpus.contains(cpu))
    }
}

/// Returns the first CPU of each core, then the second of each, and so on: hardware threads of one
/// core share its execution units, so two of them do less than two cores.
pub(crate) fn by_core(cpus: &[usize], core_of: impl Fn(usize) -> Core) -> Vec<usize> {
    let cores: Vec<Core> = cpus.iter().map(|cpu| core_of(*cpu)).collect();
    let earlier = |at: usize| cores[..at].iter().filter(|core| **core == cores[at]).count();
    let mut order: Vec<usize> = (0..cpus.len()).collect();
    order.sort_by_key(|at| earlier(*at));
    order.into_iter().map(|at| cpus[at]).collect()
}

/// The user's choice of CPUs, if any.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuChoice {
    pub(crate) server_cpus: Option<Vec<usize>>,
    pub(crate) client_cpus: Option<Vec<usize>>,
}

/// Removes duplicates; keeps the order.
pub(crate) fn unique<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut unique = Vec::new();
    for value in values {
        if !unique.contains(value) {
            unique.push(*value);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores, of which CPU n and CPU n + 1 are the hardware threads if n is even.
    fn adjacent(cpu: usize) -> Core {
        (0, cpu as u32 / 2)
    }

    #[test]
    fn servers_get_cores_of_their_own_while_there_are_any() {
        let eight: Vec<usize> = (0..8).collect();
        let place = |cores, core_of: fn(usize) -> Core| {
            let choice = CpuChoice::default();
            let Placement { server_cpus, client_cpus } =
                Placement::choose_on(cores, &eight, &choice, core_of).unwrap();
            (server_cpus, client_cpus)
        };
        assert_eq!(place(1, adjacent), (vec![0], vec![2, 3, 4, 5, 6, 7]));
        assert_eq!(place(3, adjacent), (vec![0, 2, 4], vec![6, 7]));
        assert_eq!(place(4, adjacent), (vec![0, 2, 4, 6], vec![1, 3, 5, 7]));
        assert_eq!(place(5, adjacent), (vec![0, 2, 4, 6, 1], vec![3, 5, 7]));
        assert_eq!(place(8, adjacent).1, place(8, adjacent).0);
        // CPU n and CPU n + 4 are the hardware threads; then without any.
        let halves = |cpu| (0, cpu as u32 % 4);
        assert_eq!(place(2, halves), (vec![0, 1], vec![2, 3, 6, 7]));
        assert_eq!(place(2, |cpu| (0, cpu as u32)), (vec![0, 1], vec![2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn what_the_user_names_stays_in_order() {
        let cpus = |list: &[usize]| Some(list.to_vec());
        let choice = CpuChoice { server_cpus: cpus(&[1, 0, 2]), client_cpus: cpus(&[1]) };
        let placement = Placement::choose_on(2, &[0, 1, 2, 3], &choice, adjacent).unwrap();
        assert_eq!((placement.server_cpus, placement.client_cpus), (vec![1, 0], vec![1]));
    }
}
