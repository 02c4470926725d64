//! The result of `iobench programs`: one self-describing JSON document, and the same for people.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::engine::environment::Environment;
use crate::programs::row::{FIELDS, Row};
use crate::programs::table;

/// Value of `format`.
const FORMAT: &str = "iobench-programs";
/// Changes when a reader of the former version would misunderstand a file.
const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    format: &'static str,
    version: u32,
    environment: Environment,
    network: String,
    /// Versions and settings, one line for each program.
    programs: Vec<String>,
    elapsed_s: f64,
    /// What the fields of a row mean.
    fields: BTreeMap<&'static str, &'static str>,
    pub(crate) results: Vec<Row>,
}

impl Document {
    pub(crate) fn new(
        environment: Environment,
        network: String,
        programs: Vec<String>,
        elapsed_s: f64,
        results: Vec<Row>,
    ) -> Document {
        let fields = FIELDS.into_iter().collect();
        let (format, version) = (FORMAT, VERSION);
        Document { format, version, environment, network, programs, elapsed_s, fields, results }
    }

    pub(crate) fn render(&self) -> String {
        let environment = self.environment.describe();
        let programs = self.programs.join("\n");
        let table = table::render(&self.results);
        format!("{environment}\nnetwork: {}\n{programs}\n\n{table}", self.network)
    }
}
