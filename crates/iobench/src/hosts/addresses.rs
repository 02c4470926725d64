//! Finds an address at which rank 0 is reached. A host has many addresses, and some of them (such
//! as a bridge of containers) exist on other hosts as well. So every process tries each of rank 0's
//! addresses, and only an answer with rank 0's secret counts.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::sys::netlink::{Message, Request, address, attribute, u32_at};
use serde::{Deserialize, Serialize};

use super::control::{Control, ROOT, broadcast_value, gather_values};
use crate::error::{Context, Error, Result};
use crate::sys::clock::now_ns;

/// Most addresses that are tried; on hosts with more the user has to choose one.
const CANDIDATES_MAX: usize = 16;

/// Time-out of a connection attempt. Addresses that do not answer take this long.
const CONNECT: Duration = Duration::from_secs(1);

/// Time-out of the answer. The peer that accepted is either rank 0, which may be busy, or rarely
/// another program that listens on the same port.
const ANSWER: Duration = Duration::from_secs(20);

/// The interval at which rank 0 checks for a connection while the others try.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What rank 0 sends to the others: where it listens, and the secret of its answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Invitation {
    places: Vec<SocketAddr>,
    secret: u64,
}

/// The addresses of rank 0 that each of the others reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reachability {
    /// Rank 0's addresses, best first.
    pub(crate) candidates: Vec<IpAddr>,
    /// For every rank from 1, which of the candidates it reached.
    pub(crate) reached: Vec<Vec<bool>>,
}

impl Reachability {
    /// Returns the first address that all ranks reach.
    pub(crate) fn common(&self) -> Option<IpAddr> {
        let all = |&at: &usize| self.reached.iter().all(|reached| reached[at]);
        (0..self.candidates.len()).find(all).map(|at| self.candidates[at])
    }

    /// Returns the first address that one rank reaches.
    pub(crate) fn first_of(&self, rank: usize) -> Option<IpAddr> {
        let reached = self.reached.get(rank.checked_sub(1)?)?;
        let mut both = self.candidates.iter().zip(reached);
        both.find_map(|(&address, &reached)| reached.then_some(address))
    }

    /// Returns the address to serve on, or an error with a remedy.
    pub(crate) fn agreed(&self) -> Result<IpAddr> {
        self.common().ok_or_else(|| {
            let list: Vec<String> = self.candidates.iter().map(IpAddr::to_string).collect();
            Error::setup(
                format!("no address of rank {ROOT} is reached by all ({})", list.join(", ")),
                "see `iobench agent --check` for who reaches which, open the firewalls between the \
                 hosts, or name an address with --mpi-address",
            )
        })
    }
}

/// Finds which addresses of rank 0 the others reach. All processes call it together and get the
/// same result; the address that the user chose is taken from rank 0.
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
    // Another program does not guess the secret by chance. It protects from mistakes, not from an
    // attacker.
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
            "the other ranks tried another number of addresses than rank 0 sent",
            "install the same iobench on every host",
        ));
    }
    let found = Reachability { candidates, reached };
    broadcast_value(control, Some(&found))
}

/// Returns the addresses of this host at which others may reach it, IPv4 first.
pub(crate) fn candidates() -> Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> =
        interface_addresses()?.into_iter().filter(is_reachable_from_outside).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    addresses.truncate(CANDIDATES_MAX);
    Ok(addresses)
}

/// Returns whether others can use an address: a link-local address needs the name of an interface
/// of theirs.
fn is_reachable_from_outside(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}

/// Listens on each address; one that fails is left out unless the user chose it.
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

/// Sends every caller the secret until `over` is set.
fn answer(listeners: &[TcpListener], secret: u64, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        for listener in listeners {
            // A caller that has closed needs no answer.
            while let Ok((mut caller, _)) = listener.accept() {
                let _ = caller.write_all(&secret.to_le_bytes());
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns whether rank 0 answers at an address and port.
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

/// Returns the addresses of all interfaces that are up.
fn interface_addresses() -> Result<Vec<IpAddr>> {
    let (mut up, mut addresses) = (BTreeSet::new(), Vec::new());
    let take_link = |link: Message<'_>| {
        let [index, flags] = [4, 8].map(|at| u32_at(link.body, at).unwrap_or(0));
        if flags & libc::IFF_UP as u32 != 0 {
            up.insert(index);
        }
    };
    let links = Request::all(libc::RTM_GETLINK).dump(take_link);
    let take_address = |message: Message<'_>| {
        const FIXED_BYTES: usize = 8;
        let attributes = message.body.get(FIXED_BYTES..).unwrap_or_default();
        if u32_at(message.body, 4).is_some_and(|index| up.contains(&index)) {
            // On a point-to-point link IFA_ADDRESS is the other end's.
            let own = attribute(attributes, libc::IFA_LOCAL)
                .or_else(|| attribute(attributes, libc::IFA_ADDRESS));
            addresses.extend(own.and_then(address));
        }
    };
    links
        .and_then(|()| Request::all(libc::RTM_GETADDR).dump(take_address))
        .context("list the network interfaces", "name an address with --mpi-address")?;
    Ok(addresses)
}

/// Returns the host's own name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::threads::on_threads;
    use super::*;

    use std::net::Ipv4Addr;

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
        // An address of a reserved block, which no interface has.
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
        assert_eq!(host_name(), name.trim_end());
    }
}
