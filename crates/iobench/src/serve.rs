//! `iobench serve`: runs one server in a process of its own, for a user or for `compare`.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::cli::ServeArgs;
use crate::engine::placement::by_core;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Service};
use crate::output;
use crate::server::{self, ServerLocation, shared::Page};
use crate::sys::affinity::{allowed_cpus, core_of};
use crate::sys::borrow;
use crate::sys::cpuclock;
use crate::sys::limits::Limits;
use crate::sys::signals::Signals;

/// Serves until a signal or the parent ends it.
pub(crate) fn run(arguments: &ServeArgs) -> Result<()> {
    let Some(name) = &arguments.server else {
        return output::print(&server::catalogue());
    };
    // Under `compare` the signals stay blocked: Ctrl-C reaches the whole process group, and the
    // measuring process ends this one by closing the lifeline.
    let signals = Signals::block();
    let server = server::find(name)?;
    let cpus = cpus(arguments)?;
    let exchange = arguments.request_bytes.zip(arguments.response_bytes);
    let exchange =
        exchange.map(|(request_bytes, response_bytes)| Exchange { request_bytes, response_bytes });
    let service = Service { exchange, work: arguments.work };
    Limits::raise()?;
    let mut address = arguments.bind;
    if let Some(port) = arguments.port {
        output::superseded("--port", "--bind PORT or --bind ADDRESS:PORT");
        address.set_port(port);
    }
    let place = ServerLocation { address, interface: arguments.interface.clone() };
    if let (Some(page), Some(lifeline)) = (arguments.page_fd, arguments.lifeline_fd) {
        let page = Page::open(inherited(page)?, cpus.len())?;
        return server::run(server, &cpus, service, &place, &page, &[inherited(lifeline)?], |_| {
            Ok(())
        });
    }
    let driver = server::describe_driver(std::iter::once(server.name()))?;
    let driver = driver.map_or_else(String::new, |driver| format!("{driver}\n"));
    let page = Page::create(cpus.len())?;
    server::run(server, &cpus, service, &place, &page, &[signals.descriptor()?], |port| {
        address.set_port(port);
        let verb = if exchange.is_some() { "answers" } else { "echoes" };
        output::print(&format!(
            "{}: {}\n{driver}{verb} on {address} with a thread on each of CPU {cpus:?}; \
             Ctrl-C ends it\n",
            server.name(),
            server.describe()
        ))
    })?;
    let totals = page.totals();
    let cpu_ns = cpuclock::process_ns(std::process::id()).unwrap_or(0) + page.children_cpu_ns();
    output::print(&format!(
        "{} connections, {} closed, {} bytes received, {} bytes sent, {} system calls, {} errors, \
         {:.3} ms of CPU\n",
        totals.accepted,
        totals.closed,
        totals.bytes_received,
        totals.bytes_sent,
        totals.system_calls,
        totals.errors,
        cpu_ns as f64 / 1e6
    ))
}

/// Returns the CPUs that the arguments name, one thread for each.
fn cpus(arguments: &ServeArgs) -> Result<Vec<usize>> {
    if let Some(cpus) = &arguments.server_cpus {
        return Ok(cpus.clone());
    }
    let allowed = allowed_cpus()?;
    let cores = arguments.cores.unwrap_or(1);
    if cores == 0 || cores > allowed.len() {
        return Err(Error::setup(
            format!("{cores} server threads do not fit on {} CPUs", allowed.len()),
            format!("choose --cores from 1 to {}", allowed.len()),
        ));
    }
    let mut cpus = by_core(&allowed, core_of);
    cpus.truncate(cores);
    Ok(cpus)
}

/// Takes ownership of a descriptor that the parent process left open.
pub(crate) fn inherited(fd: i32) -> Result<OwnedFd> {
    if fd < 3 || rustix::io::fcntl_getfd(borrow(fd)).is_err() {
        return Err(Error::setup(
            format!("there is no inherited descriptor {fd}"),
            "omit --page-fd and --lifeline-fd, which only iobench's own processes use",
        ));
    }
    // SAFETY: the descriptor is open, and by contract with the parent it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
