//! Tests two connections joined by a line in virtual time, and single ones with handwritten
//! segments.

mod acknowledging;
mod by_hand;
mod closing;
mod defence;
mod harness;
mod life;
mod prediction;
mod random;
mod recovery;
mod transfer;
mod urgent;
mod windows;
