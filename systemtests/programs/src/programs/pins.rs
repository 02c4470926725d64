//! Parses the pinned differences of a way: one line each, `SUITE/CASE | PLAIN | UNDER | REASON`.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::journal::Outcome;
use super::preload_command::PreloadCommand;

/// A difference that is known, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// The suite or program, and the case; a star at the end matches any rest.
    pub(crate) name: String,
    pub(crate) plain: Outcome,
    /// The outcomes under the library; several if they vary.
    pub(crate) under: Vec<Outcome>,
    pub(crate) reason: String,
}

impl fmt::Display for Pin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under: Vec<String> = self.under.iter().map(Outcome::to_string).collect();
        let Pin { name, plain, reason, .. } = self;
        write!(out, "{name} | {plain} | {} | {reason}", under.join(","))
    }
}

impl Pin {
    /// Returns whether the pin is about this case.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => self.name == name,
        }
    }

    fn read(line: &str) -> Option<Pin> {
        let words: Vec<&str> = line.splitn(4, " | ").map(str::trim).collect();
        let [name, plain, under, reason] = words[..] else { return None };
        let under: Option<Vec<Outcome>> = under.split(',').map(Outcome::read).collect();
        let (plain, under) = (Outcome::read(plain)?, under?);
        let (name, reason) = (name.to_string(), reason.to_string());
        (!reason.is_empty()).then_some(Pin { name, plain, under, reason })
    }
}

/// Reads the list of a way, `programs/WAY.txt`.
pub(crate) fn of(preload_command: PreloadCommand) -> io::Result<Vec<Pin>> {
    let path = directory().join(format!("{}.txt", preload_command.name()));
    let named = |error: String| io::Error::other(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| named(error.to_string()))?;
    parse(&text).map_err(named)
}

/// Returns the directory of the lists, the programs' scripts and the runner of Python's suites.
pub(crate) fn directory() -> PathBuf {
    crate::root().join("systemtests/programs/programs")
}

fn parse(text: &str) -> Result<Vec<Pin>, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let read = |line: &str| {
        Pin::read(line).ok_or_else(|| {
            format!("cannot make sense of `{line}`; write `SUITE/CASE | PLAIN | UNDER | REASON`")
        })
    };
    let pins: Vec<Pin> = lines.map(read).collect::<Result<_, _>>()?;
    match pins.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        Some(pair) => {
            Err(format!("{} belongs before {}; sort the lines", pair[1].name, pair[0].name))
        }
        None => Ok(pins),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_and_written() {
        let text =
            "# heading\n\na/B.c | ok | hung,failed | F1: why | not\na/C.* | ok | error | x\n";
        let pins = parse(text).unwrap();
        assert_eq!(pins[0].under, [Outcome::Hung, Outcome::Failed]);
        assert_eq!(pins[0].to_string(), "a/B.c | ok | hung,failed | F1: why | not");
        assert!(pins[0].is_of("a/B.c") && !pins[0].is_of("a/B.cd"));
        assert!(pins[1].is_of("a/C.d") && !pins[1].is_of("a/B.c"));
    }

    #[test]
    fn wrong_and_unsorted_lines_are_named() {
        for line in ["a | ok | hung", "a | fine | hung | x", "a | ok | hung | "] {
            assert!(parse(line).unwrap_err().contains("cannot make sense of"), "{line}");
        }
        let unsorted = "b | ok | hung | x\na | ok | hung | x\n";
        assert_eq!(parse(unsorted).unwrap_err(), "a belongs before b; sort the lines");
    }

    #[test]
    fn the_lists_of_all_ways_are_sorted_and_complete() {
        for preload_command in [PreloadCommand::Fable, PreloadCommand::Mtcp] {
            of(preload_command).unwrap();
        }
    }
}
