//! Scenarios of timers, wake-ups and signals.

use crate::stage::{Stage, errno_of};
use megapipe::{Channel, Event, Repeat, Signals, Timer, wake_pair};
use std::time::Duration;

pub(crate) fn sources(stage: &mut Stage) {
    let timer = stage.join(|| Timer::after(Duration::from_millis(1)).expect("a timer"));
    let event = stage.ask("watch", timer, |channel| channel.watch(timer, Repeat::Once));
    assert!(matches!(event, Event::Timer(Ok(1))), "{event:?}");
    let ticks = stage.join(|| Timer::every(Duration::from_millis(1)).expect("a timer"));
    repeat(stage, ticks, 3, || {}, |event| matches!(event, Event::Timer(Ok(1..))));
    stage.cancel(ticks);

    let mut waker = None;
    let wake = stage.join(|| {
        let (ours, source) = wake_pair().expect("a pair");
        waker = Some(ours);
        source
    });
    let waker = waker.expect("a waker");
    repeat(stage, wake, 3, || waker.wake(), |event| matches!(event, Event::Wake(Ok(1))));
    stage.cancel(wake);

    let signals = stage.join(|| Signals::new(&[libc::SIGUSR1]).expect("signals"));
    // SAFETY: the signal is blocked by `Signals::new`.
    let raise = || assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
    let is_it = |event: &Event| matches!(event, Event::Signal(Ok(info)) if info.signal == 10);
    repeat(stage, signals, 2, raise, is_it);
    stage.cancel(signals);
    for handle in [timer, ticks, wake, signals] {
        stage.close(handle);
    }
}

/// Checks that a watch completes that many times, each time after `cause`.
fn repeat(
    stage: &mut Stage,
    handle: megapipe::Handle,
    count: u32,
    cause: impl Fn(),
    is_expected: impl Fn(&Event) -> bool,
) {
    let file = |channel: &mut Channel<u64>| channel.watch(handle, Repeat::UntilCancelled);
    stage.call("watch", file);
    stage.note_repeating(handle);
    for _ in 0..count {
        cause();
        loop {
            let done = stage.next_for(handle);
            if is_expected(&done.event) {
                assert!(done.more, "the watch ends after {:?}", done.event);
                break;
            }
            stage.excuse("watch", errno_of(&done.event).expect("an error"));
            assert!(!done.more);
            stage.call("watch", file);
        }
    }
}
