//! Runs a virtual machine: QEMU with a kernel, the host's root file system over virtiofs, and a
//! disk.
//!
//! Both processes are killed when the value is dropped, and by the kernel when the thread that
//! started them ends for any reason.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::image::Kernel;
use super::protocol::{Report, Reports};
use crate::command::quietly;
use crate::setup;

/// The daemons of virtiofs: QEMU's own, in C, and its successor, in Rust, which has other options.
const DAEMONS: [(&str, &[&str]); 2] = [
    ("/usr/libexec/virtiofsd", &["--shared-dir=/", "--cache=always", "--sandbox=chroot"]),
    (
        "/usr/lib/qemu/virtiofsd",
        &["-o", "source=/", "-o", "cache=always", "-o", "sandbox=chroot", "-o", "log_level=err"],
    ),
];

/// The prefix of a command that ends with the thread that started it.
const DIES_WITH_US: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];

const DISK_BYTES: u64 = 4 << 30;
const MEMORY: &str = "3G";

/// Time between two readings of the guest's reports.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit for the daemon of virtiofs to listen.
const DAEMON_TIME_LIMIT: Duration = Duration::from_secs(10);

/// The accelerator of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    /// Returns QEMU's name of the accelerator.
    pub(super) fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }

    /// QEMU's options. The emulator of QEMU 7.2 fails with several threads and with newer CPUs.
    fn options(self) -> &'static [&'static str] {
        match self {
            Accelerator::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Accelerator::Tcg => &["-accel", "tcg,thread=single", "-cpu", "qemu64"],
        }
    }
}

/// A running machine.
pub(super) struct Machine {
    qemu: Child,
    daemon: Child,
    run: PathBuf,
    reports: Reports,
    read: u64,
}

impl Machine {
    /// Starts a kernel in `run`, a directory whose `job` has the guest's job.
    pub(super) fn start(
        kernel: &Kernel,
        accelerator: Accelerator,
        run: &Path,
    ) -> Result<Machine, String> {
        let initramfs = kernel.initramfs(run)?;
        disk(&run.join("disk.img"))?;
        // The daemon's lock is named after the socket's path. The path is relative, because its
        // length is limited.
        let socket = format!("{}-{}.sock", std::process::id(), kernel.version());
        let mut daemon = start_daemon(run, &socket)?;
        match start_qemu(kernel, accelerator, run, &socket, &initramfs) {
            Ok(qemu) => {
                let reports = Reports::default();
                Ok(Machine { qemu, daemon, run: run.to_path_buf(), reports, read: 0 })
            }
            Err(error) => {
                end(&mut daemon);
                Err(error)
            }
        }
    }

    /// Waits for reports until there are some, the machine has ended, or the time `until`. An empty
    /// list means the end.
    pub(super) fn reports(&mut self, until: Instant) -> Result<Vec<Report>, String> {
        loop {
            // Checked first, so that reports written before the end are still read.
            let ended = self.qemu.try_wait().map_err(|e| format!("cannot wait for QEMU: {e}"))?;
            let piece = self.new_output().map_err(|e| format!("cannot read the reports: {e}"))?;
            let reports = self.reports.feed(&piece);
            if !reports.is_empty() || ended.is_some() || Instant::now() >= until {
                return Ok(reports);
            }
            thread::sleep(LOOK);
        }
    }

    fn new_output(&mut self) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.run.join("reports"))?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(self.read))?;
        let mut piece = Vec::new();
        file.read_to_end(&mut piece)?;
        self.read += piece.len() as u64;
        Ok(piece)
    }

    /// Returns the output of the kernel's console.
    pub(super) fn console(&self) -> String {
        let bytes = fs::read(self.run.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns whether QEMU has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.qemu.try_wait(), Ok(None))
    }

    /// Waits for the guest to power off, so that its console output is complete.
    pub(super) fn wait(&mut self, time_limit: Duration) {
        let deadline = Instant::now() + time_limit;
        while Instant::now() < deadline && !self.has_ended() {
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&mut self.qemu);
        end(&mut self.daemon);
    }
}

/// Kills a process; does nothing if it has ended.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Creates an empty ext4 file system in a sparse file.
fn disk(path: &Path) -> Result<(), String> {
    let made = File::create(path).and_then(|file| file.set_len(DISK_BYTES));
    made.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    let mut format = Command::new("mkfs.ext4");
    quietly(format.env("PATH", setup::search_path()).args(["-q", "-F"]).arg(path), "mkfs.ext4")
}

fn mortal(program: &str) -> Command {
    let mut command = Command::new(DIES_WITH_US[0]);
    command.args(&DIES_WITH_US[1..]).arg(program).stdin(Stdio::null());
    command
}

/// Redirects a program's output to a file of the run.
fn logged(command: &mut Command, log: &Path) -> Result<(), String> {
    let unusable = |error| format!("cannot make {}: {error}", log.display());
    let file = File::create(log).map_err(unusable)?;
    command.stdout(file.try_clone().map_err(unusable)?).stderr(file);
    Ok(())
}

fn start_daemon(run: &Path, socket: &str) -> Result<Child, String> {
    let (program, options) =
        DAEMONS.iter().find(|(program, _)| Path::new(program).is_file()).ok_or(
            "virtiofsd is missing; install qemu-system-common, or virtiofsd where that is a \
             package of its own (cargo xtask setup)",
        )?;
    let mut command = mortal(program);
    command.arg(format!("--socket-path={socket}")).args(*options).current_dir(run);
    let log = run.join("virtiofsd.log");
    logged(&mut command, &log)?;
    let mut child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
    let deadline = Instant::now() + DAEMON_TIME_LIMIT;
    while !run.join(socket).exists() {
        let ended = matches!(child.try_wait(), Ok(Some(_)));
        if ended || Instant::now() >= deadline {
            end(&mut child);
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(format!(
                "{program} did not listen in time: {}; end other work, and run again",
                said.trim()
            ));
        }
        thread::sleep(LOOK);
    }
    Ok(child)
}

fn start_qemu(
    kernel: &Kernel,
    accelerator: Accelerator,
    run: &Path,
    socket: &str,
    initramfs: &Path,
) -> Result<Child, String> {
    let job = run.join("job");
    // A panic reboots the guest, and a reboot ends QEMU.
    let line = format!("console=ttyS0 loglevel=5 panic=-1 kernels.job={}", job.display());
    let mut command = mortal("qemu-system-x86_64");
    command.args(accelerator.options()).current_dir(run);
    command.args(["-smp", "2", "-m", MEMORY, "-nodefaults", "-display", "none", "-no-reboot"]);
    command.arg("-object");
    command.arg(format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"));
    command.args(["-numa", "node,memdev=memory"]);
    command.arg("-chardev").arg(format!("socket,id=files,path={socket}"));
    command.args(["-device", "vhost-user-fs-pci,chardev=files,tag=host"]);
    command.args(["-drive", "file=disk.img,format=raw,if=virtio,cache=unsafe"]);
    command.args(["-serial", "file:console", "-serial", "file:reports"]);
    command.arg("-kernel").arg(&kernel.vmlinuz).arg("-initrd").arg(initramfs);
    command.args(["-append", &line]);
    let reports = run.join("reports");
    File::create(&reports).map_err(|error| format!("{}: {error}", reports.display()))?;
    logged(&mut command, &run.join("qemu.log"))?;
    command.spawn().map_err(|error| format!("cannot start QEMU: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_dies_with_the_thread_that_has_started_it() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let start = move || {
            let mut sleeper = mortal("sleep");
            logged(sleeper.arg("600"), &log).unwrap();
            sleeper.spawn().unwrap()
        };
        // setpriv sets the signal before it executes the program; the process's name shows when.
        let child = thread::spawn(move || {
            let child = start();
            let name = || fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
            while name() != "sleep\n" {
                thread::sleep(LOOK);
            }
            child
        });
        let mut child = child.join().unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
