//! Shell completions and manual pages.

use clap::CommandFactory;

use crate::cli::Cli;
use crate::error::Result;

const EXIT_STATUS: [(&str, &str); 5] = [
    ("0", "Everything was measured; what is not valid is marked INVALID, and nothing got worse."),
    ("1", "An error, which is told on standard error; of diff also: something got worse."),
    ("2", "The command line is wrong."),
    (
        "3",
        "With --strict: a result is not valid, and the reason stands with it. Of diff without any \
         option: a row is missing or not valid.",
    ),
    ("130", "Interrupted by Ctrl-C."),
];

const FILES: [(&str, &str); 3] = [
    (
        "*.toml",
        "Experiments: the workload, the servers, the axes of the sweep, and how long to measure.",
    ),
    ("*.json", "Results, with the environment, the experiment and raw histograms."),
    ("report.html", "The page that report writes unless told otherwise."),
];

const ENVIRONMENT: [(&str, &str); 3] = [
    (
        "MEGAPIPE_DRIVER",
        "Decides for the servers megapipe, megapipe-stealing, megapipe-p and megapipe-pb which \
         driver their channels use, uring or epoll; without it they use what the machine permits.",
    ),
    (
        "IOBENCH_START_TIMEOUT",
        "How long an external server may take until it accepts a connection, 30s without it.",
    ),
    ("MEGAPIPE_APPS", "Where apps looks for the adapted programs, instead of beside iobench."),
];

const SECTIONS: [::cli::Section<'_>; 3] =
    [("EXIT STATUS", &EXIT_STATUS), ("FILES", &FILES), ("ENVIRONMENT", &ENVIRONMENT)];

/// Prints the completion script.
pub(crate) fn completions(arguments: &::cli::CompletionsArgs) -> Result<()> {
    Ok(::cli::completions(Cli::command(), arguments.shell)?)
}

/// Prints the main manual page, or writes the pages of all commands.
pub(crate) fn run(arguments: &::cli::ManArgs) -> Result<()> {
    Ok(::cli::manual(Cli::command(), &SECTIONS, arguments)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_exit_status_is_in_the_reference() {
        let codes: BTreeSet<String> = EXIT_STATUS.map(|(code, _)| code.to_owned()).into();
        let documented = testkit::documented("exit-codes.md", "iobench");
        // A second table there begins with the names of commands.
        let is_code = |name: &String| name.parse::<u8>().is_ok();
        assert_eq!(documented.into_iter().filter(is_code).collect::<BTreeSet<_>>(), codes);
    }
}
