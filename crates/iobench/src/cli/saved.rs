//! Options of the commands for result files, and of those for the shell and the manual.

use std::path::PathBuf;

use clap::Args;

use crate::cli::values::parse_threshold;

const REPORT_EXAMPLES: &str = "\
Examples:
  iobench report table3.json
  iobench report before.json after.json -o both.html";

const DIFF_EXAMPLES: &str = "\
Examples:
  iobench diff main.json branch.json
  iobench diff main.json branch.json --threshold 10% --json -

Rows are judged by their ratio to the baseline of the same run, because the machine differs from run
to run; without a baseline by their figures, and then only beyond --drift. A regression is a change
for the worse whose interval over rounds excludes no change, and which exceeds the threshold. With
95 % all intervals hold together, so more rows make them wider, and more rounds narrower. They allow
for correlation of successive rounds, as it is found over all rows.

Exit status: 0 without a regression, 1 with one or after an error, 3 if a row of OLD is missing from
NEW, or is not valid in one of them, and there is no regression otherwise.";

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  iobench completions bash > ~/.local/share/bash-completion/completions/iobench
  iobench completions zsh > ~/.zfunc/_iobench
  iobench completions fish > ~/.config/fish/completions/iobench.fish";

/// Options of `report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Result files, at most 16; those of the same experiment are drawn in the same charts
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// File of the page; `-` prints it
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
}

/// Options of `diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub(crate) struct DiffArgs {
    /// Old result file, which is the reference
    #[arg(value_name = "OLD")]
    pub(crate) old: PathBuf,

    /// New result file, which is judged
    #[arg(value_name = "NEW")]
    pub(crate) new: PathBuf,

    /// Largest change for the worse that is no regression, such as 5% or 0.5%
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_threshold)]
    pub(crate) threshold: f64,

    /// Largest change attributed to the machine in rows without a baseline
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_threshold)]
    pub(crate) drift: f64,

    /// File to which everything is also written, as JSON; `-` prints JSON only
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
