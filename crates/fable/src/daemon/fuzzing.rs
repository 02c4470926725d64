//! Checks properties of the parser of the daemon's packets that hold for all bytes; a fuzz target
//! calls it.

use std::fs::File;
use std::os::fd::OwnedFd;

use super::message::{answered, parse};
use crate::packet::Packet;
use crate::protocol::{DESCRIPTORS_MAX, ToDaemon, ToProcess};

/// Parses the bytes behind the first one as a packet of the daemon, and as one of a process. The
/// first byte has the number of descriptors, and whether some were lost.
///
/// # Panics
/// If a property does not hold.
pub fn packets(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let (count, has_lost_descriptors) = (usize::from(choice & 0xf), choice & 0x10 != 0);
    let null = || OwnedFd::from(File::open("/dev/null").expect("/dev/null can be opened"));
    let descriptors: Vec<_> = (0..count.min(DESCRIPTORS_MAX)).map(|_| null()).collect();
    let held = descriptors.len();
    if let Ok(message) = parse(Packet { bytes: bytes.to_vec(), descriptors, has_lost_descriptors })
    {
        assert_eq!(message.descriptors.len(), held);
        let written = serde_json::to_value(&message.body).expect("a message can be written");
        let again = serde_json::from_value::<ToProcess>(written.clone()).expect("and parsed");
        assert_eq!(serde_json::to_value(&again).expect("and written again"), written);
        assert_eq!(answered(&message.body), answered(&again));
    }
    if let Ok(message) = serde_json::from_slice::<ToDaemon>(bytes) {
        let written = serde_json::to_value(&message).expect("a message can be written");
        let again = serde_json::from_value::<ToDaemon>(written.clone()).expect("and parsed");
        assert_eq!(serde_json::to_value(&again).expect("and written again"), written);
    }
}
