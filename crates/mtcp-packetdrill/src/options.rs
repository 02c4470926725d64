//! Sets and reads socket options (socket(7), tcp(7)).

use mtcp_proto::{Congestion, Keepalive, Options};
use std::time::Duration;

/// The kernel's default for keepalive.
const KEEPALIVE: Keepalive =
    Keepalive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 };

/// Changes the options of a connection.
///
/// # Errors
/// `EINVAL` if the value is too short, `ENOPROTOOPT` if this stack has no such option, `ENOENT` if
/// there is no such congestion control.
pub(crate) fn set(options: &mut Options, level: i32, name: i32, value: &[u8]) -> Result<(), i32> {
    if (level, name) == (libc::SOL_TCP, libc::TCP_CONGESTION) {
        let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
        options.congestion = match text {
            b"cubic" => Congestion::Cubic,
            b"reno" => Congestion::NewReno,
            _ => return Err(libc::ENOENT),
        };
        return Ok(());
    }
    let number = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
    let number = number.ok_or(libc::EINVAL)?;
    let on = number != 0;
    let positive = u32::try_from(number).map_err(|_| libc::EINVAL);
    let keepalive = |options: &mut Options| options.keepalive.unwrap_or(KEEPALIVE);
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => {}
        // The kernel doubles the requested size, and uses half of it for its own records.
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.send_buffer_bytes = buffer(positive?),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => options.receive_buffer_bytes = buffer(positive?),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => options.receive_low_water_bytes = positive?.max(1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            options.keepalive = on.then(|| keepalive(options));
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let seconds = value.get(4..8).ok_or(libc::EINVAL)?;
            options.linger_reset = on && seconds.iter().all(|byte| *byte == 0);
        }
        (libc::SOL_TCP, libc::TCP_NODELAY) => options.no_delay = on,
        (libc::SOL_TCP, libc::TCP_QUICKACK) => options.quick_ack = on,
        (libc::SOL_TCP, libc::TCP_MAXSEG) => {
            let bytes = u16::try_from(number).map_err(|_| libc::EINVAL)?;
            options.maximum_segment = Some(bytes);
        }
        (libc::SOL_TCP, libc::TCP_USER_TIMEOUT) => {
            options.user_timeout = on.then(|| Duration::from_millis(positive.unwrap_or(0).into()));
        }
        (libc::SOL_TCP, libc::TCP_KEEPIDLE) => {
            let idle = Duration::from_secs(positive?.into());
            options.keepalive = Some(Keepalive { idle, ..keepalive(options) });
        }
        (libc::SOL_TCP, libc::TCP_KEEPINTVL) => {
            let interval = Duration::from_secs(positive?.into());
            options.keepalive = Some(Keepalive { interval, ..keepalive(options) });
        }
        (libc::SOL_TCP, libc::TCP_KEEPCNT) => {
            let probes = u8::try_from(number).map_err(|_| libc::EINVAL)?;
            options.keepalive = Some(Keepalive { probes, ..keepalive(options) });
        }
        _ => return Err(libc::ENOPROTOOPT),
    }
    Ok(())
}

/// Reads an option.
///
/// # Errors
/// `ENOPROTOOPT` if this stack has no such option.
pub(crate) fn get(options: &Options, level: i32, name: i32) -> Result<Vec<u8>, i32> {
    let number = |value: u32| value.to_ne_bytes().to_vec();
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(options.send_buffer_bytes),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(options.receive_buffer_bytes),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => number(options.receive_low_water_bytes),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => number(options.keepalive.is_some().into()),
        (libc::SOL_TCP, libc::TCP_NODELAY) => number(options.no_delay.into()),
        (libc::SOL_TCP, libc::TCP_QUICKACK) => number(options.quick_ack.into()),
        (libc::SOL_TCP, libc::TCP_MAXSEG) => number(options.maximum_segment.unwrap_or(0).into()),
        (libc::SOL_TCP, libc::TCP_CONGESTION) => match options.congestion {
            Congestion::Cubic => b"cubic\0".to_vec(),
            Congestion::NewReno => b"reno\0".to_vec(),
        },
        _ => return Err(libc::ENOPROTOOPT),
    })
}

fn buffer(bytes: u32) -> u32 {
    const LEAST: u32 = 4 << 10;
    const MOST: u32 = 64 << 20;
    bytes.clamp(LEAST, MOST)
}
