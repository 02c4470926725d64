//! Compiles and runs the server of README.md.

use crate::common::{TIME_LIMIT, deaf_address};
use megapipe::DriverChoice;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;
use testkit::process::Guard;

/// The address in README.md, which the test replaces by its own.
const ADDRESS: &str = "\"127.0.0.1:7000\"";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the server on the channel alone, the block of Rust with [`ADDRESS`].
fn code() -> String {
    let text = fs::read_to_string(repository().join("README.md")).unwrap();
    let section = text.split("## A first server").nth(1).expect("the section \"A first server\"");
    let mut blocks = section.split("```rust,no_run\n").filter_map(|rest| rest.split("```").next());
    let code = blocks.find(|block| block.contains(ADDRESS)).expect("a block with the address");
    assert!(code.contains("fn main()") && code.matches(ADDRESS).count() == 1, "{code}");
    code.replace(ADDRESS, "std::env::args().nth(1).unwrap()")
}

/// Compiles the code as a package of its own, as a reader does.
fn build() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let target = own.ancestors().nth(3).expect("target/PROFILE/deps/TEST");
    let package = target.join("first-server");
    fs::create_dir_all(package.join("src")).unwrap();
    let megapipe = env!("CARGO_MANIFEST_DIR");
    let manifest = format!(
        "[package]\nname = \"first-server\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nmegapipe = {{ path = {megapipe:?} }}\n\n[workspace]\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(package.join("src/main.rs"), code()).unwrap();
    fs::copy(repository().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline"]).current_dir(&package);
    cargo.env("CARGO_TARGET_DIR", package.join("target"));
    // A reader's build has no sanitizer.
    cargo.env_remove("RUSTFLAGS");
    let output = cargo.output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{cargo:?}: {complaints}");
    package.join("target/debug/first-server")
}

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

/// The running server; it ends with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    driver: DriverChoice,
    process: Guard,
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
        let path = format!("/proc/{}/status", self.process.0.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
    }
}

/// Starts the program and waits until it answers. The listening socket of a killed server may still
/// take connections for a moment; they are reset.
fn run(driver: DriverChoice, address: SocketAddr, descriptors: u64) -> Guard {
    let mut command = Command::new(program());
    let driver = if driver == DriverChoice::Uring { "uring" } else { "epoll" };
    command.arg(address.to_string()).env("MEGAPIPE_DRIVER", driver);
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
