//! The result file of `iobench ipc`: one self-describing JSON document, which `report` reads back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::environment::Environment;
use crate::ipc::plan::Plan;
use crate::ipc::row::{FIELDS, Row};

/// Value of `format`.
pub(crate) const FORMAT: &str = "iobench-ipc";
/// Changes when a reader of the former version would misunderstand a file.
pub(crate) const VERSION: u32 = 2;

/// The whole file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) environment: Environment,
    pub(crate) clock: Clock,
    pub(crate) rounds: u32,
    pub(crate) slices_per_slot: usize,
    pub(crate) slice_ms: f64,
    pub(crate) ring_bytes: u64,
    pub(crate) elapsed_s: f64,
    /// What the fields of a row mean.
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) results: Vec<Row>,
}

/// What the times were read from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Clock {
    pub(crate) name: String,
    /// What one reading takes, nanoseconds; every round trip includes one.
    pub(crate) cost_ns: f64,
}

impl Clock {
    pub(crate) fn measure() -> Clock {
        Clock { name: "CLOCK_MONOTONIC".to_owned(), cost_ns: ipcload::cost_ns() }
    }

    pub(crate) fn describe(&self) -> String {
        let Clock { name, cost_ns } = self;
        format!("times from {name}; a reading takes {cost_ns:.0} ns and is in every round trip")
    }
}

impl Document {
    pub(crate) fn new(
        environment: Environment,
        clock: Clock,
        plan: &Plan,
        ring_bytes: u64,
        elapsed_ns: u64,
        results: Vec<Row>,
    ) -> Document {
        let field = |(name, meaning): (&str, &str)| (name.to_owned(), meaning.to_owned());
        Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            environment,
            clock,
            rounds: plan.rounds,
            slices_per_slot: plan.slicing.count,
            slice_ms: plan.slicing.length_ns as f64 / 1e6,
            ring_bytes,
            elapsed_s: elapsed_ns as f64 / 1e9,
            fields: FIELDS.into_iter().map(field).collect(),
            results,
        }
    }
}
