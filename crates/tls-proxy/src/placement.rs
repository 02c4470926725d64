//! Chooses the driver of the channels, and the CPUs of their threads.

use crate::arguments::Arguments;
use crate::error::ProxyError;
use megapipe::{CpuSet, DriverChoice};
use mtcp::driver::{InstallError, NAME};
use mtcp::{Config, Mtcp};
use std::net::IpAddr;

/// The environment variable that selects the driver if the command line does not.
const ENVIRONMENT: &str = "MEGAPIPE_DRIVER";

/// Driver and CPUs of the proxy.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) driver: DriverChoice,
    /// The CPU of each core.
    pub(crate) cpus: Vec<usize>,
    /// Addresses of the stack, which the kernel may not have.
    pub(crate) stack_addresses: Vec<IpAddr>,
    /// Whether threads are pinned to their CPUs. They are not if the stack's settings request more
    /// cores than there are CPUs.
    pub(crate) is_pinned: bool,
}

/// Chooses driver and CPUs from the command line and the environment, and starts the stack if it is
/// the driver. Threads that exist before are not affected; threads that the stack starts inherit
/// the signal mask.
///
/// # Errors
/// [`ProxyError`] with the setting, or with the requirement that the system does not meet.
pub(crate) fn choose(arguments: &Arguments) -> Result<Placement, ProxyError> {
    let asked = arguments.driver.clone().filter(|name| name != "auto");
    let name = asked.or_else(|| std::env::var(ENVIRONMENT).ok()).unwrap_or_else(|| "auto".into());
    if name == NAME {
        return on_stack(arguments);
    }
    if arguments.config.is_some() {
        return Err(ProxyError::ConfigWithoutStack(name));
    }
    let driver = match name.as_str() {
        "auto" => DriverChoice::Auto,
        "uring" => DriverChoice::Uring,
        "epoll" => DriverChoice::Epoll,
        _ => return Err(ProxyError::Driver(name)),
    };
    let mut cpus = allowed_cpus()?;
    if let Some(cores) = arguments.cores.map(usize::from) {
        if cores > cpus.len() {
            return Err(ProxyError::Cores { asked: cores, available: cpus.len() });
        }
        cpus.truncate(cores);
    }
    Ok(Placement { driver, cpus, stack_addresses: Vec::new(), is_pinned: true })
}

fn on_stack(arguments: &Arguments) -> Result<Placement, ProxyError> {
    let mut config = match &arguments.config {
        Some(path) => Config::load(path)?,
        None => Config::from_environment()?,
    };
    if let Some(cores) = arguments.cores {
        config.engine.cores = cores;
    }
    let cores = usize::from(config.engine.cores);
    let stack_addresses = config.addresses.iter().map(|(address, _)| *address).collect();
    mtcp::driver::install(Mtcp::start(config).map_err(InstallError::from)?)?;
    let allowed = allowed_cpus()?;
    let cpus = (0..cores).map(|core| allowed[core % allowed.len()]).collect();
    let is_pinned = cores <= allowed.len();
    Ok(Placement { driver: DriverChoice::Installed(NAME), cpus, stack_addresses, is_pinned })
}

/// Returns the CPUs that this process may run on, at least one.
fn allowed_cpus() -> Result<Vec<usize>, ProxyError> {
    sys::cpus::allowed().map_err(|source| ProxyError::System {
        what: "read the allowed CPUs",
        source,
        remedy: "more than 1024 CPUs are not supported: restrict the process with taskset(1)",
    })
}

impl Placement {
    /// Returns whether connections may use TCP in user space.
    pub(crate) fn has_stack(&self) -> bool {
        matches!(self.driver, DriverChoice::Installed(_))
    }

    /// Returns the CPUs whose kernel connections a core accepts: its own CPU, and its share of the
    /// CPUs that no core has.
    pub(crate) fn share(&self, core: usize) -> CpuSet {
        let cores = self.cpus.len();
        let highest = self.cpus.iter().copied().max().unwrap_or(0);
        let owner = |cpu: usize| {
            let own = self.cpus.iter().position(|own| *own == cpu);
            own.unwrap_or(cpu.min(highest + cores) % cores)
        };
        (0..CpuSet::CAPACITY).filter(|cpu| owner(*cpu) == core).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_belongs_to_one_core_and_every_core_has_one() {
        for cpus in [vec![0], vec![1, 0], vec![4, 0, 9], vec![0, 0, 0], (0..256).collect()] {
            let cores = cpus.len();
            let placement = Placement {
                driver: DriverChoice::Auto,
                cpus: cpus.clone(),
                stack_addresses: Vec::new(),
                is_pinned: true,
            };
            let shares: Vec<CpuSet> = (0..cores).map(|core| placement.share(core)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()), "{cpus:?}");
            for cpu in 0..CpuSet::CAPACITY {
                let owners = shares.iter().filter(|share| share.contains(cpu)).count();
                assert_eq!(owners, 1, "CPU {cpu} among {cpus:?}");
            }
            if let Some(core) = cpus.iter().position(|cpu| *cpu == 9) {
                assert!(shares[core].contains(9), "a core has its own CPU");
            }
        }
    }
}
