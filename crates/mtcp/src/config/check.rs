//! Converts the values of a file into a configuration, and checks every range.

use super::file::File;
use super::{Config, DeviceKind, Ownership};
use crate::network::Route;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The reason why there is no valid configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No file is named.
    #[error(
        "no configuration: neither a file was named nor MTCP_CONFIG is set; set MTCP_CONFIG to the \
         path of a file such as docs/mtcp.toml (programs with set-user-ID or capabilities ignore \
         it)"
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
    /// The file is not valid TOML, or has an unknown setting or choice, or one of another type.
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
    checker.ranges(&file)?;
    checker.device(&file)?;
    let mut config = Config {
        addresses: checker.addresses(&file)?,
        routes: checker.routes(&file)?,
        ownership: file.address.ownership,
        ports: file.address.ports.iter().map(|[first, last]| *first..=*last).collect(),
        device: file.device,
        engine: file.engine,
        max_descriptors: file.socket.max_descriptors,
        grace: Duration::from_millis(file.socket.grace_ms),
        capture: file.capture,
        stat: file.stat,
        ..Config::default()
    };
    file.tcp.apply(&mut config.tcp);
    match config.tcp.check() {
        Err(mtcp_proto::Error::Config(error)) => {
            let range = format!("{} to {}", error.least, error.most);
            checker.fail(&format!("tcp.{}", error.setting), error.value, range)
        }
        _ => Ok(config),
    }
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

    /// Checks the ranges of all numbers outside of the section `tcp`.
    fn ranges(&self, file: &File) -> Result<(), ConfigError> {
        let (device, engine, socket) = (&file.device, &file.engine, &file.socket);
        let single = [
            ("device.queues", u64::from(device.queues), 0..=256),
            ("engine.cores", engine.cores.into(), 1..=256),
            ("engine.batch", engine.batch as u64, 1..=1024),
            ("socket.max_descriptors", socket.max_descriptors as u64, 1..=1 << 24),
            ("socket.grace_ms", socket.grace_ms, 0..=600_000),
        ];
        let capture =
            file.capture.iter().map(|it| ("capture.bytes", it.bytes.into(), 64..=262_144));
        let cpus = engine.cpus.iter().map(|cpu| ("engine.cpus", *cpu as u64, 0..=1023));
        let ports = file.address.ports.iter().flat_map(|&[first, last]| {
            let (first, last, most) = (u64::from(first), u64::from(last), 65_535);
            [("address.ports", first, 1..=most), ("address.ports", last, first..=most)]
        });
        for (setting, value, range) in single.into_iter().chain(capture).chain(cpus).chain(ports) {
            if !range.contains(&value) {
                return self.fail(setting, value, format!("{} to {}", range.start(), range.end()));
            }
        }
        let (cpus, cores) = (engine.cpus.len(), engine.cores);
        if cpus != 0 && cpus != usize::from(cores) {
            let range = format!("empty or a list of {cores} CPUs, one for each core");
            return self.fail("engine.cpus", format!("a list of {cpus}"), range);
        }
        Ok(())
    }

    fn device(&self, file: &File) -> Result<(), ConfigError> {
        let (interface, kind) = (&file.device.interface, file.device.kind);
        if interface.len() > 15 {
            return self.fail("device.interface", interface, "at most 15 bytes");
        }
        if interface.is_empty() && matches!(kind, DeviceKind::Xdp | DeviceKind::Packet) {
            let range = "the name of an interface, such as \"eth0\"";
            return self.fail("device.interface", "missing", range);
        }
        if file.address.ownership == Ownership::Shared && kind != DeviceKind::Xdp {
            let range = "\"own\" unless device.kind is \"xdp\": with other devices the kernel \
                 receives each packet, too";
            return self.fail("address.ownership", "\"shared\"", range);
        }
        Ok(())
    }

    fn addresses(&self, file: &File) -> Result<Vec<(IpAddr, u8)>, ConfigError> {
        let mut addresses = Vec::new();
        for text in &file.address.list {
            let Some(address) = prefix(text, true) else {
                let range = "an address with its prefix length, such as 10.0.0.2/24 or fd00::2/64";
                return self.fail("address.list", text, range);
            };
            addresses.push(address);
        }
        if addresses.is_empty() && file.address.ownership == Ownership::Own {
            let range = "at least one address of the stack's own, such as \"10.0.0.2/24\"";
            return self.fail("address.list", "empty", range);
        }
        Ok(addresses)
    }

    fn routes(&self, file: &File) -> Result<Vec<Route>, ConfigError> {
        let mut routes = Vec::new();
        for route in &file.route {
            let Some((to, length)) = prefix(&route.to, false) else {
                let range = "a network, such as 0.0.0.0/0, without bits beyond its prefix";
                return self.fail("route.to", &route.to, range);
            };
            let mut gateway = None;
            if let Some(via) = &route.via {
                let parsed: Option<IpAddr> = via.parse().ok();
                gateway = parsed.filter(|gateway| gateway.is_ipv4() == to.is_ipv4());
                if gateway.is_none() {
                    let range = "an address of the same family as route.to";
                    return self.fail("route.via", via, range);
                }
            }
            routes.push(Route { prefix: to, length, gateway, metric: 0 });
        }
        Ok(routes)
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
