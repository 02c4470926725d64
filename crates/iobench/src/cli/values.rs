//! Parses and bounds the values of options.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::ValueEnum;

use crate::network::PathKind;
use crate::network::conditions::Conditions;
use crate::units::parse_duration;

/// Longest message, 1 MiB.
const MOST_MESSAGE_BYTES: usize = 1 << 20;
/// Most idle connections to each server.
const MOST_IDLE: usize = 100_000;

/// Transaction counts; a type of its own because `all` stands for several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionList(pub(crate) Vec<u32>);

pub(crate) fn parse_transactions(text: &str) -> Result<TransactionList, String> {
    if text == "all" {
        return Ok(TransactionList(vec![1, 2, 4, 8, 16, 32, 64, 128, 0]));
    }
    let counts = text.split(',').map(|part| {
        part.trim().parse().map_err(|_| {
            format!("`{part}` is neither a count nor `all`; write a list such as 1,8,128,0")
        })
    });
    counts.collect::<Result<_, _>>().map(TransactionList)
}

/// The network path of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathChoice {
    Plain(PathKind),
    /// An emulated network.
    Emulated(Conditions),
}

impl PathChoice {
    /// Returns the device, and the conditions of a network that is emulated over it.
    pub(crate) fn parts(&self) -> (PathKind, Option<&Conditions>) {
        match self {
            PathChoice::Plain(kind) => (*kind, None),
            PathChoice::Emulated(conditions) => (PathKind::Loopback, Some(conditions)),
        }
    }
}

pub(crate) fn parse_path(text: &str) -> Result<PathChoice, String> {
    match PathKind::from_str(text, false) {
        Ok(kind) => Ok(PathChoice::Plain(kind)),
        Err(_) => text
            .parse()
            .map(PathChoice::Emulated)
            .map_err(|problem: String| format!("{problem}; plain paths are loopback and veth")),
    }
}

/// Parses a list of CPUs in the kernel's notation.
pub(crate) fn parse_cpus(text: &str) -> Result<Vec<usize>, String> {
    sys::cpus::parse_list(&text.replace(' ', "")).filter(|cpus| !cpus.is_empty()).ok_or_else(|| {
        format!("`{text}` is no list of CPUs; write numbers and ranges, such as 0,2-3")
    })
}

/// Parses a rate, whose unit may be thousands or millions per second.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.trim().char_indices().next_back() {
        Some((end, 'k')) => (&text.trim()[..end], 1e3),
        Some((end, 'M')) => (&text.trim()[..end], 1e6),
        _ => (text.trim(), 1.0),
    };
    match number.parse::<f64>() {
        Ok(rate) if rate.is_finite() => Ok(rate * factor),
        _ => Err("write a number per second, such as 8000, 8k or 1.5M".to_owned()),
    }
}

pub(crate) fn parse_message_bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if (1..=MOST_MESSAGE_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err(format!("use 1 to {MOST_MESSAGE_BYTES} bytes")),
    }
}

pub(crate) fn parse_connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=1_000_000).contains(&count) => Ok(count),
        _ => Err("use 1 to 1000000 connections".to_owned()),
    }
}

pub(crate) fn parse_idle(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if count <= MOST_IDLE => Ok(count),
        _ => Err(format!("use 0 to {MOST_IDLE} idle connections")),
    }
}

/// Parses a measured duration, which must be long enough for four slices.
pub(crate) fn parse_measured(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration < Duration::from_millis(100) || duration > Duration::from_secs(3600) {
        return Err("use a time from 100ms to 1h".to_owned());
    }
    Ok(duration)
}

/// Parses a period of a run, which may be zero.
pub(crate) fn parse_period(text: &str) -> Result<Duration, String> {
    let period = parse_duration(text)?;
    if period > Duration::from_secs(3600) {
        return Err("use a time from 0s to 1h".to_owned());
    }
    Ok(period)
}

/// Parses a percentage as a fraction.
pub(crate) fn parse_threshold(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=1_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("use a percentage from 0% to 1000%, such as 5%".to_owned()),
    }
}

/// Parses the address of a running server, whose host may have a name.
pub(crate) fn parse_connect(text: &str) -> Result<SocketAddr, String> {
    let remedy = "write ADDRESS:PORT or NAME:PORT, such as 127.0.0.1:7000 or localhost:7000";
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; {remedy}"))?;
    found.next().ok_or_else(|| format!("the name has no address; {remedy}"))
}

pub(crate) fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "write an address without a port, such as 192.0.2.1".to_owned())
}

pub(crate) fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "write ADDRESS:PORT or a port, such as 127.0.0.1:7000 or 7000".to_owned())?;
    if address.ip().is_unspecified() {
        return Err("name the address at which clients connect, such as 127.0.0.1:7000".to_owned());
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn transactions_are_a_list_or_all() {
        assert_eq!(parse_transactions("1,128, 0").unwrap().0, [1, 128, 0]);
        assert_eq!(parse_transactions("all").unwrap().0.len(), 9);
        assert!(parse_transactions("1,x").is_err());
        assert!(parse_transactions("").is_err());
    }

    #[test]
    fn paths_are_plain_or_emulated() {
        let parts = |text| parse_path(text).map(|path| path.parts().0);
        assert_eq!(parts("veth"), Ok(PathKind::Veth));
        assert_eq!(parts("loopback"), Ok(PathKind::Loopback));
        let emulated = parse_path("delay=1ms,loss=0.1").unwrap();
        assert!(emulated.parts().1.is_some_and(|conditions| conditions.is_lossy()));
        assert!(parse_path("cable").unwrap_err().contains("loopback and veth"));
    }

    #[test]
    fn cpus_are_numbers_and_ranges() {
        assert_eq!(parse_cpus("0,2-3, 9"), Ok(vec![0, 2, 3, 9]));
        for wrong in ["", "a", "3-1", "0-", "-1", "0,,1"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_may_be_in_thousands_and_millions() {
        assert_eq!(
            ["8000", "8k", "1.5M", "0.5"].map(|text| parse_rate(text).unwrap()),
            [8e3, 8e3, 1.5e6, 0.5]
        );
        for wrong in ["", "k", "8K", "8 thousand", "NaN", "inf", "1e999"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn measured_times_are_bounded() {
        assert!(parse_measured("99ms").is_err() && parse_measured("2h").is_err());
    }

    #[test]
    fn thresholds_are_percentages() {
        assert_eq!(parse_threshold("5%"), Ok(0.05));
        assert_eq!(parse_threshold("0.5"), Ok(0.005));
        for wrong in ["", "%", "-1%", "NaN", "2000%", "five"] {
            assert!(parse_threshold(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn servers_have_addresses_or_names() {
        assert_eq!(parse_connect("127.0.0.1:7000").unwrap().to_string(), "127.0.0.1:7000");
        let localhost = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 7000));
        // A minimal system has no /etc/hosts.
        assert_eq!(
            parse_connect("localhost:7000").is_ok_and(|found| found.ip().is_loopback()),
            localhost.is_ok()
        );
        for wrong in ["", "7000", "127.0.0.1", "localhost", "127.0.0.1:x"] {
            assert!(parse_connect(wrong).unwrap_err().contains("write ADDRESS:PORT"), "{wrong}");
        }
        assert!(parse_ip("10.0.0.1").is_ok() && parse_ip("10.0.0.1:7").is_err());
    }

    #[test]
    fn only_named_addresses_are_bound() {
        assert_eq!(parse_bind("7000").unwrap().to_string(), "127.0.0.1:7000");
        assert_eq!(parse_bind("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert!(parse_bind("0.0.0.0:7000").is_err() && parse_bind("[::]:7000").is_err());
        assert!(parse_bind("localhost").is_err());
    }

    #[test]
    fn messages_and_connections_are_bounded() {
        assert_eq!(parse_message_bytes("1048576"), Ok(1 << 20));
        assert!(parse_message_bytes("0").is_err() && parse_message_bytes("1048577").is_err());
        assert!(parse_connections("0").is_err() && parse_connections("256").is_ok());
        assert_eq!([parse_idle("0"), parse_idle(" 100000")], [Ok(0), Ok(100_000)]);
        assert!(["", "-1", "100001", "many"].iter().all(|text| parse_idle(text).is_err()));
    }

    proptest! {
        #[test]
        fn no_text_upsets_the_parsers(text in ".{0,12}") {
            let _ = (parse_duration(&text), parse_transactions(&text), parse_bind(&text));
        }
    }
}
