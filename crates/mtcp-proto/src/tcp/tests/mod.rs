//! Two connections joined by a line in virtual time, and single ones driven by handwritten
//! segments.

mod by_hand;
mod defence;
mod harness;
mod life;
mod random;
mod transfer;
mod windows;
