//! Tests of messages that are committed into another flow.

use super::*;

#[test]
fn a_message_goes_on_into_another_flow() {
    let (_keep, (from, into)) = {
        let (a, b) = open(RING);
        let (c, d) = open(Kind::Unix);
        send(&a, "pass it on");
        ((a, d), (b, c))
    };
    let message = from.read().unwrap().unwrap();
    message.commit_into(&into).unwrap();
    assert_eq!(receive(&_keep.1), "pass it on");
    into.finish().unwrap();
    send(&_keep.0, "too late");
    let message = from.read().unwrap().unwrap();
    let (error, message) = message.commit_into(&into).unwrap_err();
    assert!(matches!(error, Error::Ended), "{error}");
    assert_eq!(&*message, b"too late", "the buffer comes back");
}

/// Streams send forwarded messages without a copy, and keep what the kernel does not take.
#[test]
fn forwarded_messages_keep_their_order_and_bytes_through_full_sockets() {
    for kind in kinds() {
        let ((source, from), (into, sink)) = (open(RING), open(kind));
        let message = |number: usize| {
            let bytes = number * 7919 % (100 << 10);
            (0..bytes).map(|at| (at * 31 + number) as u8).collect::<Vec<u8>>()
        };
        let mut taken = 0;
        let mut take = |all: bool| {
            loop {
                // Sends what found no room before.
                into.flush().unwrap();
                match sink.try_read() {
                    Ok(Some(buffer)) => {
                        assert!(*buffer == *message(taken), "{kind}: message {taken} differs");
                        taken += 1;
                    }
                    Err(Error::WouldBlock) if !all || taken == 60 => return,
                    Err(Error::WouldBlock) => {}
                    other => panic!("{kind}: {other:?}"),
                }
            }
        };
        for number in 0..60 {
            let content = message(number);
            let mut buffer = source.write_timeout(content.len(), TIME_LIMIT).unwrap();
            buffer.copy_from_slice(&content);
            buffer.commit().unwrap();
            let mut buffer = from.read_timeout(TIME_LIMIT).unwrap().unwrap();
            while let Err((error, same)) = buffer.commit_into(&into) {
                assert!(matches!(error, Error::WouldBlock), "{kind}: {error}");
                buffer = same;
                take(false);
            }
        }
        take(true);
    }
}
