//! Tests requests that are cancelled before they begin.

use crate::common::{Rig, outcome, set_time_limit};
use megapipe::{DriverChoice, Event};
use std::io::Read;
use std::net::Shutdown;

/// A disconnect that waits behind a write and is cancelled with it does not end the connection.
pub(crate) fn a_cancelled_disconnect_does_nothing(driver: DriverChoice) {
    const LONG: usize = 1 << 24;
    let mut rig = Rig::new(driver);
    let (mut peer, handle) = rig.tcp_pair();
    set_time_limit(&peer);
    rig.write(handle, vec![1; LONG]).unwrap();
    rig.disconnect(handle, Shutdown::Write).unwrap();
    rig.flush().unwrap();
    rig.cancel(handle).unwrap();
    let mut sent = 0;
    for _ in 0..2 {
        match rig.last(handle) {
            Event::Write(Ok(bytes), _) => sent = bytes,
            other => assert_eq!(outcome(&other), Err(libc::ECANCELED)),
        }
    }
    assert!(sent < LONG);
    let reader = std::thread::spawn(move || {
        let mut found = vec![0; sent + 4];
        peer.read_exact(&mut found).map(|()| found)
    });
    rig.write(handle, b"more").unwrap();
    assert_eq!(outcome(&rig.last(handle)), Ok(4), "the connection is shut down");
    assert!(reader.join().unwrap().unwrap().ends_with(b"more"));
}
