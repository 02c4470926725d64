//! Handles: cookies, kinds, limits, and which calls are refused.

mod common;

#[path = "bodies/handles.rs"]
mod bodies;

use bodies::*;
use common::{Rig, accepted, client, listener, unix_pair};
use megapipe::{Accept, Config, DriverChoice, Error, Source};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

conformance!(
    the_report_names_the_driver,
    settings_out_of_range_are_refused,
    cookies_are_kept,
    stale_handles_are_refused,
    handles_of_other_channels_are_refused,
    requests_suit_the_kind,
    a_refused_request_gives_its_buffer_back,
    the_limit_on_handles,
    the_limit_on_requests,
    an_accept_at_the_limit_on_requests,
    what_cannot_be_registered_comes_back,
);

fn what_cannot_be_registered_comes_back(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_handles: 2, ..Config::default() });
    // The driver cannot make it non-blocking.
    let null = std::fs::File::options().read(true).custom_flags(libc::O_PATH).open("/dev/null");
    let null = null.unwrap();
    let number = null.as_raw_fd();
    let rejected = rig.register_or_return(null, 0).unwrap_err();
    assert!(matches!(rejected.error, Error::System { call: "attach", .. }), "{rejected}");
    let back = rejected.buffer.and_then(|source| source.into_descriptor().ok()).unwrap();
    assert_eq!(back.as_raw_fd(), number);

    let (listening, address) = listener();
    let listening = rig.join(listening);
    let other = rig.join(unix_pair().0);
    rig.accept(listening, Accept::lightweight().count(1)).unwrap();
    let _client = client(address);
    let socket = accepted(rig.last(listening)).socket;
    let rejected = rig.register_or_return(socket, 0).unwrap_err();
    assert!(matches!(rejected.error, Error::TooManyHandles { limit: 2 }), "{rejected}");
    let socket: Source = rejected.buffer.unwrap().into_descriptor().unwrap_err();
    drop(rig.unregister(other).unwrap());
    rig.register_or_return(socket, 0).unwrap();
}
