//! Conformance tests of signals, and of the mask of the thread that receives them.

mod common;

#[path = "bodies/signals.rs"]
mod bodies;

use bodies::*;

conformance!(the_mask_is_restored_with_the_handle, a_signal_goes_to_one_of_two_channels);
