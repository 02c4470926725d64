//! `fable run`, seen from outside.

mod obstacles;
mod programs;
mod servers;
mod support;
