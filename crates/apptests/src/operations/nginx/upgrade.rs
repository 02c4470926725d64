//! Replacing the binary on the fly: `USR2`, `WINCH`, `QUIT`.

use super::super::Extent;
use super::super::load::{await_more, fault, serves, under_load, until};
use super::super::outcome::Figures;
use super::no_complaints;
use crate::nginx::{Nginx, Setup, workers_of};
use crate::{PATIENCE, eventually, send_signal};
use std::fs;
use std::io;
use std::process::{Command, Stdio};

/// A master that is nobody's child, ended with the scenario.
struct Daemon(u32);

impl Daemon {
    /// The one that the file of process ids names, once it is there and not this.
    fn of(nginx: &Nginx, other: Option<u32>) -> Option<Daemon> {
        let text = fs::read_to_string(nginx.directory().join("nginx.pid")).ok()?;
        let id = text.trim().parse().ok()?;
        // A daemon that is dropped is ended, so none may be made in vain.
        (Some(id) != other).then(|| Daemon(id))
    }

    /// Not counting one that has not been waited for yet.
    fn runs(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0));
        status.is_ok_and(|status| !status.contains("State:\tZ"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let asked = self.runs() && send_signal(self.0, libc::SIGTERM).is_ok();
        if asked && !eventually(PATIENCE, || !self.runs()) {
            // It may have ended by now.
            let _ = send_signal(self.0, libc::SIGKILL);
        }
    }
}

/// Ends the server and starts it again as a daemon: nginx does not replace its binary otherwise.
fn as_daemon(nginx: &mut Nginx) -> io::Result<Daemon> {
    nginx.signal(libc::SIGQUIT)?;
    nginx.wait()?;
    // By its whole path, because it starts itself as it was started, without searching.
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&paths).map(|path| path.join("nginx"));
    let program = programs.find(|path| path.is_file());
    let program = program.ok_or_else(|| fault("there is no nginx on the PATH; install it"))?;
    let mut command = Command::new(program);
    command.arg("-p").arg(nginx.directory()).arg("-c").arg(nginx.directory().join("nginx.conf"));
    command.arg("-e").arg(nginx.directory().join("error.log"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if !command.status()?.success() {
        return Err(fault(format!("nginx does not start as a daemon: {}", nginx.log())));
    }
    let mut daemon = None;
    until("the daemon writes no file of its process id", || {
        daemon = Daemon::of(nginx, None);
        daemon.is_some()
    })?;
    daemon.ok_or_else(|| fault("no daemon"))
}

/// A new binary takes over, and the old one ends, while short connections come.
pub(super) fn upgrade(setup: Setup, extent: Extent) -> Figures {
    let mut nginx = Nginx::start(&setup)?;
    let workers = setup.workers as usize;
    let mut old = as_daemon(&mut nginx)?;
    until("the daemon has too few workers", || workers_of(old.0).len() == workers)?;
    let counts = under_load(nginx.port(), |served| {
        for _ in 0..extent.pick(1, 10) {
            await_more(served, 20)?;
            send_signal(old.0, libc::SIGUSR2)?;
            let mut new = None;
            until("no new master takes over", || {
                new = Daemon::of(&nginx, Some(old.0));
                new.is_some()
            })
            .map_err(|error| fault(format!("{error}\n{}", nginx.log())))?;
            let new = new.ok_or_else(|| fault("no new master"))?;
            until("the new master has too few workers", || workers_of(new.0).len() == workers)?;
            await_more(served, 20)?;
            send_signal(old.0, libc::SIGWINCH)?;
            until("the old workers stay", || workers_of(old.0).is_empty())?;
            send_signal(old.0, libc::SIGQUIT)?;
            until("the old master stays", || !old.runs())?;
            old = new;
        }
        Ok(())
    })?;
    serves(nginx.port(), "/who", 40)?;
    no_complaints(&nginx)?;
    drop(old);
    Ok(counts.disturbed())
}
