//! Chooses the CPUs of servers and clients.

use serde::Serialize;

use crate::error::{Error, Result};

/// The CPUs of one measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Placement {
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
}

impl Placement {
    /// Puts `cores` servers on the first CPUs of `server_pool` (or of `allowed`), and the clients
    /// on the rest of `allowed`, or on the servers' CPUs if there is no rest.
    pub(crate) fn choose(cores: usize, allowed: &[usize], choice: &CpuChoice) -> Result<Placement> {
        let pool = choice.server_cpus.as_deref().unwrap_or(allowed);
        if cores == 0 || cores > pool.len() {
            return Err(Error::setup(
                format!("{cores} server threads do not fit on {} CPUs", pool.len()),
                format!("choose --cores from 1 to {}", pool.len()),
            ));
        }
        let server_cpus = pool[..cores].to_vec();
        let client_cpus = choice.client_cpus.clone().unwrap_or_else(|| {
            let rest: Vec<usize> =
                allowed.iter().copied().filter(|cpu| !server_cpus.contains(cpu)).collect();
            if rest.is_empty() { server_cpus.clone() } else { rest }
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
