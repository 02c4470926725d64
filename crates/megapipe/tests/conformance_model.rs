//! Conformance test of random sequences of requests on connected pairs, compared with a model.

mod common;

#[path = "bodies/model.rs"]
mod bodies;

use bodies::*;

conformance!(sequences_of_requests, sequences_with_few_resources);
