//! Opens the control link to an endpoint on another host.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::foreign::connect_tcp;
use crate::error::{Error, Result};
use crate::name::Name;

/// The most addresses of a host that are tried.
const ADDRESSES_MAX: usize = 16;

/// The longest ticket that is passed on, in bytes.
const TICKET_BYTES_MAX: usize = 64 * 1024;

/// Connects to the other host's daemon and sends the ticket. After that, the connection is the
/// flow's control link.
pub(super) fn open_link(
    name: &Name,
    addresses: &[SocketAddr],
    ticket: &str,
    deadline: Instant,
) -> Result<OwnedFd> {
    if ticket.is_empty() || ticket.len() > TICKET_BYTES_MAX || ticket.contains('\n') {
        let reason = format!("the daemon's ticket for {name} is none");
        return Err(Error::Refused { reason });
    }
    let mut last = "its daemon has no address".to_owned();
    let tried = addresses.len().min(ADDRESSES_MAX);
    for (index, address) in addresses.iter().take(ADDRESSES_MAX).enumerate() {
        // Limits the time for each address, so that a dead one leaves time for the others.
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(tried - index).unwrap_or(1);
        match hand_in(*address, ticket, Instant::now() + share) {
            Ok(link) => return Ok(link),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    if Instant::now() >= deadline {
        return Err(Error::TimedOut);
    }
    Err(Error::Refused { reason: format!("{name} is on a host that cannot be reached: {last}") })
}

fn hand_in(address: SocketAddr, ticket: &str, deadline: Instant) -> Result<OwnedFd> {
    let mut link = TcpStream::from(connect_tcp(address, deadline)?);
    link.set_nodelay(true).map_err(Error::system("setsockopt(TCP_NODELAY)"))?;
    let left = deadline.saturating_duration_since(Instant::now());
    // Zero would mean no time-out.
    link.set_write_timeout(Some(left.max(Duration::from_millis(1))))
        .map_err(Error::system("setsockopt(SO_SNDTIMEO)"))?;
    let line = [ticket.as_bytes(), b"\n"].concat();
    link.write_all(&line).map_err(Error::system("sending the ticket"))?;
    link.set_write_timeout(None).map_err(Error::system("setsockopt(SO_SNDTIMEO)"))?;
    Ok(link.into())
}
