//! Tests signals, and the mask of the thread that receives them.

use crate::common::{Rig, TIME_LIMIT};
use megapipe::{DriverChoice, Event, Handle, Repeat, Signals};
use std::time::{Duration, Instant};

/// Blocks or unblocks a signal in the calling thread; returns whether it was blocked.
fn change_mask(how: libc::c_int, signal: i32) -> bool {
    // SAFETY: the sets are plain data, which the calls initialise, and outlive them.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        assert_eq!(libc::sigaddset(&mut set, signal), 0);
        assert_eq!(libc::pthread_sigmask(how, &set, &mut old), 0);
        libc::sigismember(&old, signal) == 1
    }
}

fn is_blocked(signal: i32) -> bool {
    // SAFETY: the sets are plain data, which the calls initialise, and outlive them; without a new
    // mask the call only returns the old one.
    unsafe {
        let mut old: libc::sigset_t = std::mem::zeroed();
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut old), 0);
        libc::sigismember(&old, signal) == 1
    }
}

fn watched(rig: &mut Rig, signals: &[i32]) -> Handle {
    let handle = rig.join(Signals::new(signals).unwrap());
    rig.watch(handle, Repeat::UntilCancelled).unwrap();
    rig.flush().unwrap();
    handle
}

/// However a handle ends, its signals are unblocked, and only those that it blocked.
pub(crate) fn the_mask_is_restored_with_the_handle(driver: DriverChoice) {
    assert!(!change_mask(libc::SIG_BLOCK, libc::SIGHUP));
    let signals = [libc::SIGUSR1, libc::SIGHUP];
    let expect_restored = || {
        assert!(!is_blocked(libc::SIGUSR1), "blocked by the handle that has ended");
        assert!(is_blocked(libc::SIGHUP), "was blocked before");
    };
    let mut rig = Rig::new(driver);
    let closed = watched(&mut rig, &signals);
    assert!(is_blocked(libc::SIGUSR1));
    rig.close(closed).unwrap();
    assert!(matches!(rig.last(closed), Event::Close(Ok(()))));
    expect_restored();
    let aborted = watched(&mut rig, &signals);
    rig.abort(aborted).unwrap();
    assert!(matches!(rig.last(aborted), Event::Close(Ok(()))));
    expect_restored();
    let unregistered = watched(&mut rig, &signals);
    drop(rig.unregister(unregistered).unwrap());
    expect_restored();
    watched(&mut rig, &signals);
    drop(rig);
    expect_restored();
    drop(Signals::new(&signals).unwrap());
    expect_restored();
}

/// Two channels have one signal: each signal goes to one of them, and the mask is restored with the
/// last.
pub(crate) fn a_signal_goes_to_one_of_two_channels(driver: DriverChoice) {
    let mut rigs = [Rig::new(driver), Rig::other(driver)];
    for rig in &mut rigs {
        watched(rig, &[libc::SIGUSR1]);
    }
    for _ in 0..3 {
        // SAFETY: the signal is blocked, so that it does nothing but become pending.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
        let until = Instant::now() + TIME_LIMIT;
        let mut came = 0;
        while came == 0 {
            assert!(Instant::now() < until, "the signal did not arrive within {TIME_LIMIT:?}");
            for rig in &mut rigs {
                came += taken(rig);
            }
        }
        for rig in &mut rigs {
            came += taken(rig);
        }
        assert_eq!(came, 1, "one signal was told more than once");
    }
    let [first, second] = rigs;
    drop(first);
    assert!(is_blocked(libc::SIGUSR1), "the other channel needs it blocked");
    drop(second);
    assert!(!is_blocked(libc::SIGUSR1));
}

/// Returns how many signals the channel has now.
fn taken(rig: &mut Rig) -> usize {
    let Some(done) = rig.dispatch(Duration::from_millis(1)).unwrap() else { return 0 };
    assert!(matches!(done.event, Event::Signal(Ok(_))), "{:?}", done.event);
    1
}
