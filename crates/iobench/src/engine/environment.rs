//! Describes the machine, so that a reader can judge a result.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::sys::affinity::allowed_cpus;
use crate::sys::clock::utc_now;
use crate::sys::limits::{Limits, read_trimmed};
use crate::sys::socket::{CongestionControl, default_congestion_control};

/// The machine, the time and the command.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Environment {
    date: String,
    iobench: String,
    command: Vec<String>,
    pub(crate) kernel: String,
    pub(crate) cpu_model: String,
    pub(crate) cpus: Vec<usize>,
    governor: Option<String>,
    clock_source: Option<String>,
    pub(crate) congestion_control: String,
    pub(crate) system_congestion_control: String,
    /// The driver of the servers whose names leave it open, and the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) driver: Option<String>,
    limits: Limits,
    load_average: Option<String>,
    pub(crate) seed: u64,
}

impl Environment {
    /// Reads the properties of this machine.
    pub(crate) fn gather(limits: &Limits, seed: u64) -> Result<Environment> {
        let cpus = allowed_cpus()?;
        let first = cpus.first().copied().unwrap_or(0);
        let governor = format!("/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor");
        let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        Ok(Environment {
            date: utc_now(),
            iobench: env!("MEGAPIPE_VERSION").to_owned(),
            command: std::env::args().collect(),
            kernel: read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            cpu_model: cpu_model().unwrap_or_else(unknown),
            cpus,
            governor: read_trimmed(&governor),
            clock_source: read_trimmed(clock),
            congestion_control: CongestionControl::pick().name,
            system_congestion_control: default_congestion_control(),
            driver: None,
            limits: limits.clone(),
            load_average: read_trimmed("/proc/loadavg"),
            seed,
        })
    }

    /// Two lines of text for the top of a report, and one about the driver if there is a choice.
    pub(crate) fn describe(&self) -> String {
        let default = if self.system_congestion_control == self.congestion_control {
            String::new()
        } else {
            format!(" (the system's default is {})", self.system_congestion_control)
        };
        let driver = self.driver.as_ref().map_or_else(String::new, |driver| format!("\n{driver}"));
        format!(
            "Linux {}, {}, {} CPU{}, load average {}\n\
             congestion control {}{default}, seed {}{driver}",
            self.kernel,
            self.cpu_model,
            self.cpus.len(),
            if self.cpus.len() == 1 { "" } else { "s" },
            self.load_average.as_deref().unwrap_or("unknown"),
            self.congestion_control,
            self.seed,
        )
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
