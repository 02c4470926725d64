//! Tests of flows in processes that may not use a call which older kernels lack.

use std::thread;
use std::time::Duration;

use fable::Flow;
use fable::flow::{FlowParts, Opening};

use super::{RING, TIME_LIMIT, parts, receive, send};

const MESSAGES: usize = 5;

fn open_alone(parts: FlowParts) -> Flow {
    Opening::start(parts).unwrap().finish().unwrap()
}

/// Old kernels and filters of system calls refuse a call that they do not know in different ways.
fn messages_wake_sleepers_without_futex_waitv(test: &str, errno: i32) {
    testkit::process::alone(test, || {
        testkit::bar_call_in_thread(libc::SYS_futex_waitv, errno);
        let [leader, follower] = parts(RING).map(|(parts, _)| parts);
        let echo = thread::spawn(move || {
            let flow = open_alone(follower);
            while let Some(message) = flow.read_timeout(TIME_LIMIT).unwrap() {
                let text = String::from_utf8(message.to_vec()).unwrap();
                drop(message);
                // The other end sleeps by now.
                thread::sleep(Duration::from_millis(5));
                send(&flow, &text);
            }
        });
        let flow = open_alone(leader);
        for number in 0..MESSAGES {
            send(&flow, &number.to_string());
            assert_eq!(receive(&flow), number.to_string());
            thread::sleep(Duration::from_millis(5));
        }
        flow.finish().unwrap();
        echo.join().unwrap();
    });
}

macro_rules! refusals {
    ($($name:ident = $errno:ident;)*) => {$(
        #[test]
        fn $name() {
            let test = concat!("sandbox::", stringify!($name));
            messages_wake_sleepers_without_futex_waitv(test, libc::$errno);
        }
    )*};
}

refusals! {
    sleepers_wake_where_the_kernel_lacks_futex_waitv = ENOSYS;
    sleepers_wake_where_futex_waitv_is_not_permitted = EPERM;
    sleepers_wake_where_futex_waitv_is_denied = EACCES;
    sleepers_wake_where_futex_waitv_is_invalid = EINVAL;
}
