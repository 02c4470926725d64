//! Keys of the two ends of a flow, in place of those from daemons.

use fable::transport::TlsKeys;

/// Makes the keys of a leader and of its follower; those of different numbers do not fit.
pub(crate) fn keys_of(number: u8) -> [TlsKeys; 2] {
    let (leader, follower) = ([number; 32], [!number; 32]);
    [(leader, follower), (follower, leader)]
        .map(|(own, peer)| TlsKeys::new(own, &peer).expect("any 32 bytes are a key"))
}
