//! Combines a timer and signals: counts ticks until Ctrl-C or the given number.
//!
//! `cargo run -p megapipe --example ticks [TICKS]`

use megapipe::{Channel, Event, Repeat, Signals, Timer};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let last: u64 = std::env::args().nth(1).map_or(Ok(u64::MAX), |ticks| ticks.parse())?;
    let mut channel = Channel::new()?;
    let signals = channel.register(Signals::new(&[libc::SIGINT, libc::SIGTERM])?, ())?;
    let timer = channel.register(Timer::every(Duration::from_millis(100))?, ())?;
    channel.watch(signals, Repeat::UntilCancelled)?;
    channel.watch(timer, Repeat::UntilCancelled)?;
    let mut ticks = 0;
    while ticks < last {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::Timer(expirations) => {
                ticks += expirations?;
                println!("tick {ticks}");
            }
            Event::Signal(signal) => {
                println!("ended by signal {}", signal?.signal);
                break;
            }
            _ => {}
        }
    }
    Ok(())
}
