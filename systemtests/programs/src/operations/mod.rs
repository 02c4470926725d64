//! `cargo xtask operations`: performs the actions of operators and clients on the stock server and
//! on the adapted one, with counts as the result.
//!
//! A scenario sets a server up, puts a bounded load on it and returns figures. It runs on each
//! variant of the server, and each figure is compared with the stock server's by its own rule. No
//! result depends on the speed of the machine; time-outs detect what hangs.

mod columns;
mod content;
mod counts;
mod load;
mod memcached;
mod nginx;
mod outcome;
mod redis;
mod table;

pub(crate) use columns::aligned;
use outcome::{Cell, Figures};
use table::Row;
pub use table::{Table, Worse};

/// The size of a scenario's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// About a quarter of a second for each cell, for tests.
    Quick,
    /// Several minutes in all.
    Full,
}

impl Extent {
    /// Returns the number for this extent.
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Extent::Quick => quick,
            Extent::Full => full,
        }
    }
}

/// A server with scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Program {
    /// nginx: stock, and with the event module over both drivers, with and without partition.
    Nginx,
    /// memcached: stock and adapted over both drivers.
    Memcached,
    /// redis: stock and adapted over both drivers.
    Redis,
}

/// One run of a scenario; `None` if its column would repeat another one.
type Run = Option<Box<dyn Fn() -> Figures>>;

/// A scenario that is ready to run: its name, and the name and the run of each column.
struct Plan {
    scenario: String,
    columns: Vec<(&'static str, Run)>,
    /// The columns that are worse than the stock server's because of a documented limit.
    limited: &'static [&'static str],
}

/// Runs all scenarios of a program whose names contain `only`; calls `progress` with each complete
/// row.
pub fn run(program: Program, extent: Extent, only: &str, progress: impl Fn(&str)) -> Table {
    let (name, plans) = match program {
        Program::Nginx => ("nginx", nginx::plans(extent)),
        Program::Memcached => ("memcached", memcached::plans(extent)),
        Program::Redis => ("redis", redis::plans(extent)),
    };
    let mut table = Table::default();
    for plan in plans.into_iter().filter(|plan| plan.scenario.contains(only)) {
        let cell = |(name, run): (&'static str, Run)| {
            (name, run.map_or(Cell::Absent, |run| Cell::of(run())))
        };
        let cells = plan.columns.into_iter().map(cell).collect();
        let (scenario, limited) = (plan.scenario, plan.limited);
        let row = Row { program: name, scenario, cells, limited };
        progress(&row.line());
        table.rows.push(row);
    }
    table
}

impl Table {
    /// Appends the rows of another program.
    pub fn append(&mut self, mut other: Table) {
        self.rows.append(&mut other.rows);
    }
}
