//! Implements socket options in the format of setsockopt(2) and getsockopt(2), from one table. See
//! socket(7) and tcp(7).

use super::errors::{errno, failure, from};
use super::settings::Extras;
use super::{Context, Descriptor, Phase, tcp_info};
use libc::{IPPROTO_IPV6 as IPV6, IPPROTO_TCP as TCP, SOL_SOCKET as SOCKET};
use mtcp_proto::{Congestion, ConnectionInfo};
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The range of a buffer's size, in bytes.
const BUFFER_BYTES: RangeInclusive<u32> = 4 << 10..=64 << 20;
/// The range of TCP_MAXSEG; the minimum is the kernel's.
const SEGMENT_BYTES: RangeInclusive<u16> = 88..=32_767;
/// The range of TCP_KEEPIDLE and TCP_KEEPINTVL, in seconds.
const PROBE_SECONDS: RangeInclusive<i32> = 1..=32_767;
/// The value of TCP_MAXSEG before the connection is established (RFC 9293, section 3.7.1).
const DEFAULT_SEGMENT: u16 = 536;

/// The names of the algorithms for TCP_CONGESTION.
const CONGESTION: [(&str, Congestion); 2] =
    [("cubic", Congestion::Cubic), ("reno", Congestion::NewReno)];

/// An option that can be set, or whose value never changes.
pub(crate) struct SocketOption {
    level: i32,
    name: i32,
    access: Access,
    copied: bool,
}

/// How an option is read and set, and its type in C.
enum Access {
    /// An `int` that is 0 or 1.
    Flag(fn(&mut Extras) -> &mut bool),
    /// Another `int`.
    Number(fn(&Extras) -> i32, fn(&mut Extras, i32) -> io::Result<()>),
    /// A `struct timeval`; zero is none.
    Time(fn(&mut Extras) -> &mut Option<Duration>),
    /// The `struct linger` of SO_LINGER.
    Linger,
    /// The name of an algorithm.
    Congestion,
    /// An `int` that cannot be set.
    Fixed(i32),
}

static OPTIONS: [SocketOption; 23] = [
    option(SOCKET, libc::SO_TYPE, Access::Fixed(libc::SOCK_STREAM)).not_copied(),
    option(SOCKET, libc::SO_ACCEPTCONN, Access::Fixed(0)).not_copied(),
    flag(SOCKET, libc::SO_REUSEADDR, |at| &mut at.reuse_address),
    flag(SOCKET, libc::SO_REUSEPORT, |at| &mut at.reuse_port),
    flag(SOCKET, libc::SO_OOBINLINE, |at| &mut at.urgent_inline),
    flag(IPV6, libc::IPV6_V6ONLY, |at| &mut at.ipv6_only),
    flag(TCP, libc::TCP_NODELAY, |at| &mut at.options.no_delay),
    flag(TCP, libc::TCP_CORK, |at| &mut at.options.cork),
    flag(TCP, libc::TCP_QUICKACK, |at| &mut at.options.quick_ack).not_copied(),
    option(SOCKET, libc::SO_LINGER, Access::Linger),
    option(SOCKET, libc::SO_RCVTIMEO, Access::Time(|at| &mut at.receive_timeout)),
    option(SOCKET, libc::SO_SNDTIMEO, Access::Time(|at| &mut at.send_timeout)),
    option(TCP, libc::TCP_CONGESTION, Access::Congestion).not_copied(),
    number(
        SOCKET,
        libc::SO_KEEPALIVE,
        |at| i32::from(at.options.keepalive.is_some()),
        |at, on| {
            at.options.keepalive = (on != 0).then_some(at.keepalive);
            Ok(())
        },
    ),
    number(
        TCP,
        libc::TCP_KEEPIDLE,
        |at| seconds_of(at.keepalive.idle),
        |at, seconds| probe_time(seconds).map(|time| at.keepalive.idle = time),
    ),
    number(
        TCP,
        libc::TCP_KEEPINTVL,
        |at| seconds_of(at.keepalive.interval),
        |at, seconds| probe_time(seconds).map(|time| at.keepalive.interval = time),
    ),
    number(
        TCP,
        libc::TCP_KEEPCNT,
        |at| i32::from(at.keepalive.probes),
        |at, probes| {
            let probes = u8::try_from(probes).ok().filter(|probes| (1..=127).contains(probes));
            at.keepalive.probes = probes.ok_or_else(invalid)?;
            Ok(())
        },
    ),
    // Unlike the kernel's, sizes of buffers are not doubled, because only data counts.
    number(
        SOCKET,
        libc::SO_SNDBUF,
        |at| saturated(at.options.send_buffer_bytes),
        |at, bytes| buffer(bytes).map(|bytes| at.options.send_buffer_bytes = bytes),
    )
    .not_copied(),
    number(
        SOCKET,
        libc::SO_RCVBUF,
        |at| saturated(at.options.receive_buffer_bytes),
        |at, bytes| buffer(bytes).map(|bytes| at.options.receive_buffer_bytes = bytes),
    )
    .not_copied(),
    number(
        SOCKET,
        libc::SO_RCVLOWAT,
        |at| saturated(at.options.receive_low_water_bytes),
        |at, bytes| {
            let bytes = unsigned(bytes)?.clamp(1, at.options.receive_buffer_bytes);
            at.options.receive_low_water_bytes = bytes;
            Ok(())
        },
    ),
    number(
        TCP,
        libc::TCP_USER_TIMEOUT,
        |at| saturated(at.options.user_timeout.unwrap_or_default().as_millis()),
        |at, milliseconds| {
            let time = Duration::from_millis(unsigned(milliseconds)?.into());
            at.options.user_timeout = nonzero(time);
            Ok(())
        },
    ),
    number(
        TCP,
        libc::TCP_MAXSEG,
        |at| at.options.maximum_segment.unwrap_or(DEFAULT_SEGMENT).into(),
        |at, bytes| {
            let bytes = u16::try_from(bytes).map_err(|_| invalid())?;
            if bytes != 0 && !SEGMENT_BYTES.contains(&bytes) {
                return Err(invalid());
            }
            at.options.maximum_segment = Some(bytes).filter(|bytes| *bytes != 0);
            Ok(())
        },
    )
    .not_copied(),
    number(
        TCP,
        libc::TCP_DEFER_ACCEPT,
        |at| seconds_of(at.defer_accept.unwrap_or_default()),
        |at, seconds| {
            at.defer_accept = nonzero(Duration::from_secs(unsigned(seconds)?.into()));
            Ok(())
        },
    ),
];

const fn option(level: i32, name: i32, access: Access) -> SocketOption {
    SocketOption { level, name, access, copied: true }
}

const fn flag(level: i32, name: i32, place: fn(&mut Extras) -> &mut bool) -> SocketOption {
    option(level, name, Access::Flag(place))
}

const fn number(
    level: i32,
    name: i32,
    get: fn(&Extras) -> i32,
    set: fn(&mut Extras, i32) -> io::Result<()>,
) -> SocketOption {
    option(level, name, Access::Number(get, set))
}

/// Level and name of the options that a socket of the stack can take over from a kernel socket as
/// getsockopt(2) returns them.
pub fn copied_options() -> impl Iterator<Item = (i32, i32)> {
    OPTIONS.iter().filter(|option| option.copied).map(|option| (option.level, option.name))
}

impl SocketOption {
    /// # Errors
    /// `ENOPROTOOPT` if the stack has no such option.
    pub(crate) fn find(level: i32, name: i32) -> io::Result<&'static SocketOption> {
        let found = OPTIONS.iter().find(|option| (option.level, option.name) == (level, name));
        found.ok_or_else(|| from(libc::ENOPROTOOPT))
    }

    const fn not_copied(mut self) -> SocketOption {
        self.copied = false;
        self
    }

    /// Sets the option in these settings. If it fails, they are unchanged.
    pub(crate) fn set(&self, settings: &mut Extras, value: &[u8]) -> io::Result<()> {
        match self.access {
            Access::Flag(place) => *place(settings) = integer(value, 0)? != 0,
            Access::Number(_, set) => set(settings, integer(value, 0)?)?,
            Access::Time(place) => *place(settings) = nonzero(time_of(value)?),
            Access::Linger => {
                let time = Duration::from_secs(unsigned(integer(value, 4)?)?.into());
                let time = (integer(value, 0)? != 0).then_some(time);
                settings.linger = time;
                settings.options.linger_reset = time == Some(Duration::ZERO);
            }
            Access::Congestion => {
                let wanted = value.split(|byte| *byte == 0).next();
                let found = CONGESTION.iter().find(|(name, _)| Some(name.as_bytes()) == wanted);
                // The kernel's error for an algorithm that is not loaded.
                settings.options.congestion = found.ok_or_else(|| from(libc::ENOENT))?.1;
            }
            Access::Fixed(_) => return Err(from(libc::ENOPROTOOPT)),
        }
        if settings.options.keepalive.is_some() {
            settings.options.keepalive = Some(settings.keepalive);
        }
        Ok(())
    }

    /// Writes the option as getsockopt(2) does, cut to the length of `value`; returns its length.
    pub(crate) fn get(&self, settings: &mut Extras, value: &mut [u8]) -> usize {
        let options = &settings.options;
        match self.access {
            Access::Flag(place) => put_number(i32::from(*place(settings)), value),
            Access::Number(get, _) => put_number(get(settings), value),
            Access::Fixed(number) => put_number(number, value),
            Access::Time(place) => {
                let time = place(settings).unwrap_or_default();
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&time.as_secs().to_ne_bytes());
                bytes[8..].copy_from_slice(&i64::from(time.subsec_micros()).to_ne_bytes());
                put(&bytes, value)
            }
            Access::Linger => {
                let time =
                    if options.linger_reset { Some(Duration::ZERO) } else { settings.linger };
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&i32::from(time.is_some()).to_ne_bytes());
                let seconds = seconds_of(time.unwrap_or_default());
                bytes[4..].copy_from_slice(&seconds.to_ne_bytes());
                put(&bytes, value)
            }
            Access::Congestion => {
                let found = CONGESTION.iter().find(|(_, kind)| *kind == options.congestion);
                let name = found.map_or("", |(name, _)| name).as_bytes();
                let mut bytes = [0; 16];
                bytes[..name.len()].copy_from_slice(name);
                put(&bytes, value)
            }
        }
    }
}

impl Context {
    /// Sets an option as setsockopt(2) does. At `SOL_SOCKET`: `SO_REUSEADDR`, `SO_REUSEPORT`,
    /// `SO_OOBINLINE`, `SO_KEEPALIVE`, `SO_LINGER`, `SO_SNDBUF`, `SO_RCVBUF` (4 KiB to 64 MiB, not
    /// doubled), `SO_RCVLOWAT`, `SO_RCVTIMEO` and `SO_SNDTIMEO`. At `IPPROTO_IPV6`: `IPV6_V6ONLY`,
    /// before listening. At `IPPROTO_TCP`: `TCP_NODELAY`, `TCP_CORK`, `TCP_QUICKACK` (which stays
    /// set), `TCP_USER_TIMEOUT`, `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`, `TCP_MAXSEG`
    /// (before connecting), `TCP_CONGESTION` ("cubic" or "reno") and `TCP_DEFER_ACCEPT`.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `ENOPROTOOPT` (unknown or read-only), `EINVAL` (too short, or out of
    /// range), `EDOM` (microseconds), `ENOENT` (algorithm).
    pub fn setsockopt(
        &mut self,
        descriptor: Descriptor,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> io::Result<()> {
        let id = self.socket_of(descriptor)?.id;
        let option = SocketOption::find(level, name)?;
        let live = id.and_then(|id| self.port.options(id).ok());
        let settings = self.extras(descriptor)?;
        settings.options = live.unwrap_or(settings.options);
        let before = settings.options;
        option.set(settings, value)?;
        let after = settings.options;
        match id {
            Some(id) if after != before => {
                self.port.set_options(id, &after).map_err(failure)?;
                self.spend(1)
            }
            _ => Ok(()),
        }
    }

    /// Writes an option as getsockopt(2) does, cut to the length of `value`; returns its length.
    /// Besides the options of [`Context::setsockopt`] there are `SO_TYPE`, `SO_ACCEPTCONN`,
    /// `SO_ERROR` (reading clears it) and `TCP_INFO`. `TCP_MAXSEG` of a connection is the segment
    /// size in use.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `ENOPROTOOPT` (unknown), `ENOTCONN` for `TCP_INFO`.
    pub fn getsockopt(
        &mut self,
        descriptor: Descriptor,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize> {
        let phase = self.socket_of(descriptor)?.phase;
        Ok(match (level, name) {
            (SOCKET, libc::SO_ERROR) => put_number(self.pending_error(descriptor)?, value),
            (SOCKET, libc::SO_ACCEPTCONN) => {
                put_number(i32::from(phase == Phase::Listening), value)
            }
            (TCP, libc::TCP_INFO) => put(&tcp_info::bytes(&self.tcp_info(descriptor)?), value),
            (TCP, libc::TCP_MAXSEG) if phase == Phase::Connected => {
                put_number(self.tcp_info(descriptor)?.maximum_segment.into(), value)
            }
            _ => SocketOption::find(level, name)?.get(&mut self.settings(descriptor)?, value),
        })
    }

    /// State, addresses and measurements of a connection or listener.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `ENOTCONN`.
    pub fn tcp_info(&mut self, descriptor: Descriptor) -> io::Result<ConnectionInfo> {
        let id = self.socket_of(descriptor)?.id.ok_or_else(|| from(libc::ENOTCONN))?;
        self.port.info(id).map_err(failure)
    }

    /// Whether the socket listens (`SO_ACCEPTCONN`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn accepts_connections(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        Ok(self.socket_of(descriptor)?.phase == Phase::Listening)
    }

    /// A copy of the socket's settings, with the present options of its connection.
    fn settings(&mut self, descriptor: Descriptor) -> io::Result<Extras> {
        let default = self.defaults.options;
        let socket = self.socket_of(descriptor)?;
        let (own, id) = (socket.extras.as_deref().cloned(), socket.id);
        let live = id.and_then(|id| self.port.options(id).ok());
        let mut settings = own.unwrap_or_else(|| Extras::new(live.unwrap_or(default)));
        settings.options = live.unwrap_or(settings.options);
        Ok(settings)
    }

    /// Returns SO_ERROR: the reason why the connection, or the attempt, has failed; reported once.
    fn pending_error(&mut self, descriptor: Descriptor) -> io::Result<i32> {
        let socket = self.socket_of(descriptor)?;
        let (own, id) = (std::mem::take(&mut socket.error), socket.id);
        Ok(id.and_then(|id| self.port.take_error(id)).map_or(own, errno))
    }

    /// The settings of a socket besides its connection; created if it has none yet.
    pub(super) fn extras(&mut self, descriptor: Descriptor) -> io::Result<&mut Extras> {
        let options = self.defaults.options;
        let socket = self.socket_of(descriptor)?;
        Ok(socket.extras.get_or_insert_with(|| Box::new(Extras::new(options))))
    }
}

/// Writes bytes, cut to the length of `value`; returns their number.
pub(crate) fn put(bytes: &[u8], value: &mut [u8]) -> usize {
    let length = bytes.len().min(value.len());
    value[..length].copy_from_slice(&bytes[..length]);
    length
}

/// Writes an `int` in the same way.
pub(crate) fn put_number(number: i32, value: &mut [u8]) -> usize {
    put(&number.to_ne_bytes(), value)
}

fn invalid() -> io::Error {
    from(libc::EINVAL)
}

fn field<const N: usize>(value: &[u8], at: usize) -> io::Result<[u8; N]> {
    let bytes = value.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(invalid)
}

fn integer(value: &[u8], at: usize) -> io::Result<i32> {
    field(value, at).map(i32::from_ne_bytes)
}

fn unsigned(value: i32) -> io::Result<u32> {
    u32::try_from(value).map_err(|_| invalid())
}

fn buffer(bytes: i32) -> io::Result<u32> {
    Ok(unsigned(bytes)?.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end()))
}

fn probe_time(seconds: i32) -> io::Result<Duration> {
    if !PROBE_SECONDS.contains(&seconds) {
        return Err(invalid());
    }
    Ok(Duration::from_secs(unsigned(seconds)?.into()))
}

/// Parses a `struct timeval`.
fn time_of(value: &[u8]) -> io::Result<Duration> {
    let seconds = i64::from_ne_bytes(field(value, 0)?);
    let microseconds = i64::from_ne_bytes(field(value, 8)?);
    if !(0..1_000_000).contains(&microseconds) {
        return Err(from(libc::EDOM));
    }
    let seconds = u64::try_from(seconds).map_err(|_| invalid())?;
    Ok(Duration::from_secs(seconds) + Duration::from_micros(microseconds as u64))
}

/// Converts a time, where zero means none.
fn nonzero(time: Duration) -> Option<Duration> {
    Some(time).filter(|time| !time.is_zero())
}

fn saturated(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

/// Whole seconds, rounded up.
fn seconds_of(time: Duration) -> i32 {
    saturated(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}
