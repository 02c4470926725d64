//! Opening, closing, dying, and who may.

use crate::cable::{Cable, INTERFACE, OURS, PATIENCE, connect};
use crate::{KERNELS_PORT, PORT, open, refuse, small};
use mtcp::device::Device;
use mtcp::device::xdp::{AttachMode, Claim, XdpError, XdpOptions, XdpPort};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;
use testkit::process::Guard;
use testkit::skip;

/// Capabilities by their numbers, as capabilities(7) has them.
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
/// CAP_PERFMON, which older kernels' verifiers want as well.
const PERFMON: u32 = 38;

#[test]
fn a_port_can_be_opened_again_at_once() {
    let cable = Cable::new(1);
    for attach in [AttachMode::Native, AttachMode::Generic] {
        for _ in 0..20 {
            let mut port = open(&cable, &small(attach));
            port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
            refuse(&cable, &mut port, SocketAddr::new(OURS[0], PORT), true);
        }
    }
}

#[test]
fn an_interface_has_one_owner() {
    let cable = Cable::new(1);
    for first in [AttachMode::Native, AttachMode::Generic] {
        let _port = open(&cable, &small(first));
        for second in [AttachMode::Auto, AttachMode::Native, AttachMode::Generic] {
            let error = cable.ours.run(|| XdpPort::open(INTERFACE, 1, &small(second)));
            let error = error.expect_err("the interface has a program");
            assert!(matches!(error, XdpError::ProgramAttached { .. }), "{error}");
            assert!(error.to_string().contains("ip link set ours xdp off"));
        }
    }
}

#[test]
fn an_interface_that_goes_away_is_an_error() {
    let cable = Cable::new(1);
    let mut port = open(&cable, &small(AttachMode::Auto));
    cable.ours.ip("link del ours");
    let device = &mut port.devices[0];
    let deadline = Instant::now() + PATIENCE;
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

/// Set for the child, to how it attaches.
const VICTIM: &str = "MEGAPIPE_TEST_XDP_VICTIM";
const READY: &str = "the victim has claimed its port";

/// A process that has opened the port, claimed TCP, and does nothing more. It is this program
/// again, because a mere fork would hold what the other tests have open.
fn victim(attach: AttachMode) -> Guard {
    let test = "lifetime::a_crash_leaves_the_interface_as_it_was_found";
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).env(VICTIM, format!("{attach:?}"));
    let mut victim = Guard::spawn(command.stdout(Stdio::piped()));
    let output = BufReader::new(victim.output());
    let ready = output.lines().map_while(Result::ok).any(|line| line.contains(READY));
    assert!(ready, "the child has opened the port");
    victim
}

/// What the child does.
fn await_death(attach: &str) {
    let attach = if attach == "Native" { AttachMode::Native } else { AttachMode::Generic };
    let port = XdpPort::open(INTERFACE, 1, &small(attach)).expect("the port opens");
    port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
    println!("{READY}");
    std::thread::sleep(PATIENCE * 3);
}

#[test]
fn a_crash_leaves_the_interface_as_it_was_found() {
    if let Ok(attach) = std::env::var(VICTIM) {
        return await_death(&attach);
    }
    for attach in [AttachMode::Native, AttachMode::Generic] {
        let cable = Cable::new(1);
        let before = cable.show();
        assert!(!before.contains("xdp"));
        let victim = cable.ours.run(|| victim(attach));
        assert!(cable.show().contains("xdp"));
        // Nobody answers: neither the child nor the kernel.
        let to = SocketAddr::new(OURS[0], PORT);
        let silence = std::time::Duration::from_millis(100);
        let error = cable.theirs.run(|| std::net::TcpStream::connect_timeout(&to, silence));
        assert_eq!(error.expect_err("nobody answers").kind(), ErrorKind::TimedOut);

        drop(victim);
        assert_eq!(cable.show(), before);
        let error = cable.theirs.run(|| connect(to)).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "the kernel answers");
        cable.assert_kernels_talk(KERNELS_PORT);
        // And it can be had again, although the kernel may still be cleaning up.
        let mut port = open(&cable, &small(attach));
        port.ownership.claim(&Claim::Tcp(OURS[0])).expect("there is room");
        refuse(&cable, &mut port, SocketAddr::new(OURS[0], PORT), false);
    }
}

/// Leaves the calling thread these capabilities only.
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
    // SAFETY: the header and the sets are as version 3 has them; only this thread changes.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) };
    assert_eq!(result, 0, "capabilities can be dropped");
}

#[test]
fn three_capabilities_are_needed_and_enough() {
    let all = NEEDED.iter().fold(0_u64, |all, (bit, _)| all | 1 << bit);
    let cable = Cable::new(1);
    let open_with = |kept: u64| {
        cable.ours.run(|| {
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
    refuse(&cable, &mut port, SocketAddr::new(OURS[0], PORT), true);
}

#[test]
fn memory_that_may_not_be_locked_is_named() {
    let all = NEEDED.iter().fold(0_u64, |all, (bit, _)| all | 1 << bit);
    let cable = Cable::new(1);
    let huge =
        XdpOptions { receive_frames: 32_768, transmit_frames: 32_768, ..small(AttachMode::Auto) };
    let error = cable.ours.run(|| {
        keep_capabilities(all | 1 << PERFMON);
        XdpPort::open(INTERFACE, 1, &huge)
    });
    match error {
        Err(error @ XdpError::LockedMemory { .. }) => {
            assert!(error.to_string().contains("ulimit -l"), "{error}");
        }
        // The limit is that of whoever runs the test.
        Ok(port) => {
            drop(port);
            assert!(lock_limit() >= 65_536 * 4096);
        }
        Err(error) => panic!("{error}"),
    }
    assert!(!cable.show().contains("xdp"), "nothing stays attached");
}

fn lock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for one limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) }, 0);
    limit.rlim_cur
}
