//! Random sequences of requests on connected pairs, against a model of what must come of them.

mod common;

#[path = "bodies/model.rs"]
mod bodies;

use bodies::*;

conformance!(sequences_of_requests, sequences_with_few_resources);
