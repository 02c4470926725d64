//! Implements socket options, each with a type and a description of its effect. See socket(7) and
//! tcp(7).

use super::errors::{errno, failure, from};
use super::settings::Extras;
use super::{Context, Descriptor, Phase};
use mtcp_proto::{Congestion, ConnectionInfo, Options};
use std::io;
use std::time::Duration;

/// An option with its value, for setting and for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// `SO_ERROR`: the errno of a failure that was not reported yet, 0 if none. Read-only; reading
    /// clears it.
    Error(i32),
    /// `SO_TYPE`: always `SOCK_STREAM`. Read-only.
    Type(i32),
    /// `SO_ACCEPTCONN`: whether the socket listens. Read-only.
    AcceptConnections(bool),
    /// `SO_REUSEADDR`: sockets that both have it may be bound to one address, as long as none
    /// listens. Ports in TIME_WAIT never prevent a listener from starting here.
    ReuseAddress(bool),
    /// `SO_REUSEPORT`: sockets that all have it may be bound to one address, and listen on it; new
    /// connections are distributed among them.
    ReusePort(bool),
    /// `SO_OOBINLINE`: urgent bytes stay in the stream.
    OutOfBandInline(bool),
    /// `SO_KEEPALIVE`: whether a silent peer is probed.
    KeepAlive(bool),
    /// `SO_LINGER`: how long `close` waits until written data is acknowledged; zero makes `close` a
    /// reset.
    Linger(Option<Duration>),
    /// `SO_SNDBUF`, in bytes: limited to 4 KiB to 64 MiB. Unlike the kernel's it is not doubled,
    /// because only data counts.
    SendBuffer(u32),
    /// `SO_RCVBUF`, in bytes, in the same way. Before connecting or listening it also determines
    /// how large the window can become.
    ReceiveBuffer(u32),
    /// `SO_RCVLOWAT`: number of bytes at which the socket becomes readable.
    ReceiveLowWater(u32),
    /// `SO_RCVTIMEO`: how long reading and accepting block before they fail with `EAGAIN`.
    ReceiveTimeout(Option<Duration>),
    /// `SO_SNDTIMEO`: the same for writing, and for connecting, which fails with `EINPROGRESS`.
    SendTimeout(Option<Duration>),
    /// `IPV6_V6ONLY`: a socket bound to `::` accepts no IPv4 connections. Without it, it does, and
    /// calls return their addresses as IPv6 ones (`::ffff:10.0.0.1`). Takes effect before
    /// listening.
    Ipv6Only(bool),
    /// `TCP_NODELAY`: small segments are sent at once.
    NoDelay(bool),
    /// `TCP_CORK`: only full segments, or data that has waited for about 200 ms, are sent until it
    /// is cleared.
    Cork(bool),
    /// `TCP_QUICKACK`: segments are acknowledged at once. Unlike the kernel's, the option stays
    /// set.
    QuickAck(bool),
    /// `TCP_USER_TIMEOUT`: how long data may stay unacknowledged; `None` is the stack's default.
    UserTimeout(Option<Duration>),
    /// `TCP_KEEPIDLE`: silence before the first probe, at least a second.
    KeepIdle(Duration),
    /// `TCP_KEEPINTVL`: time between probes, at least a second.
    KeepInterval(Duration),
    /// `TCP_KEEPCNT`: probes without an answer before the connection fails; 1 to 127.
    KeepCount(u8),
    /// `TCP_MAXSEG`: the largest segment, 0 for what the path allows. Takes effect before
    /// connecting; on a connection, reading returns the segment size in use.
    MaximumSegment(u16),
    /// `TCP_CONGESTION`: "cubic" or "reno".
    Congestion(Congestion),
    /// `TCP_DEFER_ACCEPT`: a connection can be accepted with its first data, or after this time.
    DeferAccept(Option<Duration>),
    /// `TCP_INFO`. Read-only.
    Info(Box<TcpInfo>),
}

/// The options by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants of SocketOption say it")]
pub enum OptionName {
    Error,
    Type,
    AcceptConnections,
    ReuseAddress,
    ReusePort,
    OutOfBandInline,
    KeepAlive,
    Linger,
    SendBuffer,
    ReceiveBuffer,
    ReceiveLowWater,
    ReceiveTimeout,
    SendTimeout,
    Ipv6Only,
    NoDelay,
    Cork,
    QuickAck,
    UserTimeout,
    KeepIdle,
    KeepInterval,
    KeepCount,
    MaximumSegment,
    Congestion,
    DeferAccept,
    Info,
}

/// The state of a connection: the part of the kernel's `tcp_info` that this stack has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// State, queues, round trips and windows.
    pub connection: ConnectionInfo,
    /// The options in use.
    pub options: Options,
}

/// The range of a buffer's size, in bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 20;
/// The range of TCP_MAXSEG; the minimum is the kernel's.
const SEGMENT_BYTES: std::ops::RangeInclusive<u16> = 88..=32_767;
const MAX_KEEPALIVE: Duration = Duration::from_secs(32_767);

fn bounded(bytes: u32) -> u32 {
    bytes.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end())
}

impl Context {
    /// Sets an option. See setsockopt(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EINVAL` (out of range), `ENOPROTOOPT` (read-only).
    pub fn set_option(&mut self, descriptor: Descriptor, option: SocketOption) -> io::Result<()> {
        let id = self.socket_of(descriptor)?.id;
        let mut extras = match self.socket_of(descriptor)?.extras.take() {
            Some(extras) => extras,
            None => Box::new(Extras::new(self.defaults.options)),
        };
        let mut options = match id {
            Some(id) => self.port.options(id).unwrap_or(extras.options),
            None => extras.options,
        };
        let before = options;
        let outcome = apply(option, &mut options, &mut extras);
        if outcome.is_ok() && id.is_none() {
            extras.options = options;
        }
        self.socket_of(descriptor)?.extras = Some(extras);
        outcome?;
        match id {
            Some(id) if options != before => {
                self.port.set_options(id, &options).map_err(failure)?;
                self.spend(1)
            }
            _ => Ok(()),
        }
    }

    /// Reads an option. See getsockopt(2).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`; `ENOTCONN` for [`OptionName::Info`].
    pub fn option(&mut self, descriptor: Descriptor, name: OptionName) -> io::Result<SocketOption> {
        match name {
            OptionName::Error => return self.pending_error(descriptor).map(SocketOption::Error),
            OptionName::Info => return self.tcp_info(descriptor),
            OptionName::MaximumSegment => return self.maximum_segment(descriptor),
            _ => {}
        }
        let listening = self.socket_of(descriptor)?.phase == Phase::Listening;
        let options = self.options_of(descriptor)?;
        Ok(match &self.socket_of(descriptor)?.extras {
            Some(extras) => read_option(name, &options, extras, listening),
            None => read_option(name, &options, &Extras::new(options), listening),
        })
    }

    fn options_of(&mut self, descriptor: Descriptor) -> io::Result<Options> {
        let default = self.defaults.options;
        let socket = self.socket_of(descriptor)?;
        let own = socket.extras.as_ref().map_or(default, |extras| extras.options);
        Ok(match socket.id {
            Some(id) => self.port.options(id).unwrap_or(own),
            None => own,
        })
    }

    /// Returns SO_ERROR: the reason why the connection, or the attempt, has failed; reported once.
    fn pending_error(&mut self, descriptor: Descriptor) -> io::Result<i32> {
        let socket = self.socket_of(descriptor)?;
        let (own, id) = (std::mem::take(&mut socket.error), socket.id);
        Ok(id.and_then(|id| self.port.take_error(id)).map_or(own, errno))
    }

    fn tcp_info(&mut self, descriptor: Descriptor) -> io::Result<SocketOption> {
        let id = self.socket_of(descriptor)?.id.ok_or_else(|| from(libc::ENOTCONN))?;
        let connection = self.port.info(id).map_err(failure)?;
        let options = self.options_of(descriptor)?;
        Ok(SocketOption::Info(Box::new(TcpInfo { connection, options })))
    }

    fn maximum_segment(&mut self, descriptor: Descriptor) -> io::Result<SocketOption> {
        let socket = self.socket_of(descriptor)?;
        if let (Phase::Connected, Some(id)) = (socket.phase, socket.id) {
            let info = self.port.info(id).map_err(failure)?;
            return Ok(SocketOption::MaximumSegment(info.maximum_segment));
        }
        // The value that the kernel returns before the connection is established (RFC 9293, section
        // 3.7.1).
        let set = self.options_of(descriptor)?.maximum_segment;
        Ok(SocketOption::MaximumSegment(set.unwrap_or(536)))
    }

    /// The settings of a socket besides its connection; created if it has none yet.
    pub(super) fn extras(&mut self, descriptor: Descriptor) -> io::Result<&mut Extras> {
        let options = self.defaults.options;
        let socket = self.socket_of(descriptor)?;
        Ok(socket.extras.get_or_insert_with(|| Box::new(Extras::new(options))))
    }
}

/// Reads an option from the settings; if they do not have it, returns the type.
pub(crate) fn read_option(
    name: OptionName,
    options: &Options,
    extras: &Extras,
    listening: bool,
) -> SocketOption {
    match name {
        OptionName::AcceptConnections => SocketOption::AcceptConnections(listening),
        OptionName::ReuseAddress => SocketOption::ReuseAddress(extras.reuse_address),
        OptionName::ReusePort => SocketOption::ReusePort(extras.reuse_port),
        OptionName::OutOfBandInline => SocketOption::OutOfBandInline(extras.urgent_inline),
        OptionName::KeepAlive => SocketOption::KeepAlive(options.keepalive.is_some()),
        OptionName::Linger if options.linger_reset => SocketOption::Linger(Some(Duration::ZERO)),
        OptionName::Linger => SocketOption::Linger(extras.linger),
        OptionName::SendBuffer => SocketOption::SendBuffer(options.send_buffer_bytes),
        OptionName::ReceiveBuffer => SocketOption::ReceiveBuffer(options.receive_buffer_bytes),
        OptionName::ReceiveLowWater => {
            SocketOption::ReceiveLowWater(options.receive_low_water_bytes)
        }
        OptionName::ReceiveTimeout => SocketOption::ReceiveTimeout(extras.receive_timeout),
        OptionName::SendTimeout => SocketOption::SendTimeout(extras.send_timeout),
        OptionName::Ipv6Only => SocketOption::Ipv6Only(extras.ipv6_only),
        OptionName::NoDelay => SocketOption::NoDelay(options.no_delay),
        OptionName::Cork => SocketOption::Cork(options.cork),
        OptionName::QuickAck => SocketOption::QuickAck(options.quick_ack),
        OptionName::UserTimeout => SocketOption::UserTimeout(options.user_timeout),
        OptionName::KeepIdle => SocketOption::KeepIdle(extras.keepalive.idle),
        OptionName::KeepInterval => SocketOption::KeepInterval(extras.keepalive.interval),
        OptionName::KeepCount => SocketOption::KeepCount(extras.keepalive.probes),
        OptionName::Congestion => SocketOption::Congestion(options.congestion),
        OptionName::DeferAccept => SocketOption::DeferAccept(extras.defer_accept),
        OptionName::Type | OptionName::Error | OptionName::Info | OptionName::MaximumSegment => {
            SocketOption::Type(libc::SOCK_STREAM)
        }
    }
}

pub(crate) fn apply(
    option: SocketOption,
    options: &mut Options,
    extras: &mut Extras,
) -> io::Result<()> {
    let keepalive = extras.keepalive;
    match option {
        SocketOption::Error(_)
        | SocketOption::Type(_)
        | SocketOption::AcceptConnections(_)
        | SocketOption::Info(_) => return Err(from(libc::ENOPROTOOPT)),
        SocketOption::ReuseAddress(on) => extras.reuse_address = on,
        SocketOption::ReusePort(on) => extras.reuse_port = on,
        SocketOption::OutOfBandInline(on) => extras.urgent_inline = on,
        SocketOption::KeepAlive(on) => options.keepalive = on.then_some(keepalive),
        SocketOption::Linger(time) => {
            extras.linger = time;
            options.linger_reset = time == Some(Duration::ZERO);
        }
        SocketOption::SendBuffer(bytes) => options.send_buffer_bytes = bounded(bytes),
        SocketOption::ReceiveBuffer(bytes) => options.receive_buffer_bytes = bounded(bytes),
        SocketOption::ReceiveLowWater(bytes) => {
            options.receive_low_water_bytes = bytes.clamp(1, options.receive_buffer_bytes);
        }
        SocketOption::ReceiveTimeout(time) => extras.receive_timeout = nonzero(time),
        SocketOption::SendTimeout(time) => extras.send_timeout = nonzero(time),
        SocketOption::Ipv6Only(on) => extras.ipv6_only = on,
        SocketOption::NoDelay(on) => options.no_delay = on,
        SocketOption::Cork(on) => options.cork = on,
        SocketOption::QuickAck(on) => options.quick_ack = on,
        SocketOption::UserTimeout(time) => options.user_timeout = nonzero(time),
        SocketOption::KeepIdle(time) => extras.keepalive.idle = probe_time(time)?,
        SocketOption::KeepInterval(time) => extras.keepalive.interval = probe_time(time)?,
        SocketOption::KeepCount(probes @ 1..=127) => extras.keepalive.probes = probes,
        SocketOption::KeepCount(_) => return Err(from(libc::EINVAL)),
        SocketOption::MaximumSegment(0) => options.maximum_segment = None,
        SocketOption::MaximumSegment(bytes) if SEGMENT_BYTES.contains(&bytes) => {
            options.maximum_segment = Some(bytes);
        }
        SocketOption::MaximumSegment(_) => return Err(from(libc::EINVAL)),
        SocketOption::Congestion(kind) => options.congestion = kind,
        SocketOption::DeferAccept(time) => extras.defer_accept = nonzero(time),
    }
    if options.keepalive.is_some() {
        options.keepalive = Some(extras.keepalive);
    }
    Ok(())
}

/// Converts a time, where zero means none.
fn nonzero(time: Option<Duration>) -> Option<Duration> {
    time.filter(|time| !time.is_zero())
}

fn probe_time(time: Duration) -> io::Result<Duration> {
    let fits = time >= Duration::from_secs(1) && time <= MAX_KEEPALIVE;
    if fits { Ok(time) } else { Err(from(libc::EINVAL)) }
}
