//! One step of a run as data, with the command that repeats it alone.

use std::path::Path;

use crate::cargo::Cargo;
use crate::lanes::Outcome;
use crate::means::Means;

/// One step of a run.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// Why it cannot run here, if it cannot.
    pub(crate) lacking: Option<String>,
    /// Parts that it leaves out here, each with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    /// What later steps build in directories of their own: built on the CPU time that this step's
    /// test programs leave while they wait.
    pub(crate) meanwhile: Vec<Cargo>,
}

/// What a step does.
pub(crate) enum Work {
    /// Installs what is missing; what cannot be installed is left out of the steps that follow.
    SetUp,
    /// A command of ours, as `cargo xtask NAME` runs it.
    Own(fn(&Path) -> Result<(), String>),
    /// The same, where it counts what it checks.
    Checks(fn(&Path) -> Result<Outcome, String>),
    /// A cargo command whose exit code decides.
    Cargo(Cargo),
    /// A cargo command that runs tests, of which at least this many must have run: a filter or a
    /// `cfg` that matches nothing would otherwise look like success.
    Tests(Cargo, u64),
}

impl Step {
    pub(crate) fn new(name: &'static str, work: Work) -> Step {
        Step { name, work, lacking: None, left_out: Vec::new(), meanwhile: Vec::new() }
    }

    /// What this step builds in a directory of its own, without running it.
    pub(crate) fn build_alone(&self) -> Option<Cargo> {
        let (Work::Cargo(cargo) | Work::Tests(cargo, _)) = &self.work else { return None };
        let alone = self.lacking.is_none() && cargo.arguments.iter().any(|a| a == "--target-dir");
        let mut cargo = alone.then(|| cargo.clone())?;
        if let Work::Tests(..) = self.work {
            cargo.arguments.insert(1, "--no-run".to_string());
        }
        Some(cargo)
    }

    /// A step that does not run without these packages.
    pub(crate) fn needs(mut self, packages: &[&'static str], means: &Means) -> Step {
        let lacking = packages.iter().find(|package| means.lacks(package));
        self.lacking = self.lacking.or(lacking.map(|package| is_missing(package)));
        self
    }

    /// The command line that repeats this step alone.
    pub(crate) fn repeat(&self) -> String {
        match &self.work {
            Work::SetUp | Work::Own(_) | Work::Checks(_) => format!("cargo xtask {}", self.name),
            Work::Cargo(cargo) | Work::Tests(cargo, _) => cargo.to_string(),
        }
    }
}

/// Why a step or a feature is left out.
pub(crate) fn is_missing(package: &str) -> String {
    format!("the package {package} is missing")
}
