//! Converts socket options from and to level, name and bytes, the format of C.

use super::errors::from;
use super::options::{OptionName, SocketOption, TcpInfo};
use super::{Context, Descriptor};
use mtcp_proto::{Congestion, State};
use std::io;
use std::time::Duration;

impl Context {
    /// Sets an option in the format of setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT` (unknown), `EINVAL` (too short, or out of range), and the errors of
    /// [`Context::set_option`].
    pub fn setsockopt(
        &mut self,
        descriptor: Descriptor,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        self.socket_of(descriptor)?;
        let option = parse(option_name(level, name)?, value)?;
        self.set_option(descriptor, option)
    }

    /// Writes an option as getsockopt(2) does, cut to the length of `value`; returns its length.
    ///
    /// # Errors
    /// `ENOPROTOOPT` (unknown), and the errors of [`Context::option`].
    pub fn getsockopt(
        &mut self,
        descriptor: Descriptor,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        self.socket_of(descriptor)?;
        let told = self.option(descriptor, option_name(level, name)?)?;
        Ok(write(&told, value))
    }
}

/// Writes an option as getsockopt(2) does, cut to the length of `value`; returns its length.
pub(crate) fn write(told: &SocketOption, value: &mut [u8]) -> usize {
    let mut put = |bytes: &[u8]| {
        let length = bytes.len().min(value.len());
        value[..length].copy_from_slice(&bytes[..length]);
        length
    };
    match told {
        SocketOption::Linger(time) => {
            let seconds = seconds_of(time.unwrap_or_default());
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&i32::from(time.is_some()).to_ne_bytes());
            bytes[4..].copy_from_slice(&seconds.to_ne_bytes());
            put(&bytes)
        }
        SocketOption::ReceiveTimeout(time) | SocketOption::SendTimeout(time) => {
            let time = time.unwrap_or_default();
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
            bytes[8..].copy_from_slice(&i64::from(time.subsec_micros()).to_ne_bytes());
            put(&bytes)
        }
        SocketOption::Congestion(kind) => {
            let mut bytes = [0; 16];
            let name = congestion_name(*kind).as_bytes();
            bytes[..name.len()].copy_from_slice(name);
            put(&bytes)
        }
        SocketOption::Info(info) => put(&tcp_info(info)),
        other => put(&number(other).to_ne_bytes()),
    }
}

/// The name of a congestion control algorithm for TCP_CONGESTION.
pub(crate) fn congestion_name(kind: Congestion) -> &'static str {
    match kind {
        Congestion::Cubic => "cubic",
        Congestion::NewReno => "reno",
    }
}

pub(crate) fn option_name(level: i32, name: i32) -> io::Result<OptionName> {
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => OptionName::Error,
        (libc::SOL_SOCKET, libc::SO_TYPE) => OptionName::Type,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => OptionName::AcceptConnections,
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => OptionName::ReuseAddress,
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => OptionName::ReusePort,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => OptionName::OutOfBandInline,
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => OptionName::KeepAlive,
        (libc::SOL_SOCKET, libc::SO_LINGER) => OptionName::Linger,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => OptionName::SendBuffer,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => OptionName::ReceiveBuffer,
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => OptionName::ReceiveLowWater,
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => OptionName::ReceiveTimeout,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => OptionName::SendTimeout,
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => OptionName::Ipv6Only,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => OptionName::NoDelay,
        (libc::IPPROTO_TCP, libc::TCP_CORK) => OptionName::Cork,
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => OptionName::QuickAck,
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => OptionName::UserTimeout,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => OptionName::KeepIdle,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => OptionName::KeepInterval,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => OptionName::KeepCount,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => OptionName::MaximumSegment,
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => OptionName::Congestion,
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => OptionName::DeferAccept,
        (libc::IPPROTO_TCP, libc::TCP_INFO) => OptionName::Info,
        _ => return Err(from(libc::ENOPROTOOPT)),
    })
}

fn field<const N: usize>(value: &[u8], at: usize) -> io::Result<[u8; N]> {
    let bytes = value.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| from(libc::EINVAL))
}

pub(crate) fn parse(name: OptionName, value: &[u8]) -> io::Result<SocketOption> {
    let integer = || field::<4>(value, 0).map(i32::from_ne_bytes);
    let on = || integer().map(|value| value != 0);
    let unsigned = || integer().and_then(|value| invalid_if_negative(i64::from(value)));
    let bytes = || unsigned().map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    let seconds = || unsigned().map(Duration::from_secs);
    Ok(match name {
        OptionName::Error | OptionName::Type | OptionName::AcceptConnections | OptionName::Info => {
            return Err(from(libc::ENOPROTOOPT));
        }
        OptionName::ReuseAddress => SocketOption::ReuseAddress(on()?),
        OptionName::ReusePort => SocketOption::ReusePort(on()?),
        OptionName::OutOfBandInline => SocketOption::OutOfBandInline(on()?),
        OptionName::KeepAlive => SocketOption::KeepAlive(on()?),
        OptionName::Linger => {
            let seconds = i32::from_ne_bytes(field(value, 4)?);
            let time = Duration::from_secs(invalid_if_negative(i64::from(seconds))?);
            SocketOption::Linger(on()?.then_some(time))
        }
        OptionName::SendBuffer => SocketOption::SendBuffer(bytes()?),
        OptionName::ReceiveBuffer => SocketOption::ReceiveBuffer(bytes()?),
        OptionName::ReceiveLowWater => SocketOption::ReceiveLowWater(bytes()?),
        OptionName::ReceiveTimeout => SocketOption::ReceiveTimeout(Some(time_of(value)?)),
        OptionName::SendTimeout => SocketOption::SendTimeout(Some(time_of(value)?)),
        OptionName::Ipv6Only => SocketOption::Ipv6Only(on()?),
        OptionName::NoDelay => SocketOption::NoDelay(on()?),
        OptionName::Cork => SocketOption::Cork(on()?),
        OptionName::QuickAck => SocketOption::QuickAck(on()?),
        OptionName::UserTimeout => {
            SocketOption::UserTimeout(Some(Duration::from_millis(unsigned()?)))
        }
        OptionName::KeepIdle => SocketOption::KeepIdle(seconds()?),
        OptionName::KeepInterval => SocketOption::KeepInterval(seconds()?),
        OptionName::KeepCount => {
            SocketOption::KeepCount(u8::try_from(integer()?).map_err(|_| from(libc::EINVAL))?)
        }
        OptionName::MaximumSegment => {
            let bytes = u16::try_from(integer()?).map_err(|_| from(libc::EINVAL))?;
            SocketOption::MaximumSegment(bytes)
        }
        OptionName::Congestion => match value.split(|byte| *byte == 0).next() {
            Some(b"cubic") => SocketOption::Congestion(Congestion::Cubic),
            Some(b"reno") => SocketOption::Congestion(Congestion::NewReno),
            // The kernel's error for an algorithm that is not loaded.
            _ => return Err(from(libc::ENOENT)),
        },
        OptionName::DeferAccept => SocketOption::DeferAccept(Some(seconds()?)),
    })
}

fn invalid_if_negative(value: i64) -> io::Result<u64> {
    u64::try_from(value).map_err(|_| from(libc::EINVAL))
}

/// Parses a `struct timeval`.
fn time_of(value: &[u8]) -> io::Result<Duration> {
    let seconds = i64::from_ne_bytes(field(value, 0)?);
    let microseconds = i64::from_ne_bytes(field(value, 8)?);
    if !(0..1_000_000).contains(&microseconds) {
        return Err(from(libc::EDOM));
    }
    let microseconds = invalid_if_negative(microseconds)?;
    Ok(Duration::from_secs(invalid_if_negative(seconds)?) + Duration::from_micros(microseconds))
}

fn seconds_of(time: Duration) -> i32 {
    let up = u64::from(time.subsec_nanos() > 0);
    i32::try_from(time.as_secs() + up).unwrap_or(i32::MAX)
}

fn number(option: &SocketOption) -> i32 {
    let cut = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    match option {
        SocketOption::Error(value) | SocketOption::Type(value) => *value,
        SocketOption::AcceptConnections(on)
        | SocketOption::ReuseAddress(on)
        | SocketOption::ReusePort(on)
        | SocketOption::OutOfBandInline(on)
        | SocketOption::Cork(on)
        | SocketOption::KeepAlive(on)
        | SocketOption::Ipv6Only(on)
        | SocketOption::NoDelay(on)
        | SocketOption::QuickAck(on) => i32::from(*on),
        SocketOption::SendBuffer(bytes)
        | SocketOption::ReceiveBuffer(bytes)
        | SocketOption::ReceiveLowWater(bytes) => cut(*bytes),
        SocketOption::UserTimeout(time) => {
            i32::try_from(time.unwrap_or_default().as_millis()).unwrap_or(i32::MAX)
        }
        SocketOption::KeepIdle(time) | SocketOption::KeepInterval(time) => seconds_of(*time),
        SocketOption::KeepCount(probes) => i32::from(*probes),
        SocketOption::MaximumSegment(bytes) => i32::from(*bytes),
        SocketOption::DeferAccept(time) => seconds_of(time.unwrap_or_default()),
        // Options that are not numbers; the caller writes them.
        SocketOption::Linger(_)
        | SocketOption::ReceiveTimeout(_)
        | SocketOption::SendTimeout(_)
        | SocketOption::Congestion(_)
        | SocketOption::Info(_) => 0,
    }
}

/// The number of a state in the kernel's `tcp_info` (include/net/tcp_states.h).
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        // A connection in TIME_WAIT has no socket in the kernel.
        State::TimeWait | State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// The first 136 bytes of `struct tcp_info` (linux/tcp.h); values that this stack does not count
/// are zero.
fn tcp_info(info: &TcpInfo) -> [u8; 136] {
    let connection = &info.connection;
    let microseconds = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let segment = u32::from(connection.maximum_segment).max(1);
    let mut bytes = [0; 136];
    bytes[0] = match connection.remote {
        Some(_) => state_number(connection.state),
        None => 10,
    };
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(8, microseconds(connection.retransmission_timeout));
    put(16, segment);
    // For a listener, the number of connections that wait to be accepted.
    put(
        24,
        match connection.remote {
            Some(_) => connection.send_queue.div_ceil(segment),
            None => connection.receive_queue,
        },
    );
    put(68, microseconds(connection.round_trip.unwrap_or_default()));
    put(76, connection.slow_start_threshold.div_ceil(segment));
    put(80, connection.congestion_window.div_ceil(segment));
    put(84, segment);
    put(96, connection.receive_window);
    put(100, connection.retransmissions);
    bytes[120..128].copy_from_slice(&connection.bytes_acknowledged.to_ne_bytes());
    bytes[128..136].copy_from_slice(&connection.bytes_received.to_ne_bytes());
    bytes
}
