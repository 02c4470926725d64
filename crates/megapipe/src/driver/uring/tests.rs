//! Tests shutting down, and the length of a batching wait.

use super::*;
use crate::source::Source;
use std::os::unix::net::UnixStream;

#[test]
fn what_can_be_cancelled_is_cancelled_however_late_it_is() {
    let config = Config::default();
    let mut driver = UringDriver::new(&config, Pools::new(&config).unwrap()).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let source = Source::from(theirs);
    let kind = source.kind().unwrap();
    let object = driver.attach(source.endpoint, kind).unwrap();
    for tag in 0..3 {
        let receive = Operation::Receive { large: false, repeat: false };
        driver.submit(tag, object, receive).unwrap();
    }
    assert!(driver.shut_down(Duration::ZERO));
    drop(driver.detach(object, &[]));
}

/// A busy channel does not linger longer than its caller wants to wait.
#[test]
fn lingering_ends_with_the_time_of_the_call() {
    let config = Config { linger: Duration::from_millis(100), ..Config::default() };
    let mut driver = UringDriver::new(&config, Pools::new(&config).unwrap()).unwrap();
    if !driver.ring.can_linger() {
        assert_eq!(driver.linger.bound_us(), 0, "Linux 6.12 lingers");
        return;
    }
    // A thread that uses all of its CPU, with many operations in flight.
    let mut now_ns = 0;
    for total in 0..10_000 {
        now_ns += 1_000_000;
        driver.linger.learn(total, 1000, |_| now_ns);
        if driver.linger.want() > 1 {
            break;
        }
    }
    let lingers = |driver: &mut UringDriver, left| {
        let limits = driver.wait_limits(left);
        assert!(limits.want > 1, "it does not linger: {limits:?}");
        limits.linger_us
    };
    assert_eq!(lingers(&mut driver, None), 100_000);
    assert_eq!(lingers(&mut driver, Some(Duration::from_secs(1))), 100_000);
    assert_eq!(lingers(&mut driver, Some(Duration::from_millis(5))), 5000);
    assert_eq!(lingers(&mut driver, Some(Duration::from_nanos(1))), 1);
    assert_eq!(driver.wait_limits(Some(Duration::ZERO)).want, 0);
}
