//! The load on real servers: closed loops that speak the server's own protocol, draw their requests
//! from a mix, and check every byte of every answer.

pub(crate) mod answer;
pub(crate) mod cache;
pub(crate) mod content;
pub(crate) mod draws;
pub(crate) mod http;
pub(crate) mod loops;
pub(crate) mod mix;

use crate::apps::generator::answer::{Answer, Complaint, Fed};

/// What is asked and what has to come back. Every client thread has one of its own.
pub(crate) trait Protocol {
    /// One request, from which its bytes and its answer follow.
    type Request: Copy + Default;

    /// Begins the sequence of requests anew, so that every slot sees the same one.
    fn restart(&mut self);
    /// How many requests the next connection makes; 0 for as many as there is time for.
    fn connection_requests(&mut self) -> u32;
    fn next_request(&mut self) -> Self::Request;
    /// The request's bytes, the same ones each time.
    fn render(&mut self, request: Self::Request) -> &[u8];
    /// Takes what has come of an answer, up to its end.
    fn feed(
        &self,
        answer: &mut Answer,
        request: Self::Request,
        bytes: &[u8],
    ) -> Result<Fed, Complaint>;
}
