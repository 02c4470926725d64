//! Tests that writes of borrowed bytes, which are gathered until the end of a task's poll, leave in
//! order and together.

use crate::common::{TIME_LIMIT, builder, on_thread, runtime, within};
use megapipe::{Config, DriverChoice};
use megapipe_rt::{Handle, Message, Runtime, UnixStream, metrics, sleep, yield_now};
use proptest::prelude::*;
use std::io::{self, Read};
use std::os::unix::net as std_unix;
use std::time::Duration;

on_both_drivers!(
    what_one_poll_writes_is_one_request,
    mixtures_of_writes_keep_their_order,
    mixtures_wait_for_a_full_channel,
);

/// Makes a stream of the runtime, and its peer.
fn pair() -> (UnixStream, std_unix::UnixStream) {
    let (near, far) = std_unix::UnixStream::pair().unwrap();
    far.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    (UnixStream::from_std(near).unwrap(), far)
}

fn what_one_poll_writes_is_one_request(driver: DriverChoice) {
    const WRITES: usize = 10;
    within(&runtime(driver, 1), async {
        let (mut stream, mut peer) = pair();
        let requests = async || metrics::read(&Handle::current()).await[0].channel.requests;
        let before = requests().await;
        for _ in 0..WRITES {
            assert_eq!(stream.write_slice(&[7; 1000]).await.unwrap(), 1000);
        }
        assert_eq!(stream.queued_bytes(), WRITES * 1000);
        stream.flush().await.unwrap();
        assert_eq!(requests().await - before, 1);
        let mut all = vec![0; WRITES * 1000];
        peer.read_exact(&mut all).unwrap();
        assert!(all == vec![7; WRITES * 1000]);
    });
}

/// What a task does with its stream.
#[derive(Clone, Debug)]
enum Step {
    /// Writes so many borrowed bytes, in pieces that the stream chooses.
    Borrowed(usize),
    Owned(usize),
    Message(usize),
    Flush,
    Yield,
    Sleep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || prop_oneof![1..3000_usize, 60_000..70_000_usize, Just(200_000)];
    let step = prop_oneof![
        6 => bytes().prop_map(Step::Borrowed),
        3 => bytes().prop_map(Step::Owned),
        1 => (1..3000_usize).prop_map(Step::Message),
        1 => Just(Step::Flush),
        1 => Just(Step::Yield),
        1 => Just(Step::Sleep),
    ];
    prop::collection::vec(step, 1..30)
}

async fn perform(stream: &mut UnixStream, steps: &[Step]) -> io::Result<Vec<u8>> {
    let mut written = Vec::new();
    for step in steps {
        match *step {
            Step::Borrowed(bytes) => {
                let all = next(&mut written, bytes);
                let mut rest = &all[..];
                while !rest.is_empty() {
                    let count = stream.write_slice(rest).await?;
                    rest = &rest[count..];
                }
            }
            Step::Owned(bytes) => stream.write(next(&mut written, bytes)).await?,
            Step::Message(bytes) => {
                stream.send_message(Message::new(next(&mut written, bytes))).await?;
            }
            Step::Flush => stream.flush().await?,
            Step::Yield => yield_now().await,
            Step::Sleep => sleep(Duration::from_micros(100)).await,
        }
    }
    Ok(written)
}

/// Returns the next bytes of the stream, which tell their place.
fn next(written: &mut Vec<u8>, bytes: usize) -> Vec<u8> {
    let first = written.len();
    written.extend((first..first + bytes).map(|place| (place / 3) as u8));
    written[first..].to_vec()
}

/// Performs random steps and compares what the peer reads.
fn check(runtime: &Runtime, shut_down: impl Strategy<Value = bool>) {
    let config = ProptestConfig { cases: 60, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps(), shut_down in shut_down)| {
        let (written, read) = within(runtime, async {
            let (mut stream, mut peer) = pair();
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                peer.read_to_end(&mut all).map(|_| all)
            });
            let written = perform(&mut stream, &steps).await.unwrap();
            if shut_down {
                stream.shutdown().await.unwrap();
            }
            drop(stream);
            (written, on_thread(move || reader.join().unwrap()).await.unwrap())
        });
        prop_assert!(read == written, "{} of {} bytes", read.len(), written.len());
    });
}

fn mixtures_of_writes_keep_their_order(driver: DriverChoice) {
    check(&runtime(driver, 1), any::<bool>());
}

/// A stream that is dropped while the channel is full is reset, so every stream is shut down.
fn mixtures_wait_for_a_full_channel(driver: DriverChoice) {
    let config = Config { driver, max_requests: 2, ..Config::default() };
    check(&builder(driver, 1).channel_config(config).build().unwrap(), Just(true));
}
