//! Tests opening, closing, the end of the process, and rights.

use super::veth_pair::{INTERFACE, OURS, TIME_LIMIT, VethPair, connect};
use super::{KERNELS_PORT, PORT, open, refuse, small};
use mtcp::device::Device;
use mtcp::device::xdp::{AttachMode, Claim, XdpError, XdpOptions, XdpPort};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;
use testkit::process::Guard;
use testkit::skip;

/// Capabilities by their numbers in capabilities(7).
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
/// CAP_PERFMON, which verifiers of older kernels also require.
const PERFMON: u32 = 38;

#[test]
fn a_port_can_be_opened_again_at_once() {
    let veth_pair = VethPair::new(1);
    for attach in [AttachMode::Native, AttachMode::Generic] {
        for _ in 0..20 {
            let mut port = open(&veth_pair, &small(attach));
            port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
            refuse(&veth_pair, &mut port, SocketAddr::new(OURS[0], PORT), true);
        }
    }
}

#[test]
fn an_interface_has_one_owner() {
    let veth_pair = VethPair::new(1);
    for first in [AttachMode::Native, AttachMode::Generic] {
        let _port = open(&veth_pair, &small(first));
        for second in [AttachMode::Auto, AttachMode::Native, AttachMode::Generic] {
            let error = veth_pair.ours.run(|| XdpPort::open(INTERFACE, 1, &small(second)));
            let error = error.expect_err("the interface has a program");
            assert!(matches!(error, XdpError::ProgramAttached { .. }), "{error}");
            assert!(error.to_string().contains("ip link set ours xdp off"));
        }
    }
}

#[test]
fn an_interface_that_goes_away_is_an_error() {
    let veth_pair = VethPair::new(1);
    let mut port = open(&veth_pair, &small(AttachMode::Auto));
    veth_pair.ours.ip("link del ours");
    let device = &mut port.devices[0];
    let deadline = Instant::now() + TIME_LIMIT;
    let error = loop {
        match device.receive(1, &mut |_, _| {}) {
            Err(error) => break error,
            Ok(count) => assert_eq!(count, 0),
        }
        assert!(Instant::now() < deadline, "the device never notices");
    };
    let gone =
        |error: &std::io::Error| matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENETDOWN));
    assert!(gone(&error), "{error}");
    assert!(gone(&device.receive(1, &mut |_, _| {}).expect_err("it stays so")));
    assert!(gone(&device.flush().expect_err("nothing can be sent")));
}

/// The environment variable that tells the child how to attach.
const VICTIM: &str = "MEGAPIPE_TEST_XDP_VICTIM";
const READY: &str = "the victim has claimed its port";

/// Starts a process that has opened the port, claimed TCP, and then sleeps. It runs this program
/// again, because a forked child would keep the other tests' descriptors open.
fn victim(attach: AttachMode) -> Guard {
    let test = "xdp::lifetime::a_crash_leaves_the_interface_as_it_was_found";
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).env(VICTIM, format!("{attach:?}"));
    let mut victim = Guard::spawn(command.stdout(Stdio::piped()));
    let output = BufReader::new(victim.output());
    let ready = output.lines().map_while(Result::ok).any(|line| line.contains(READY));
    assert!(ready, "the child has opened the port");
    victim
}

/// Runs the child.
fn await_death(attach: &str) {
    let attach = if attach == "Native" { AttachMode::Native } else { AttachMode::Generic };
    let port = XdpPort::open(INTERFACE, 1, &small(attach)).expect("the port opens");
    port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
    println!("{READY}");
    std::thread::sleep(TIME_LIMIT * 3);
}

#[test]
fn a_crash_leaves_the_interface_as_it_was_found() {
    if let Ok(attach) = std::env::var(VICTIM) {
        return await_death(&attach);
    }
    for attach in [AttachMode::Native, AttachMode::Generic] {
        let veth_pair = VethPair::new(1);
        let before = veth_pair.show();
        assert!(!before.contains("xdp"));
        let victim = veth_pair.ours.run(|| victim(attach));
        assert!(veth_pair.show().contains("xdp"));
        // Neither the child nor the kernel answers.
        let to = SocketAddr::new(OURS[0], PORT);
        let silence = std::time::Duration::from_millis(100);
        let error = veth_pair.theirs.run(|| std::net::TcpStream::connect_timeout(&to, silence));
        assert_eq!(error.expect_err("nobody answers").kind(), ErrorKind::TimedOut);

        drop(victim);
        assert_eq!(veth_pair.show(), before);
        let error = veth_pair.theirs.run(|| connect(to)).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "the kernel answers");
        veth_pair.assert_kernels_talk(KERNELS_PORT);
        // The port can be opened again, although the kernel may still be cleaning up.
        let mut port = open(&veth_pair, &small(attach));
        port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
        refuse(&veth_pair, &mut port, SocketAddr::new(OURS[0], PORT), false);
    }
}

/// Restricts the calling thread to these capabilities.
fn keep_capabilities(kept: u64) {
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        process: i32,
    }
    let header = Header { version: VERSION_3, process: 0 };
    // Effective, permitted, inheritable; the lower halves, then the upper ones.
    let half = |shift: u32| [(kept >> shift) as u32, (kept >> shift) as u32, 0];
    let sets = [half(0), half(32)];
    // SAFETY: the header and the sets have the format of version 3; only this thread changes.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) };
    assert_eq!(result, 0, "capabilities can be dropped");
}

#[test]
fn three_capabilities_are_needed_and_enough() {
    let all = NEEDED.iter().fold(0_u64, |all, (bit, _)| all | 1 << bit);
    let veth_pair = VethPair::new(1);
    let open_with = |kept: u64| {
        veth_pair.ours.run(|| {
            keep_capabilities(kept);
            XdpPort::open(INTERFACE, 1, &small(AttachMode::Auto))
        })
    };
    for (bit, name) in NEEDED {
        let error = open_with(all & !(1 << bit)).expect_err("a capability is missing");
        assert!(matches!(error, XdpError::Privilege { .. }), "without {name}: {error}");
        let said = error.to_string();
        assert!(said.contains(&format!("missing {name}:")), "{said}");
        assert!(said.contains("setcap cap_net_raw,cap_net_admin,cap_bpf+ep"), "{said}");
    }
    let mut port = match open_with(all) {
        Err(XdpError::Privilege { missing, .. }) if missing.contains("CAP_PERFMON") => {
            skip("AF_XDP by three capabilities", "this kernel's verifier wants CAP_PERFMON, too");
            open_with(all | 1 << PERFMON).expect("these four are enough")
        }
        opened => opened.expect("these three are enough"),
    };
    port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
    refuse(&veth_pair, &mut port, SocketAddr::new(OURS[0], PORT), true);
}

#[test]
fn memory_that_may_not_be_locked_is_named() {
    let all = NEEDED.iter().fold(0_u64, |all, (bit, _)| all | 1 << bit);
    let veth_pair = VethPair::new(1);
    let huge =
        XdpOptions { receive_frames: 32_768, transmit_frames: 32_768, ..small(AttachMode::Auto) };
    let error = veth_pair.ours.run(|| {
        keep_capabilities(all | 1 << PERFMON);
        XdpPort::open(INTERFACE, 1, &huge)
    });
    match error {
        Err(error @ XdpError::LockedMemory { .. }) => {
            assert!(error.to_string().contains("ulimit -l"), "{error}");
        }
        // The limit is that of the user who runs the test.
        Ok(port) => {
            drop(port);
            assert!(lock_limit() >= 65_536 * 4096);
        }
        Err(error) => panic!("{error}"),
    }
    assert!(!veth_pair.show().contains("xdp"), "nothing stays attached");
}

fn lock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer has room for one limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) }, 0);
    limit.rlim_cur
}
