//! A point: one combination of an experiment's axes.

use crate::engine::placement::Placement;
use crate::exchange::{Exchange, Work};

/// One combination of the axes, at which every server is measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) cores: usize,
    pub(crate) placement: Placement,
    pub(crate) connections: usize,
    /// Requests or connections per second; `None` for closed loops.
    pub(crate) rate: Option<f64>,
    pub(crate) exchange: Exchange,
    pub(crate) transactions: u32,
    pub(crate) work: Work,
}

impl Point {
    /// Returns a short text for users.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} connections", self.connections);
        if let Some(rate) = self.rate {
            text.push_str(&format!(", {rate}/s"));
        }
        if self.transactions > 0 {
            text.push_str(&format!(", {} per connection", self.transactions));
        }
        let Exchange { request_bytes, response_bytes } = self.exchange;
        text.push_str(&format!(", {request_bytes}/{response_bytes} B, {} cores", self.cores));
        if self.work != Work::None {
            text.push_str(&format!(", work {}", self.work));
        }
        text
    }
}
