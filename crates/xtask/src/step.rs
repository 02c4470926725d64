//! One step of a run as data, with the command that repeats it alone.

use std::path::Path;

use crate::cargo::Cargo;
use crate::lanes::Outcome;
use crate::test_capabilities::TestCapabilities;

/// One step of a run.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Why the step cannot run here; `None` if it can.
    pub(crate) lacking: Option<String>,
    /// Parts that are left out here, each with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    /// Builds of later steps in their own directories, which run while this step's test programs
    /// wait.
    pub(crate) meanwhile: Vec<Cargo>,
    /// Whether it may run at the same time as its neighbours: it does not measure, and it changes
    /// nothing that they use.
    pub(crate) beside: bool,
}

/// The work of a step.
pub(crate) enum Work {
    /// Installs missing packages; steps that need a package that cannot be installed are left out.
    SetUp,
    /// A command of xtask, as `cargo xtask NAME` runs it.
    Own(fn(&Path) -> Result<(), String>),
    /// A command of xtask that counts its checks.
    Checks(fn(&Path) -> Result<Outcome, String>),
    /// A cargo command, judged by its exit status.
    Cargo(Cargo),
    /// A cargo command that runs tests, and the least number of tests that must have run: otherwise
    /// a filter or a `cfg` that matches nothing would look like success.
    Tests(Cargo, u64),
}

impl Step {
    /// Makes a step that can run here.
    pub(crate) fn new(name: &'static str, work: Work) -> Step {
        let (left_out, meanwhile) = (Vec::new(), Vec::new());
        Step { name, work, lacking: None, left_out, meanwhile, beside: false }
    }

    /// Lets the step run at the same time as its neighbours.
    pub(crate) fn beside(mut self) -> Step {
        self.beside = true;
        self
    }

    /// Returns the build of this step, without running it, if it has its own directory.
    pub(crate) fn build_alone(&self) -> Option<Cargo> {
        let (Work::Cargo(cargo) | Work::Tests(cargo, _)) = &self.work else { return None };
        let alone = self.lacking.is_none() && cargo.arguments.iter().any(|a| a == "--target-dir");
        let mut cargo = alone.then(|| cargo.clone())?;
        if let Work::Tests(..) = self.work {
            cargo.arguments.insert(1, "--no-run".to_string());
        }
        Some(cargo)
    }

    /// Leaves the step out if one of these packages is missing.
    pub(crate) fn needs(mut self, packages: &[&'static str], means: &TestCapabilities) -> Step {
        let lacking = packages.iter().find(|package| means.lacks(package));
        self.lacking = self.lacking.or(lacking.map(|package| is_missing(package)));
        self
    }

    /// Returns the command line that repeats this step alone.
    pub(crate) fn repeat(&self) -> String {
        match &self.work {
            Work::SetUp | Work::Own(_) | Work::Checks(_) => format!("cargo xtask {}", self.name),
            Work::Cargo(cargo) | Work::Tests(cargo, _) => cargo.to_string(),
        }
    }
}

/// Returns the reason why a step or a feature is left out.
pub(crate) fn is_missing(package: &str) -> String {
    format!("the package {package} is missing")
}
