//! Runs nginx as a daemon, the only mode in which it replaces its binary.

use crate::nginx::{Nginx, program};
use crate::{TIME_LIMIT, send_signal};
use std::fs;
use std::io;
use std::process::{Command, Stdio};
use testkit::eventually;

/// A master process that is not a child of this process; dropping it ends it.
pub struct Daemon(u32);

impl Daemon {
    /// Ends the server and starts it again as a daemon.
    ///
    /// # Errors
    /// If nginx is not installed, or does not start; the error has its log.
    pub fn start(nginx: &mut Nginx) -> io::Result<Daemon> {
        nginx.signal(libc::SIGQUIT)?;
        nginx.wait()?;
        // By its absolute path: nginx restarts itself with the same path, without a search.
        let name = program("")?;
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = std::env::split_paths(&paths).map(|path| path.join(&name));
        let program = programs.find(|path| path.is_file());
        let program =
            program.ok_or_else(|| io::Error::other("there is no nginx on the PATH; install it"))?;
        let directory = nginx.directory().to_path_buf();
        let mut command = Command::new(program);
        command.arg("-p").arg(&directory).arg("-c").arg(directory.join("nginx.conf"));
        command.arg("-e").arg(directory.join("error.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !command.status()?.success() {
            let log = nginx.log();
            return Err(io::Error::other(format!("nginx does not start as a daemon: {log}")));
        }
        Daemon::await_master(nginx, None)
    }

    /// Replaces the running binary; returns the new master, which runs beside the old one.
    ///
    /// # Errors
    /// If there is no new master in time; the error has the log.
    pub fn upgrade(&self, nginx: &Nginx) -> io::Result<Daemon> {
        self.signal(libc::SIGUSR2)?;
        Daemon::await_master(nginx, Some(self.0))
    }

    /// Returns the master in the file of process ids, once the file exists and differs from
    /// `other`.
    fn await_master(nginx: &Nginx, other: Option<u32>) -> io::Result<Daemon> {
        let named = || -> Option<u32> {
            let text = fs::read_to_string(nginx.directory().join("nginx.pid")).ok()?;
            text.trim().parse().ok().filter(|id| Some(*id) != other)
        };
        let mut id = None;
        eventually(TIME_LIMIT, || {
            id = named();
            id.is_some()
        });
        let log = || io::Error::other(format!("there is no new master: {}", nginx.log()));
        id.map(Daemon).ok_or_else(log)
    }

    /// Its process id.
    pub fn process(&self) -> u32 {
        self.0
    }

    /// Sends the master a signal.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        send_signal(self.0, signal)
    }

    /// Returns whether it runs; false for a zombie.
    pub fn runs(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0));
        status.is_ok_and(|status| !status.contains("State:\tZ"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let asked = self.runs() && self.signal(libc::SIGTERM).is_ok();
        if asked && !eventually(TIME_LIMIT, || !self.runs()) {
            // It may have ended by now.
            let _ = self.signal(libc::SIGKILL);
        }
    }
}
