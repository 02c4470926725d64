//! Figures of one run of a scenario, and their comparison with those of the stock server.

use std::fmt;
use std::io;

/// How a figure is compared with the stock server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Not compared: it depends on the speed of the machine.
    Shown,
    /// At least the stock server's, less `slack`.
    AtLeast { slack: u64 },
    /// At most the stock server's times `factor`, plus `slack`.
    AtMost { factor: u64, slack: u64 },
}

/// A number that a scenario has counted or measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Its name, with the unit if it is not a count: "served", "ms to end".
    pub(crate) name: &'static str,
    pub(crate) value: u64,
    pub(crate) rule: Rule,
    /// Its parts, such as "3 reset, 1 refused"; may be empty.
    pub(crate) detail: String,
}

/// The result of a scenario: its figures, or an error.
pub(crate) type Figures = io::Result<Vec<Figure>>;

impl Figure {
    /// Returns a figure that is not compared.
    pub(crate) fn shown(name: &'static str, value: u64) -> Figure {
        Figure { name, value, rule: Rule::Shown, detail: String::new() }
    }

    /// Returns a figure that has to be at least the stock server's.
    pub(crate) fn at_least(name: &'static str, value: u64) -> Figure {
        Figure { rule: Rule::AtLeast { slack: 0 }, ..Figure::shown(name, value) }
    }

    /// Returns a figure that has to be at most the stock server's.
    pub(crate) fn at_most(name: &'static str, value: u64) -> Figure {
        Figure { rule: Rule::AtMost { factor: 1, slack: 0 }, ..Figure::shown(name, value) }
    }

    /// Returns the figure with more slack.
    pub(crate) fn with_slack(self, more: u64) -> Figure {
        let rule = match self.rule {
            Rule::Shown => Rule::Shown,
            Rule::AtLeast { .. } => Rule::AtLeast { slack: more },
            Rule::AtMost { factor, .. } => Rule::AtMost { factor, slack: more },
        };
        Figure { rule, ..self }
    }

    /// Returns whether the rule is broken, compared with the stock server's figure.
    fn is_worse_than(&self, stock: u64) -> bool {
        match self.rule {
            Rule::Shown => false,
            Rule::AtLeast { slack } => self.value.saturating_add(slack) < stock,
            Rule::AtMost { factor, slack } => {
                self.value > stock.saturating_mul(factor).saturating_add(slack)
            }
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.value, self.name)?;
        if self.detail.is_empty() { Ok(()) } else { write!(out, " ({})", self.detail) }
    }
}

/// One run of a scenario on one variant of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// The scenario would not differ from another variant.
    Absent,
    /// The run ended normally.
    Ran(Vec<Figure>),
    /// The run failed, with a description.
    Fault(String),
}

impl Cell {
    /// Wraps the result of a scenario.
    pub(crate) fn of(figures: Figures) -> Cell {
        match figures {
            Ok(figures) => Cell::Ran(figures),
            Err(error) => Cell::Fault(error.to_string()),
        }
    }

    /// Returns why the cell is worse than the stock server's; `None` if it is not. A failure is
    /// worse than any run.
    pub(crate) fn worse_than(&self, stock: &Cell) -> Option<String> {
        let figures = match self {
            Cell::Absent => return None,
            Cell::Fault(what) => {
                let first = what.lines().next().unwrap_or_default();
                return (!matches!(stock, Cell::Fault(_))).then(|| first.to_string());
            }
            Cell::Ran(figures) => figures,
        };
        let Cell::Ran(stock) = stock else { return None };
        let reasons = figures.iter().filter_map(|figure| {
            let theirs = stock.iter().find(|theirs| theirs.name == figure.name)?;
            figure.is_worse_than(theirs.value).then(|| format!("{figure}, stock {}", theirs.value))
        });
        let reasons: Vec<String> = reasons.collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Absent => out.write_str("-"),
            Cell::Ran(figures) if figures.is_empty() => out.write_str("ok"),
            Cell::Ran(figures) => {
                let texts: Vec<String> = figures.iter().map(Figure::to_string).collect();
                out.write_str(&texts.join(", "))
            }
            Cell::Fault(what) => {
                write!(out, "FAULT: {}", what.lines().next().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(figures: &[Figure]) -> Cell {
        Cell::Ran(figures.to_vec())
    }

    #[test]
    fn fewer_served_or_more_failed_than_stock_is_worse() {
        let stock = ran(&[Figure::at_least("served", 200), Figure::at_most("failed", 3)]);
        let same = stock.clone();
        assert_eq!(same.worse_than(&stock), None);
        let fewer = ran(&[Figure::at_least("served", 199)]);
        assert_eq!(fewer.worse_than(&stock).as_deref(), Some("199 served, stock 200"));
        let more = ran(&[Figure::at_most("failed", 4)]);
        assert_eq!(more.worse_than(&stock).as_deref(), Some("4 failed, stock 3"));
        assert_eq!(ran(&[Figure::at_most("failed", 0)]).worse_than(&stock), None);
        let slower = ran(&[Figure::shown("served", 1)]);
        assert_eq!(slower.worse_than(&stock), None);
    }

    #[test]
    fn slack_and_factor_are_allowed_and_no_more() {
        let stock = ran(&[Figure::shown("ms", 100), Figure::shown("served", 10)]);
        let within = |value| {
            let rule = Rule::AtMost { factor: 3, slack: 1000 };
            ran(&[Figure { rule, ..Figure::shown("ms", value) }]).worse_than(&stock).is_none()
        };
        assert!(within(1300) && !within(1301));
        let served = |value| ran(&[Figure::at_least("served", value).with_slack(2)]);
        assert_eq!(served(8).worse_than(&stock), None);
        assert!(served(7).worse_than(&stock).is_some());
    }

    #[test]
    fn a_fault_is_worse_than_any_run_but_not_than_a_fault() {
        let fault = Cell::Fault("no answer\nits log".into());
        assert_eq!(fault.worse_than(&ran(&[])).as_deref(), Some("no answer"));
        assert_eq!(fault.worse_than(&Cell::Fault("another".into())), None);
        assert_eq!(ran(&[]).worse_than(&fault), None);
        assert_eq!(Cell::Absent.worse_than(&ran(&[])), None);
        assert_eq!(fault.to_string(), "FAULT: no answer");
    }
}
