//! Where rank 0 is reached. A host has many addresses, and some of them (such as a bridge of
//! containers) exist on other hosts as well; so every process tries each of rank 0's, and only an
//! answer with rank 0's secret counts.

use std::ffi::CStr;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::control::{Control, ROOT, broadcast_value, gather_values};
use crate::error::{Context, Error, Result};
use crate::sys::check;
use crate::sys::clock::now_ns;

/// Most addresses that are tried; hosts with more name one.
const CANDIDATES_MAX: usize = 16;

/// How long an address may take to let a caller in. Where nobody is, this passes in vain.
const CONNECT: Duration = Duration::from_secs(1);

/// How long the answer may take: whoever lets callers in is rank 0, which may be busy, or seldom a
/// stranger who listens on the same port.
const ANSWER: Duration = Duration::from_secs(20);

/// How often rank 0 looks for a caller while the others try.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What rank 0 tells the others: where it listens, and what a caller must hear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Invitation {
    places: Vec<SocketAddr>,
    secret: u64,
}

/// Which address of rank 0 each of the others reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reachability {
    /// Rank 0's addresses, best first.
    pub(crate) candidates: Vec<IpAddr>,
    /// For every rank from 1, which of the candidates it reached.
    pub(crate) reached: Vec<Vec<bool>>,
}

impl Reachability {
    /// The first address that all reach.
    pub(crate) fn common(&self) -> Option<IpAddr> {
        let all = |&at: &usize| self.reached.iter().all(|reached| reached[at]);
        (0..self.candidates.len()).find(all).map(|at| self.candidates[at])
    }

    /// The first address that one rank reaches.
    pub(crate) fn first_of(&self, rank: usize) -> Option<IpAddr> {
        let reached = self.reached.get(rank.checked_sub(1)?)?;
        let mut both = self.candidates.iter().zip(reached);
        both.find_map(|(&address, &reached)| reached.then_some(address))
    }

    /// The address to serve on, or what to do where there is none.
    pub(crate) fn agreed(&self) -> Result<IpAddr> {
        self.common().ok_or_else(|| {
            let list: Vec<String> = self.candidates.iter().map(IpAddr::to_string).collect();
            Error::setup(
                format!("no address of rank {ROOT} is reached by all ({})", list.join(", ")),
                "see `iobench hosts` for who reaches which, open the firewalls between the hosts, \
                 or name an address with --mpi-address",
            )
        })
    }
}

/// Finds out which address of rank 0 the others reach. All call it together and get the same; the
/// address that the user names counts at rank 0.
pub(crate) fn explore(control: &dyn Control, named: Option<IpAddr>) -> Result<Reachability> {
    if control.rank() != ROOT {
        let Invitation { places, secret } = broadcast_value(control, None)?;
        let reached: Vec<bool> = places.iter().map(|&place| answers(place, secret)).collect();
        gather_values(control, &reached)?;
        return broadcast_value(control, None);
    }
    let candidates = named.map_or_else(candidates, |address| Ok(vec![address]))?;
    let (candidates, listeners) = listen(&candidates, named.is_some())?;
    let places: std::io::Result<_> = listeners.iter().map(TcpListener::local_addr).collect();
    let places = places.context("read where a socket listens", "report this as a bug")?;
    // A passing program does not guess it; it protects from mistakes, not from an attacker.
    let secret = now_ns().rotate_left(32) ^ u64::from(std::process::id());
    let over = AtomicBool::new(false);
    let mut reached: Vec<Vec<bool>> = std::thread::scope(|scope| {
        scope.spawn(|| answer(&listeners, secret, &over));
        let asked = broadcast_value(control, Some(&Invitation { places, secret }));
        let reached = asked.and_then(|_| gather_values(control, &Vec::new()));
        over.store(true, Ordering::Relaxed);
        reached
    })?;
    reached.remove(ROOT);
    if reached.iter().any(|reached| reached.len() != candidates.len()) {
        return Err(Error::setup(
            "the others tried another number of addresses than they were given",
            "install the same iobench on every host",
        ));
    }
    let found = Reachability { candidates, reached };
    broadcast_value(control, Some(&found))
}

/// The addresses of this host at which others may reach it, IPv4 first.
pub(crate) fn candidates() -> Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> =
        interface_addresses()?.into_iter().filter(is_reachable_from_outside).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    addresses.truncate(CANDIDATES_MAX);
    Ok(addresses)
}

/// Link-local addresses are of no use to others without the name of an interface of theirs.
fn is_reachable_from_outside(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

/// Listens on each address; one that cannot be listened on is left out unless the user named it.
fn listen(addresses: &[IpAddr], named: bool) -> Result<(Vec<IpAddr>, Vec<TcpListener>)> {
    let mut listening = Vec::new();
    for &address in addresses {
        let listener = TcpListener::bind((address, 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match listener {
            Ok(listener) => listening.push((address, listener)),
            Err(_) if !named => {}
            Err(error) => {
                let remedy = "name an address of the host of rank 0 with --mpi-address";
                return Err(error).context(format!("listen on {address}"), remedy);
            }
        }
    }
    Ok(listening.into_iter().unzip())
}

/// Tells every caller the secret until it is over.
fn answer(listeners: &[TcpListener], secret: u64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for listener in listeners {
            // A caller that has gone away has no use for an answer.
            while let Ok((mut caller, _)) = listener.accept() {
                let _ = caller.write_all(&secret.to_le_bytes());
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether rank 0 answers at a place.
fn answers(place: SocketAddr, secret: u64) -> bool {
    let heard = || {
        let mut stream = TcpStream::connect_timeout(&place, CONNECT)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut heard = [0; 8];
        stream.read_exact(&mut heard)?;
        match u64::from_le_bytes(heard) == secret {
            true => Ok(()),
            false => Err(ErrorKind::InvalidData.into()),
        }
    };
    let heard: std::io::Result<()> = heard();
    heard.is_ok()
}

/// The addresses of all interfaces that are up.
fn interface_addresses() -> Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is a valid place for the list's head.
    check(unsafe { libc::getifaddrs(&mut first) })
        .context("list the network interfaces", "name an address with --mpi-address")?;
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the kernel's list is whole until it is freed below; its end is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        if entry.ifa_flags & libc::IFF_UP as u32 != 0 {
            // SAFETY: `ifa_addr` belongs to the entry, which is valid.
            addresses.extend(unsafe { address_of(entry.ifa_addr) });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// # Safety
///
/// `address` is null or points to a socket address that is as long as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: by contract the pointer is null or valid.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The host's own name.
pub(crate) fn host_name() -> Result<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is valid for writes of the length passed, which leaves room for the end.
    check(unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) })
        .context("read the host's name", "set one with hostname(1)")?;
    let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy);
    Ok(name.map_or_else(|_| "unknown".to_owned(), |name| name.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::threads::on_threads;
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn the_first_address_that_all_reach_is_taken() {
        let found = Reachability {
            candidates: ["10.0.0.1", "10.1.0.1", "fd00::1"].map(|a| a.parse().unwrap()).to_vec(),
            reached: vec![vec![true, true, true], vec![false, true, true]],
        };
        assert_eq!(found.agreed().unwrap(), found.candidates[1]);
        assert_eq!(found.first_of(1), Some(found.candidates[0]));
        assert_eq!(found.first_of(2), Some(found.candidates[1]));
        assert_eq!(found.first_of(ROOT), None);
        assert_eq!(found.first_of(9), None);
    }

    #[test]
    fn without_a_common_address_the_error_lists_them() {
        let candidates = vec!["10.0.0.1".parse().unwrap(), "10.1.0.1".parse().unwrap()];
        let reached = vec![vec![true, false], vec![false, true]];
        let error = Reachability { candidates, reached }.agreed().unwrap_err().to_string();
        for part in ["10.0.0.1", "10.1.0.1", "--mpi-address", "firewalls"] {
            assert!(error.contains(part), "{error}");
        }
        let none = Reachability { candidates: Vec::new(), reached: vec![Vec::new()] };
        assert!(none.agreed().is_err());
    }

    #[test]
    fn all_hear_who_reaches_what() {
        let found = on_threads(4, |control| explore(control, Some(LOOPBACK)));
        for found in found {
            let found = found.unwrap();
            assert_eq!(found.reached, vec![vec![true]; 3]);
            assert_eq!(found.agreed().unwrap(), LOOPBACK);
        }
    }

    #[test]
    fn a_named_address_of_another_host_is_refused() {
        // Of a reserved block, so no interface has it.
        let named = "240.0.0.1".parse().unwrap();
        let error = listen(&[named], true).unwrap_err().to_string();
        assert!(error.contains("240.0.0.1") && error.contains("--mpi-address"), "{error}");
        assert_eq!(listen(&[named], false).unwrap().0, Vec::<IpAddr>::new());
    }

    #[test]
    fn only_the_secret_counts() {
        let listeners = [TcpListener::bind((LOOPBACK, 0)).unwrap()];
        listeners[0].set_nonblocking(true).unwrap();
        let place = listeners[0].local_addr().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&listeners, 7, &over));
            let heard = [answers(place, 7), answers(place, 8)];
            over.store(true, Ordering::Relaxed);
            assert_eq!(heard, [true, false]);
        });
        drop(listeners);
        assert!(!answers(place, 7), "nobody listens any more");
    }

    #[test]
    fn what_only_this_host_sees_is_no_candidate() {
        for inside in ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0"] {
            assert!(!is_reachable_from_outside(&inside.parse().unwrap()), "{inside}");
        }
        assert!(is_reachable_from_outside(&"10.0.0.1".parse().unwrap()));
        assert!(interface_addresses().unwrap().contains(&LOOPBACK));
        assert!(candidates().unwrap().iter().all(is_reachable_from_outside));
    }

    #[test]
    fn the_host_has_a_name() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(host_name().unwrap(), name.trim_end());
    }
}
