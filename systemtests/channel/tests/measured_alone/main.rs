//! Tests of the channel that measure time, or whose peers must not be late.

#[path = "../../../../crates/megapipe/tests/common/mod.rs"]
mod common;
#[path = "../../../../crates/megapipe/tests/bodies/pauses.rs"]
mod pauses;

mod scale;

conformance! {
    pauses:
        a_peer_that_pauses_while_it_reads_gets_the_whole_file,
        a_peer_that_pauses_while_it_sends_gets_all;
    scale:
        ending_a_connection_costs_the_same_among_many;
}
