//! `fable run`, seen from outside.

mod like;
mod obstacles;
mod programs;
mod support;
