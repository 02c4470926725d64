//! Reads limits of the process and the system, and judges whether they suffice for a server.

use super::Limit;
use crate::config::Config;
use crate::sys::resource_limit;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// The number of connections for which the limits are judged.
pub const CONNECTIONS: u64 = 10_000;

/// Descriptors that are not connections: listeners, files, logs, libraries.
const SPARE_FILES: u64 = 256;

/// Connections that may arrive in one burst.
const BURST: u64 = 4096;

pub(super) fn limits() -> Vec<Limit> {
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    vec![
        open_files(resource(libc::RLIMIT_NOFILE)),
        locked_memory(resource(libc::RLIMIT_MEMLOCK), cpus),
        accept_queue(number("net/core/somaxconn")),
        half_open(number("net/ipv4/tcp_max_syn_backlog"), number("net/ipv4/tcp_syncookies")),
        ports(&text("net/ipv4/ip_local_port_range"), &text("net/ipv4/ip_local_reserved_ports")),
        all_files(&text("fs/file-nr")),
        congestion_control(default_congestion_control().ok()),
    ]
}

/// Returns the soft and the hard limit; `RLIM_INFINITY` for none.
pub(super) fn resource(which: libc::__rlimit_resource_t) -> Option<(u64, u64)> {
    resource_limit(which).ok().map(|limit| (limit.rlim_cur, limit.rlim_max))
}

fn text(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned()
}

fn number(name: &str) -> Option<u64> {
    text(name).parse().ok()
}

fn count(value: u64) -> String {
    if value == libc::RLIM_INFINITY { "unlimited".into() } else { value.to_string() }
}

/// Formats a number of bytes with its unit.
pub(super) fn bytes(value: u64) -> String {
    match value {
        libc::RLIM_INFINITY => "unlimited bytes".into(),
        value if value >= 1 << 20 => format!("{} MiB", value >> 20),
        value => format!("{} KiB", value >> 10),
    }
}

const UNKNOWN: &str = "unknown";

fn open_files(limit: Option<(u64, u64)>) -> Limit {
    let needed = CONNECTIONS + SPARE_FILES;
    let remedy = limit.filter(|(soft, _)| *soft < needed).map(|(_, hard)| {
        if hard >= needed {
            format!("ulimit -n {}", hard.min(65_536))
        } else {
            "as root: ulimit -Hn 65536 && ulimit -Sn 65536 (in a systemd unit: LimitNOFILE=65536)"
                .into()
        }
    });
    Limit {
        name: "open files (RLIMIT_NOFILE)",
        value: match limit {
            Some((soft, hard)) if soft < hard => {
                format!("{}, can be raised to {}", count(soft), count(hard))
            }
            Some((soft, _)) => count(soft),
            None => UNKNOWN.into(),
        },
        suffices: limit.map(|(soft, _)| soft >= needed),
        used_for: "sockets of a process, lightweight ones too",
        remedy,
    }
}

fn locked_memory(limit: Option<(u64, u64)>, channels: u64) -> Limit {
    let needed = Config::default().locked_bytes() as u64 * channels;
    let short = limit.filter(|(soft, _)| *soft < needed);
    Limit {
        name: "locked memory (RLIMIT_MEMLOCK)",
        value: limit.map_or(UNKNOWN.into(), |(soft, _)| bytes(soft)),
        suffices: limit.map(|(soft, _)| soft >= needed),
        used_for: "the queues of the rings of unprivileged processes",
        remedy: short.map(|(_, hard)| {
            let command = format!("ulimit -l {}", needed >> 10);
            if hard >= needed { command } else { format!("as root: {command}") }
        }),
    }
}

fn accept_queue(value: Option<u64>) -> Limit {
    Limit {
        name: "net.core.somaxconn",
        value: value.map_or(UNKNOWN.into(), count),
        suffices: value.map(|value| value >= BURST),
        used_for: "connections that wait to be accepted, per listener",
        remedy: value
            .filter(|value| *value < BURST)
            .map(|_| format!("sysctl -w net.core.somaxconn={BURST}")),
    }
}

fn half_open(value: Option<u64>, cookies: Option<u64>) -> Limit {
    // With SYN cookies the kernel continues to accept when the backlog is full.
    let suffices = value.map(|value| value >= BURST || cookies.is_some_and(|mode| mode > 0));
    let with = if cookies.is_some_and(|mode| mode > 0) { ", then SYN cookies" } else { "" };
    Limit {
        name: "net.ipv4.tcp_max_syn_backlog",
        value: value.map_or(UNKNOWN.into(), |value| format!("{value}{with}")),
        suffices,
        used_for: "connections in the middle of their handshake",
        remedy: (suffices == Some(false))
            .then(|| format!("sysctl -w net.ipv4.tcp_max_syn_backlog={BURST}")),
    }
}

fn ports(range: &str, reserved: &str) -> Limit {
    let count = port_count(range).map(|count| count.saturating_sub(reserved_count(reserved)));
    Limit {
        name: "net.ipv4.ip_local_port_range",
        value: match count {
            Some(count) => {
                let range = range.split_whitespace().collect::<Vec<_>>().join("-");
                format!("{range}: {count} connections to one address")
            }
            None => UNKNOWN.into(),
        },
        suffices: count.map(|count| count >= CONNECTIONS),
        used_for: "connections of a client to one address and port",
        remedy: count
            .filter(|count| *count < CONNECTIONS)
            .map(|_| "sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"".into()),
    }
}

fn port_count(range: &str) -> Option<u64> {
    let mut ends = range.split_whitespace().map(|end| end.parse::<u64>().ok());
    let (low, high) = (ends.next()??, ends.next()??);
    Some((high + 1).saturating_sub(low))
}

/// Counts the ports in a list such as "8080,9000-9010". Ports outside the range count, too, because
/// they hardly matter.
fn reserved_count(list: &str) -> u64 {
    let ends = |part: &str| match part.split_once('-') {
        Some((low, high)) => port_count(&format!("{low} {high}")),
        None => part.parse::<u64>().ok().map(|_| 1),
    };
    list.split(',').filter_map(ends).sum()
}

fn all_files(file_nr: &str) -> Limit {
    // The fields are: in use, allocated but unused, and the maximum; see proc_sys_fs(5).
    let mut fields = file_nr.split_whitespace().map(|field| field.parse::<u64>().ok());
    let (used, limit) = (fields.next().flatten(), fields.nth(1).flatten());
    let free = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
    // A connection on the loopback interface has two ends.
    let needed = 2 * CONNECTIONS + SPARE_FILES;
    Limit {
        name: "fs.file-max",
        value: match limit.zip(used) {
            Some((limit, used)) => format!("{limit}, of which {used} are in use"),
            None => UNKNOWN.into(),
        },
        suffices: free.map(|free| free >= needed),
        used_for: "open files of the whole system",
        remedy: free.filter(|free| *free < needed).map(|_| "sysctl -w fs.file-max=1000000".into()),
    }
}

fn default_congestion_control() -> io::Result<String> {
    let socket = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let mut name = [0_u8; 16];
    crate::sys::get_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut name)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

fn congestion_control(name: Option<String>) -> Limit {
    let paces = name.as_deref().map(|name| name.starts_with("bbr"));
    Limit {
        name: "net.ipv4.tcp_congestion_control",
        value: match &name {
            Some(name) if paces == Some(true) => {
                format!("{name}: its pacing distorts benchmarks on loopback")
            }
            Some(name) => name.clone(),
            None => UNKNOWN.into(),
        },
        suffices: paces.map(|paces| !paces),
        used_for: "how fast TCP sends",
        remedy: (paces == Some(true)).then(|| {
            "for benchmarks: set TCP_CONGESTION to cubic on the sockets, or \
             sysctl -w net.ipv4.tcp_congestion_control=cubic"
                .into()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_can_be_raised_by_oneself_or_by_root() {
        assert_eq!(open_files(Some((20_000, 20_000))).suffices, Some(true));
        let low = open_files(Some((1024, 1 << 20)));
        assert_eq!((low.suffices, low.remedy.as_deref()), (Some(false), Some("ulimit -n 65536")));
        let low = open_files(Some((1024, 4096)));
        assert!(low.remedy.unwrap().starts_with("as root: ulimit -Hn 65536"));
        let none = open_files(Some((libc::RLIM_INFINITY, libc::RLIM_INFINITY)));
        assert_eq!((none.suffices, none.remedy), (Some(true), None));
        assert!(none.value.starts_with("unlimited"));
        assert_eq!(open_files(None).suffices, None);
    }

    #[test]
    fn locked_memory_is_counted_per_channel() {
        assert_eq!(locked_memory(Some((8 << 20, 8 << 20)), 78).suffices, Some(true));
        assert_eq!(locked_memory(Some((8 << 20, 8 << 20)), 79).suffices, Some(false));
        let short = locked_memory(Some((64 << 10, 64 << 10)), 2);
        assert_eq!(short.remedy.as_deref(), Some("as root: ulimit -l 208"));
        assert_eq!(short.value, "64 KiB");
    }

    #[test]
    fn queues_and_ports() {
        let short = accept_queue(Some(128));
        assert_eq!(short.remedy.as_deref(), Some("sysctl -w net.core.somaxconn=4096"));
        assert_eq!(half_open(Some(512), Some(1)).suffices, Some(true));
        let short = half_open(Some(512), Some(0));
        assert_eq!(short.remedy.as_deref(), Some("sysctl -w net.ipv4.tcp_max_syn_backlog=4096"));
        let usual = ports("32768\t60999", "");
        assert_eq!(usual.suffices, Some(true));
        assert_eq!(usual.value, "32768-60999: 28232 connections to one address");
        assert_eq!(ports("60000 60999", "").suffices, Some(false));
        assert_eq!(ports("", "").suffices, None);
        assert_eq!(reserved_count("8080,9000-9010"), 12);
        assert_eq!(reserved_count(""), 0);
    }

    #[test]
    fn files_of_the_system_and_pacing() {
        assert_eq!(all_files("484\t0\t2466170").suffices, Some(true));
        assert_eq!(all_files("484 0 9223372036854775807").suffices, Some(true));
        assert!(all_files("484 0 8192").remedy.unwrap().starts_with("sysctl -w fs.file-max"));
        assert_eq!(all_files("garbage").suffices, None);
        let paced = congestion_control(Some("bbr".into()));
        assert!(paced.suffices == Some(false) && paced.remedy.unwrap().contains("cubic"));
        assert_eq!(congestion_control(Some("cubic".into())).suffices, Some(true));
    }
}
