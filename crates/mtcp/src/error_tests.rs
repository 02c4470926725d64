//! Tests that the texts of all set-up errors name cause and remedy.

use crate::device::packet::PacketError;
use crate::device::tap::TapError;
use crate::device::xdp::XdpError;
use crate::network::NetworkError;
use crate::stat::{AskError, StatError};
use crate::{ConfigError, EngineFailure, StartError};
use mtcp_proto::OutOfRange;
use std::io;
use sys::seccomp::SeccompError;
use testkit::assert_texts;

fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EPERM)
}

#[test]
fn errors_of_the_configuration() {
    assert_texts!(ConfigError;
        ConfigError::NoFile => ConfigError::NoFile, ["no configuration", "set MTCP_CONFIG"];
        ConfigError::Read { .. } => ConfigError::Read { path: "a.toml".into(), source: refused() },
            ["cannot read the configuration a.toml", "name a file", "--config or MTCP_CONFIG"];
        ConfigError::Syntax { .. } =>
            ConfigError::Syntax { path: "a.toml".into(), message: "unknown field `core`".into() },
            ["a.toml: unknown field `core`", "docs/mtcp.toml shows"];
        ConfigError::Range { .. } => ConfigError::Range {
            path: "a.toml".into(),
            line: 5,
            setting: "tcp.mtu".into(),
            value: "100".into(),
            range: "576 to 65535".into(),
        }, ["a.toml:5: tcp.mtu is 100", "it must be 576 to 65535"];
    );
}

#[test]
fn failures_of_an_engine() {
    let text = "Input/output error";
    assert_texts!(EngineFailure;
        EngineFailure::Receive(_) => EngineFailure::Receive(libc::EIO), ["receive", text];
        EngineFailure::Send(_) => EngineFailure::Send(libc::EIO), ["send", text];
        EngineFailure::Watch(_) => EngineFailure::Watch(libc::EIO), ["the interface", text];
        EngineFailure::Wait(_) => EngineFailure::Wait(libc::EIO), ["wait", text];
        EngineFailure::Panicked => EngineFailure::Panicked, ["panicked", "standard error"];
    );
}

#[test]
fn errors_of_a_start() {
    let system = || StartError::System { what: "start a thread", source: refused() };
    let mtu = OutOfRange { setting: "mtu", value: 1, least: 576, most: 65_535 };
    let capture = || StartError::Capture { path: "/no/p".into(), source: refused() };
    assert_texts!(StartError;
        StartError::NoCore { .. } => StartError::NoCore { core: 2, cores: 2 },
            ["no core 2", "2 are configured", "raise engine.cores"];
        StartError::Taken(_) => StartError::Taken(1), ["core 1", "take each core's context once"];
        StartError::Devices { .. } => StartError::Devices { devices: 1, cores: 2 },
            ["1 devices", "2 cores", "set engine.cores to 1"];
        StartError::Memory => StartError::Memory, ["a memory device", "another device.kind"];
        StartError::Packet(_) => PacketError::Open(refused()).into(), ["run as root"];
        StartError::Tap(_) => TapError::Open(refused()).into(), ["run as root"];
        StartError::Xdp(_) => XdpError::NotEthernet { interface: "lo".into() }.into(), ["lo"];
        StartError::Network(_) => no_interface().into(), ["`ip link`"];
        StartError::Stat(_) => StatError::Thread(refused()).into(), ["raise `ulimit -u`"];
        StartError::Capture { .. } => capture(),
            ["capture.file /no/p", "name a new file", "that is no link"];
        StartError::Tcp(_) => StartError::Tcp(mtcp_proto::Error::Config(mtu)),
            ["mtu is 1", "docs/mtcp.toml"];
        StartError::Capabilities(_) => StartError::Capabilities(refused()),
            ["permit capset(2)", "--complete"];
        StartError::Seccomp(_) => StartError::Seccomp(SeccompError::Thread(7)),
            ["thread 7", "--no-seccomp"];
        StartError::System { .. } => system(), ["cannot start a thread", "raise `ulimit -n`"];
    );
}

#[test]
fn errors_of_af_xdp() {
    let interface = || "eth0".to_owned();
    assert_texts!(XdpError;
        XdpError::NoInterface { .. } =>
            XdpError::NoInterface { interface: interface(), source: refused() },
            ["no interface eth0", "name one that `ip link` lists"];
        XdpError::NotEthernet { .. } => XdpError::NotEthernet { interface: interface() },
            ["eth0 is not an Ethernet interface", "name another one"];
        XdpError::Queues { .. } =>
            XdpError::Queues { interface: interface(), present: 1, asked: 4 },
            ["eth0 has 1 receive queues", "4 were requested", "ethtool -L eth0 combined 4"];
        XdpError::Privilege { .. } => XdpError::Privilege {
            action: "create a BPF map",
            missing: "missing CAP_BPF".into(),
            grant: "cap_bpf",
            source: refused(),
        }, ["cannot create a BPF map", "missing CAP_BPF", "run as root", "setcap cap_bpf+ep"];
        XdpError::ProgramAttached { .. } =>
            XdpError::ProgramAttached { interface: interface(), source: refused() },
            ["is attached to eth0", "end its process", "ip link set eth0 xdp off"];
        XdpError::QueueBusy { .. } =>
            XdpError::QueueBusy { interface: interface(), queue: 3, source: refused() },
            ["queue 3 of eth0", "end the process"];
        XdpError::Verifier { .. } => XdpError::Verifier { source: refused(), log: "0: r1".into() },
            ["rejects the XDP program", "device.kind \"packet\"", "0: r1"];
        XdpError::LockedMemory { .. } =>
            XdpError::LockedMemory { bytes: 4096, source: refused() },
            ["cannot lock 4096 bytes", "raise `ulimit -l`"];
        XdpError::TooManyClaims { .. } => XdpError::TooManyClaims { source: refused() },
            ["no room for another claim", "raise `max_claims`"];
        XdpError::System { .. } =>
            XdpError::System { action: "bind", source: refused(), remedy: "lower the MTU" },
            ["cannot bind", "lower the MTU"];
        XdpError::LongFrames { .. } =>
            XdpError::LongFrames { interface: interface(), frame: 9000, room: 2048 },
            ["frames of eth0", "9000 bytes", "of 2048", "lower the interface's MTU"];
        XdpError::Option(_) => XdpError::Option("max_claims must be at least 1"),
            ["out of range", "max_claims must be at least 1"];
    );
}

#[test]
fn errors_of_tap_and_packet_sockets() {
    let name = || "mtcp0".to_owned();
    assert_texts!(TapError;
        TapError::Options(_) => TapError::Options("queues must be 1 to 256"),
            ["queues must be 1 to 256", "correct device.queues"];
        TapError::Random(_) => TapError::Random(refused()), ["permit getrandom(2)"];
        TapError::Open(_) => TapError::Open(refused()),
            ["cannot open /dev/net/tun", "run as root", "modprobe tun"];
        TapError::Taken { .. } => TapError::Taken { name: name(), source: refused() },
            ["the interface mtcp0 exists", "ip link delete mtcp0"];
        TapError::Create { .. } => TapError::Create { name: name(), source: refused() },
            ["cannot make the interface mtcp0", "CAP_NET_ADMIN", "run as root"];
        TapError::Configure { .. } =>
            TapError::Configure { action: "set the offloads", name: name(), source: refused() },
            ["cannot set the offloads of the interface mtcp0", "CONFIG_TUN"];
    );
    assert_texts!(PacketError;
        PacketError::Options(_) => PacketError::Options("queues must be 1 to 256"),
            ["queues must be 1 to 256", "correct the section [device]"];
        PacketError::Interface { .. } => PacketError::Interface { name: name(), source: refused() },
            ["cannot open the interface mtcp0", "name one that `ip link` shows"];
        PacketError::Open(_) => PacketError::Open(refused()), ["CAP_NET_RAW", "run as root"];
        PacketError::Configure { .. } =>
            PacketError::Configure { action: "bind", source: refused() },
            ["cannot bind a packet socket", "use Linux 4.20 or later"];
    );
}

#[test]
fn errors_of_the_network_and_of_statistics() {
    let name = || "/run/s".to_owned();
    assert_texts!(NetworkError;
        NetworkError::Interface { .. } => no_interface(),
            ["cannot use the interface eth7", "name one that `ip link` shows"];
        NetworkError::Netlink { .. } =>
            NetworkError::Netlink { action: "watch an interface", source: refused() },
            ["cannot watch an interface by netlink", "permit AF_NETLINK"];
    );
    assert_texts!(StatError;
        StatError::Socket { .. } => StatError::Socket { name: name(), source: refused() },
            ["cannot listen on the statistics socket /run/s", "set stat.socket"];
        StatError::Thread(_) => StatError::Thread(refused()), ["raise `ulimit -u`"];
        StatError::Capabilities(_) => StatError::Capabilities(refused()),
            ["permit capset(2)", "stat.enabled"];
    );
    assert_texts!(AskError;
        AskError::Socket { .. } => AskError::Socket { name: name(), source: refused() },
            ["cannot ask /run/s", "check that its process runs"];
        AskError::Foreign { .. } => AskError::Foreign { name: name(), user: 12_345 },
            ["/run/s belongs to user 12345", "are believed", "as that user, or add --foreign"];
        AskError::Answer { .. } => AskError::Answer { name: name(), answer: "HTTP".into() },
            ["/run/s is no statistics socket", "HTTP", "name another one"];
    );
}

fn no_interface() -> NetworkError {
    NetworkError::Interface { name: "eth7".into(), source: refused() }
}
