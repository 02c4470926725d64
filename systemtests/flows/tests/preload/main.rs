//! Tests of `fable run`.

mod attacks;
mod like;
mod obstacles;
mod programs;
mod support;
