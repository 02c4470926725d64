//! Runs the server of README.md.

use crate::common::process::name_of;
use crate::common::{TIME_LIMIT, deaf_address};
use megapipe::DriverChoice;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;
use testkit::process::{Guard, example};

/// The running server; it ends with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    driver: DriverChoice,
    pub(crate) process: Guard,
    /// Reserves the port.
    _kept: OwnedFd,
}

impl Server {
    pub(crate) fn start(driver: DriverChoice) -> Server {
        Server::limited(driver, 1024)
    }

    /// Starts the server with that many descriptors.
    pub(crate) fn limited(driver: DriverChoice, descriptors: u64) -> Server {
        let (kept, address) = deaf_address(Ipv4Addr::LOCALHOST.into());
        let process = run(driver, address, descriptors);
        Server { address, driver, process, _kept: kept }
    }

    pub(crate) fn kill_and_restart(&mut self) {
        self.process.end(libc::SIGKILL);
        self.process = run(self.driver, self.address, 1024);
    }

    /// Returns the bytes of the process that are in memory.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.process.resident_bytes()
    }
}

/// Starts the program and waits until it answers. The listening socket of a killed server may still
/// take connections for a moment; they are reset.
fn run(driver: DriverChoice, address: SocketAddr, descriptors: u64) -> Guard {
    let mut command = Command::new(example("systemtests-channel", "first_server"));
    command.arg(address.to_string()).env("MEGAPIPE_DRIVER", name_of(driver));
    let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: descriptors };
    // SAFETY: the closure only makes a system call.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut process = Guard::spawn_piped(&mut command);
    let until = Instant::now() + TIME_LIMIT;
    while let Err(error) = answers(address) {
        assert!(process.0.try_wait().unwrap().is_none(), "the server has ended");
        assert!(Instant::now() < until, "the server does not answer: {error}");
        std::thread::yield_now();
    }
    process
}

fn answers(address: SocketAddr) -> std::io::Result<()> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(TIME_LIMIT))?;
    client.write_all(b"?")?;
    client.read_exact(&mut [0; 1])
}
