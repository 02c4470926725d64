//! Converts the values of a file into a configuration, and checks every range.

use super::file::File;
use super::{
    CONGESTION, CaptureConfig, Config, DeviceConfig, DeviceKind, EngineConfig, Mode, Ownership,
    StatConfig, XdpMode,
};
use crate::network::Route;
use mtcp_proto::SynCookies;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The reason why there is no valid configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No file is named.
    #[error(
        "no configuration: neither a file was named nor MTCP_CONFIG is set; set MTCP_CONFIG to the \
         path of a file such as docs/mtcp.toml"
    )]
    NoFile,
    /// The file cannot be read.
    #[error(
        "cannot read the configuration {}: {source}; name a file that this user may read, with \
         --config or MTCP_CONFIG", path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is not valid TOML, or has an unknown setting, or one of another type.
    #[error("{}: {message}; docs/mtcp.toml shows the syntax and all settings", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line and the error in it.
        message: String,
    },
    /// A setting is out of range.
    #[error("{}:{line}: {setting} is {value}; it must be {range}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 if the setting is missing.
        line: usize,
        /// The setting, with its section.
        setting: String,
        /// The value in the file.
        value: String,
        /// The permitted values.
        range: String,
    },
}

/// The text of the file, in which the checker finds the line of a setting.
struct Checker<'a> {
    text: &'a str,
    path: &'a Path,
}

pub(super) fn config(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })?;
    let checker = Checker { text, path };
    let mut config = Config::default();
    checker.device(&file, &mut config)?;
    checker.addresses(&file, &mut config)?;
    checker.engine(&file, &mut config)?;
    checker.limits(&file, &mut config)?;
    checker.tcp(&file, &mut config)?;
    checker.connections(&file, &mut config)?;
    checker.others(file, &mut config)?;
    Ok(config)
}

impl Checker<'_> {
    fn fail<T>(
        &self,
        setting: &str,
        value: impl Display,
        range: impl Into<String>,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::Range {
            path: self.path.to_owned(),
            line: self.line(setting),
            setting: setting.to_owned(),
            value: value.to_string(),
            range: range.into(),
        })
    }

    /// The line in which `section.key` is set, from 1; without the key, the line of the section;
    /// without the section, 0.
    fn line(&self, setting: &str) -> usize {
        let (section, key) = setting.split_once('.').unwrap_or((setting, ""));
        let mut current = "";
        let mut found = 0;
        for (index, line) in self.text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if let Some(name) = line.strip_prefix('[') {
                current = name.trim_matches(['[', ']', ' ']);
                if current == section {
                    found = index + 1;
                }
            } else if let Some((name, _)) = line.split_once('=')
                && current == section
                && name.trim() == key
            {
                return index + 1;
            }
        }
        found
    }

    /// Stores a number in its setting, if the file has one.
    fn number<N: TryFrom<i64>>(
        &self,
        setting: &str,
        value: Option<i64>,
        range: RangeInclusive<i64>,
        place: &mut N,
    ) -> Result<(), ConfigError> {
        let Some(value) = value else { return Ok(()) };
        match N::try_from(value) {
            Ok(number) if range.contains(&value) => {
                *place = number;
                Ok(())
            }
            _ => self.fail(setting, value, format!("{} to {}", range.start(), range.end())),
        }
    }

    fn milliseconds(
        &self,
        setting: &str,
        value: Option<i64>,
        range: RangeInclusive<i64>,
        place: &mut Duration,
    ) -> Result<(), ConfigError> {
        let mut milliseconds = 0u64;
        self.number(setting, value, range, &mut milliseconds)?;
        if value.is_some() {
            *place = Duration::from_millis(milliseconds);
        }
        Ok(())
    }

    fn choice<T: Copy>(
        &self,
        setting: &str,
        value: Option<&String>,
        choices: &[(&str, T)],
        place: &mut T,
    ) -> Result<(), ConfigError> {
        let Some(value) = value else { return Ok(()) };
        match choices.iter().find(|(name, _)| name == value) {
            Some((_, choice)) => {
                *place = *choice;
                Ok(())
            }
            None => {
                let names: Vec<String> =
                    choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                self.fail(setting, format!("\"{value}\""), names.join(" or "))
            }
        }
    }

    fn device(&self, file: &File, config: &mut Config) -> Result<(), ConfigError> {
        let device = &file.device;
        let mut made = DeviceConfig::default();
        let kinds = [
            ("xdp", DeviceKind::Xdp),
            ("packet", DeviceKind::Packet),
            ("tap", DeviceKind::Tap),
            ("memory", DeviceKind::Memory),
        ];
        self.choice("device.kind", device.kind.as_ref(), &kinds, &mut made.kind)?;
        let modes =
            [("auto", XdpMode::Auto), ("native", XdpMode::Native), ("generic", XdpMode::Generic)];
        self.choice("device.mode", device.mode.as_ref(), &modes, &mut made.mode)?;
        self.number("device.queues", device.queues, 0..=256, &mut made.queues)?;
        made.interface = device.interface.clone().unwrap_or_default();
        if made.interface.len() > 15 {
            return self.fail("device.interface", &made.interface, "at most 15 bytes");
        }
        if made.interface.is_empty() && matches!(made.kind, DeviceKind::Xdp | DeviceKind::Packet) {
            return self.fail(
                "device.interface",
                "missing",
                "the name of an interface, such as \"eth0\"",
            );
        }
        made.zero_copy = device.zero_copy;
        made.offload = device.offload.unwrap_or(made.offload);
        config.device = made;
        Ok(())
    }

    fn addresses(&self, file: &File, config: &mut Config) -> Result<(), ConfigError> {
        let choices = [("own", Ownership::Own), ("shared", Ownership::Shared)];
        let ownership = file.address.ownership.as_ref();
        self.choice("address.ownership", ownership, &choices, &mut config.ownership)?;
        if config.ownership == Ownership::Shared && config.device.kind != DeviceKind::Xdp {
            let range = "\"own\" unless device.kind is \"xdp\": with other devices the kernel \
                 receives each packet, too";
            return self.fail("address.ownership", "\"shared\"", range);
        }
        for &[first, last] in &file.address.ports {
            let (mut start, mut end) = (0u16, 0u16);
            self.number("address.ports", Some(first), 1..=65_535, &mut start)?;
            self.number("address.ports", Some(last), first..=65_535, &mut end)?;
            config.ports.push(start..=end);
        }
        for text in &file.address.list {
            match prefix(text, true) {
                Some(address) => config.addresses.push(address),
                None => {
                    let range = "an address with its prefix length, such as 10.0.0.2/24 or \
                         fd00::2/64";
                    return self.fail("address.list", text, range);
                }
            }
        }
        if config.addresses.is_empty() && config.ownership == Ownership::Own {
            return self.fail(
                "address.list",
                "empty",
                "at least one address of the stack's own, such as \"10.0.0.2/24\"",
            );
        }
        for route in &file.route {
            let Some((to, length)) = prefix(&route.to, false) else {
                return self.fail(
                    "route.to",
                    &route.to,
                    "a network, such as 0.0.0.0/0, without bits beyond its prefix",
                );
            };
            let gateway = match &route.via {
                None => None,
                Some(via) => match via.parse::<IpAddr>() {
                    Ok(gateway) if gateway.is_ipv4() == to.is_ipv4() => Some(gateway),
                    _ => {
                        return self.fail(
                            "route.via",
                            via,
                            "an address of the same family as route.to",
                        );
                    }
                },
            };
            config.routes.push(Route { prefix: to, length, gateway, metric: 0 });
        }
        Ok(())
    }

    fn engine(&self, file: &File, config: &mut Config) -> Result<(), ConfigError> {
        let engine = &file.engine;
        let mut made = EngineConfig::default();
        self.number("engine.cores", engine.cores, 1..=256, &mut made.cores)?;
        self.number("engine.batch", engine.batch, 1..=1024, &mut made.batch)?;
        let modes = [("complete", Mode::Complete), ("paired", Mode::Paired)];
        self.choice("engine.mode", engine.mode.as_ref(), &modes, &mut made.mode)?;
        for cpu in &engine.cpus {
            let mut number = 0usize;
            self.number("engine.cpus", Some(*cpu), 0..=1023, &mut number)?;
            made.cpus.push(number);
        }
        if !made.cpus.is_empty() && made.cpus.len() != usize::from(made.cores) {
            let range = format!("empty or a list of {} CPUs, one for each core", made.cores);
            return self.fail("engine.cpus", format!("a list of {}", made.cpus.len()), range);
        }
        config.engine = made;
        Ok(())
    }

    fn limits(&self, file: &File, config: &mut Config) -> Result<(), ConfigError> {
        let (tcp, made) = (&file.tcp, &mut config.tcp);
        self.number("tcp.max_sockets", tcp.max_sockets, 1..=1 << 24, &mut made.max_sockets)?;
        let half_open = &mut made.max_half_open;
        self.number("tcp.max_half_open", tcp.max_half_open, 1..=1 << 24, half_open)?;
        let time_wait = &mut made.max_time_wait;
        self.number("tcp.max_time_wait", tcp.max_time_wait, 1..=1 << 24, time_wait)?;
        let buffers = &mut made.max_buffer_bytes;
        self.number("tcp.max_buffer_bytes", tcp.max_buffer_bytes, 1 << 20..=1 << 40, buffers)?;
        let challenges = &mut made.challenge_acks_per_second;
        let setting = "tcp.challenge_acks_per_second";
        self.number(setting, tcp.challenge_acks_per_second, 0..=1 << 20, challenges)?;
        let setting = "socket.max_descriptors";
        let descriptors = &mut config.max_descriptors;
        self.number(setting, file.socket.max_descriptors, 1..=1 << 24, descriptors)?;
        self.milliseconds("socket.grace_ms", file.socket.grace_ms, 0..=600_000, &mut config.grace)
    }

    fn tcp(&self, file: &File, config: &mut Config) -> Result<(), ConfigError> {
        let (tcp, made) = (&file.tcp, &mut config.tcp);
        let cookies = [
            ("never", SynCookies::Never),
            ("when_full", SynCookies::WhenFull),
            ("always", SynCookies::Always),
        ];
        let choice = tcp.syn_cookies.as_ref();
        self.choice("tcp.syn_cookies", choice, &cookies, &mut made.syn_cookies)?;
        made.window_scaling = tcp.window_scaling.unwrap_or(made.window_scaling);
        made.timestamps = tcp.timestamps.unwrap_or(made.timestamps);
        made.sack = tcp.sack.unwrap_or(made.sack);
        made.ecn = tcp.ecn.unwrap_or(made.ecn);
        let window = &mut made.initial_window;
        self.number("tcp.initial_window", tcp.initial_window, 1..=10, window)?;
        self.number("tcp.syn_retries", tcp.syn_retries, 0..=127, &mut made.syn_retries)?;
        self.number("tcp.mtu", tcp.mtu, 576..=65_535, &mut made.mtu)?;
        let day = 86_400_000;
        let times = [
            ("tcp.minimum_rto_ms", tcp.minimum_rto_ms, 1..=60_000, &mut made.minimum_rto),
            ("tcp.maximum_rto_ms", tcp.maximum_rto_ms, 60_000..=day, &mut made.maximum_rto),
            ("tcp.delayed_ack_ms", tcp.delayed_ack_ms, 0..=500, &mut made.delayed_ack),
            ("tcp.give_up_ms", tcp.give_up_ms, 1_000..=day, &mut made.give_up),
            (
                "tcp.maximum_segment_lifetime_ms",
                tcp.maximum_segment_lifetime_ms,
                1..=120_000,
                &mut made.maximum_segment_lifetime,
            ),
            ("tcp.fin_wait_2_ms", tcp.fin_wait_2_ms, 1..=day, &mut made.fin_wait_2),
        ];
        for (setting, value, range, place) in times {
            self.milliseconds(setting, value, range, place)?;
        }
        if let Some([first, last]) = tcp.ephemeral_ports {
            let (mut start, mut end) = (0u16, 0u16);
            self.number("tcp.ephemeral_ports", Some(first), 1024..=65_535, &mut start)?;
            self.number("tcp.ephemeral_ports", Some(last), first..=65_535, &mut end)?;
            made.ephemeral_ports = start..=end;
        }
        Ok(())
    }

    fn connections(&self, file: &File, config: &mut Config) -> Result<(), ConfigError> {
        let (tcp, options) = (&file.tcp, &mut config.tcp.options);
        let congestion = tcp.congestion.as_ref();
        self.choice("tcp.congestion", congestion, &CONGESTION, &mut options.congestion)?;
        options.no_delay = tcp.no_delay.unwrap_or(options.no_delay);
        let buffer = 4 << 10..=64 << 20;
        let send = &mut options.send_buffer_bytes;
        self.number("tcp.send_buffer_bytes", tcp.send_buffer_bytes, buffer.clone(), send)?;
        let receive = &mut options.receive_buffer_bytes;
        self.number("tcp.receive_buffer_bytes", tcp.receive_buffer_bytes, buffer, receive)
    }

    fn others(&self, file: File, config: &mut Config) -> Result<(), ConfigError> {
        if let Some(capture) = file.capture {
            let mut bytes = 262_144;
            self.number("capture.bytes", capture.bytes, 64..=262_144, &mut bytes)?;
            config.capture = Some(CaptureConfig { file: capture.file, bytes });
        }
        let socket = file.stat.socket;
        config.stat = StatConfig { enabled: file.stat.enabled.unwrap_or(true), socket };
        Ok(())
    }
}

/// Parses an address with the length of its prefix, or a network, whose bits beyond the prefix must
/// be zero.
fn prefix(text: &str, is_address: bool) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let length: u8 = length.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if length > bits {
        return None;
    }
    if is_address {
        return (!address.is_unspecified() && !address.is_multicast()).then_some((address, length));
    }
    let host = 128 - u32::from(length) - if address.is_ipv4() { 96 } else { 0 };
    let mask = u128::MAX.checked_shl(host).unwrap_or(0);
    let cut: IpAddr = match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & mask as u32).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & mask).into(),
    };
    (cut == address).then_some((address, length))
}
