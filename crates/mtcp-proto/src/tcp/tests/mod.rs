//! Two connections joined by a line in virtual time, and single ones driven by handwritten
//! segments.

mod harness;
mod life;
mod transfer;
