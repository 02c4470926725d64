//! The table of all cells, as text and as JSON, and its verdict.

use super::columns::aligned;
use super::outcome::{Cell, Figure};
use serde_json::{Value, json};
use std::fmt;

/// A scenario with its cells, the stock server's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) program: &'static str,
    pub(crate) scenario: String,
    /// The names of the columns, and their cells.
    pub(crate) cells: Vec<(&'static str, Cell)>,
    /// The columns in which being worse is a documented limit.
    pub(crate) limited: &'static [&'static str],
}

/// A cell that is worse than the stock server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worse {
    /// "nginx", "memcached" or "redis".
    pub program: &'static str,
    /// The row.
    pub scenario: String,
    /// The column.
    pub variant: &'static str,
    /// The worse figures, with the stock server's, or the error.
    pub reason: String,
    /// Whether this is a limit of the design, which the documentation names.
    pub is_limit: bool,
}

impl fmt::Display for Worse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Worse { program, scenario, variant, reason, .. } = self;
        write!(out, "{program}, {scenario}, {variant}: {reason}")
    }
}

/// The results of all scenarios.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub(crate) rows: Vec<Row>,
}

impl Row {
    fn stock(&self) -> &Cell {
        self.cells.first().map_or(&Cell::Absent, |(_, cell)| cell)
    }

    /// Variant and reason of each cell that is worse than the stock server's.
    fn worse(&self) -> Vec<(&'static str, String)> {
        let others = self.cells.iter().skip(1);
        let worse =
            |(name, cell): &(&'static str, Cell)| Some((*name, cell.worse_than(self.stock())?));
        others.filter_map(worse).collect()
    }

    fn json(&self) -> Value {
        let worse = self.worse();
        let cell = |(name, cell): &(&'static str, Cell)| {
            let (state, figures, fault) = match cell {
                Cell::Absent => ("absent", &[][..], None),
                Cell::Ran(figures) => ("ran", figures.as_slice(), None),
                Cell::Fault(what) => ("fault", &[][..], Some(what)),
            };
            let figure = |figure: &Figure| {
                let Figure { name, value, detail, .. } = figure;
                json!({ "name": name, "value": value, "detail": detail })
            };
            let figures: Vec<Value> = figures.iter().map(figure).collect();
            let why = worse.iter().find(|(of, _)| of == name).map(|(_, why)| why);
            json!({
                "variant": name, "state": state, "figures": figures, "fault": fault, "worse": why
            })
        };
        let cells: Vec<Value> = self.cells.iter().map(cell).collect();
        json!({ "program": self.program, "scenario": self.scenario, "cells": cells })
    }

    /// Returns the row as one line, shown before the table is complete.
    pub(crate) fn line(&self) -> String {
        let ran = self.cells.iter().filter(|(_, cell)| *cell != Cell::Absent);
        let cells: Vec<String> = ran.map(|(name, cell)| format!("{name}: {cell}")).collect();
        format!("{}, {}: {}", self.program, self.scenario, cells.join("; "))
    }
}

impl Table {
    /// Returns the cells that are worse than the stock server's.
    pub fn worse(&self) -> Vec<Worse> {
        let of = |row: &Row| {
            let (program, scenario) = (row.program, row.scenario.clone());
            let limited = row.limited;
            let worse = row.worse().into_iter();
            let named = move |(variant, reason)| Worse {
                program,
                scenario: scenario.clone(),
                variant,
                reason,
                is_limit: limited.contains(&variant),
            };
            worse.map(named).collect::<Vec<Worse>>()
        };
        self.rows.iter().flat_map(of).collect()
    }

    /// Returns the scenarios that fail on the stock server, so that there is nothing to compare
    /// with.
    pub fn without_comparison(&self) -> Vec<String> {
        let fault = |row: &Row| match row.stock() {
            Cell::Fault(what) => Some(format!("{}, {}: {what}", row.program, row.scenario)),
            _ => None,
        };
        self.rows.iter().filter_map(fault).collect()
    }

    /// Returns whether no cell is worse than stock except by documented limits, and each could be
    /// compared.
    pub fn is_good(&self) -> bool {
        self.worse().iter().all(|worse| worse.is_limit) && self.without_comparison().is_empty()
    }

    /// Returns the number of cells that were run.
    fn cells(&self) -> usize {
        let ran = |row: &Row| row.cells.iter().filter(|(_, cell)| *cell != Cell::Absent).count();
        self.rows.iter().map(ran).sum()
    }

    /// Returns the last line of the output.
    pub fn verdict(&self) -> String {
        let named = |worse: &[Worse]| {
            worse.iter().map(Worse::to_string).collect::<Vec<String>>().join(" | ")
        };
        let (limits, worse): (Vec<Worse>, Vec<Worse>) =
            self.worse().into_iter().partition(|worse| worse.is_limit);
        let cells = self.cells();
        let mut parts = vec![match worse.len() {
            0 => format!("none of {cells} cells is worse than stock"),
            count => format!("{count} of {cells} cells are worse than stock: {}", named(&worse)),
        }];
        if !limits.is_empty() {
            let count = limits.len();
            parts.push(format!("{count} are worse by a documented limit: {}", named(&limits)));
        }
        let failed = self.without_comparison();
        if !failed.is_empty() {
            let first = |text: &String| text.lines().next().unwrap_or_default().to_string();
            let failed: Vec<String> = failed.iter().map(first).collect();
            parts.push(format!("the stock server itself failed: {}", failed.join(" | ")));
        }
        format!("operations: {}", parts.join("; "))
    }

    /// Returns the table and the verdict.
    pub fn text(&self) -> String {
        let mut names: Vec<&'static str> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.cells) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let head = ["", "scenario"].into_iter().chain(names.iter().copied()).map(String::from);
        let mut lines: Vec<Vec<String>> = vec![head.collect()];
        for row in &self.rows {
            let worse = row.worse();
            let cell = |name: &&'static str| {
                let cell = row.cells.iter().find(|(of, _)| of == name);
                let text = cell.map_or_else(|| "-".to_string(), |(_, cell)| cell.to_string());
                match worse.iter().any(|(of, _)| of == name) {
                    true if row.limited.contains(name) => format!("WORSE, a limit: {text}"),
                    true => format!("WORSE: {text}"),
                    false => text,
                }
            };
            let first = [row.program.to_string(), row.scenario.clone()];
            lines.push(first.into_iter().chain(names.iter().map(cell)).collect());
        }
        format!("{}\n{}\n", aligned(&lines), self.verdict())
    }

    /// Returns the table as JSON.
    pub fn json(&self) -> String {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        format!("{:#}\n", json!({ "rows": rows, "verdict": self.verdict() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(adapted: Cell) -> Table {
        let stock = Cell::Ran(vec![Figure::at_least("served", 10)]);
        let cells = vec![("stock", stock), ("uring", adapted)];
        let row = Row { program: "nginx", scenario: "reload".into(), cells, limited: &[] };
        Table { rows: vec![row] }
    }

    #[test]
    fn a_documented_limit_is_named_and_no_failure() {
        let mut table = table(Cell::Ran(vec![Figure::at_least("served", 9)]));
        table.rows[0].limited = &["uring"];
        assert!(table.is_good());
        let verdict = "operations: none of 2 cells is worse than stock; 1 are worse by a \
             documented limit: nginx, reload, uring: 9 served, stock 10\n";
        assert!(table.text().ends_with(verdict), "{}", table.text());
        table.rows[0].limited = &["epoll"];
        assert!(!table.is_good());
    }

    #[test]
    fn the_last_line_names_each_cell_that_is_worse() {
        let good = table(Cell::Ran(vec![Figure::at_least("served", 10)]));
        assert!(good.is_good());
        assert!(good.text().ends_with("\noperations: none of 2 cells is worse than stock\n"));
        let bad = table(Cell::Ran(vec![Figure::at_least("served", 9)]));
        let verdict = "operations: 1 of 2 cells are worse than stock: \
             nginx, reload, uring: 9 served, stock 10\n";
        assert!(!bad.is_good());
        assert!(bad.text().ends_with(verdict), "{}", bad.text());
        assert!(bad.text().contains("WORSE: 9 served"));
    }

    #[test]
    fn a_stock_server_that_fails_is_no_comparison() {
        let mut table = table(Cell::Absent);
        table.rows[0].cells[0].1 = Cell::Fault("curl is missing".into());
        assert!(!table.is_good());
        assert!(table.verdict().contains("stock server itself failed: nginx, reload: curl is"));
    }

    #[test]
    fn json_has_the_state_of_each_cell() {
        let json: Value = serde_json::from_str(&table(Cell::Fault("no".into())).json()).unwrap();
        let cell = &json["rows"][0]["cells"][1];
        assert_eq!([&cell["variant"], &cell["state"], &cell["worse"]], ["uring", "fault", "no"]);
    }
}
