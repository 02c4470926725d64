//! Claims packets for the stack, by address and port, at run time.

use super::bpf::{Link, Map};
use super::error::{XdpError, failed};
use super::program::{CLAIM_EVERYTHING, CLAIM_TCP, ClaimKey, claim_key};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

const REMEDY: &str = "report this as a bug";

/// Packets that the stack takes from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// TCP to these ports of the address; none of them is 0. A claim of several ports counts once
    /// for each port.
    Ports(IpAddr, RangeInclusive<u16>),
    /// All TCP to the address; ARP, neighbour discovery, ICMP and the rest stay with the kernel.
    Tcp(IpAddr),
    /// All packets to the address, and also ARP requests and neighbour solicitations for it; the
    /// kernel must not have the address. Replaces [`Claim::Tcp`] for the same address, and is
    /// replaced by it.
    /// replaced by it.
    Address(IpAddr),
}

impl Claim {
    /// The entries of the map for this claim.
    fn entries(&self) -> Result<(impl Iterator<Item = ClaimKey> + Clone + use<>, u32), XdpError> {
        let (address, ports, value) = match self {
            Claim::Ports(_, ports) if ports.is_empty() || *ports.start() == 0 => {
                return Err(XdpError::Option("a claim of ports needs ports from 1 on"));
            }
            Claim::Ports(address, ports) => (*address, ports.clone(), CLAIM_TCP),
            Claim::Tcp(address) => (*address, 0..=0, CLAIM_TCP),
            Claim::Address(address) => (*address, 0..=0, CLAIM_EVERYTHING),
        };
        Ok((ports.map(move |port| claim_key(address, port)), value))
    }
}

/// The way in which the program is attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// In the driver, before the kernel makes a packet of a frame.
    Native,
    /// After the driver; with the reason, if the mode left the choice open.
    Generic(Option<String>),
}

/// The program on an interface, and the claims that it applies.
///
/// Claim before listening or connecting; otherwise the kernel answers first, with a reset. When
/// this is dropped, or the process ends in any way, the program is detached, and the kernel
/// receives all packets again. After opening, no capability is needed, except where
/// kernel.unprivileged_bpf_disabled restricts changes of maps to CAP_BPF.
#[derive(Debug)]
pub struct Ownership {
    claims: Map<ClaimKey>,
    attachment: Attachment,
    /// Keeps the program attached.
    _link: Link,
}

impl Ownership {
    pub(super) fn new(claims: Map<ClaimKey>, link: Link, attachment: Attachment) -> Ownership {
        Ownership { claims, attachment, _link: link }
    }

    /// Takes these packets from now on. After an error none of them is taken, including those that
    /// an earlier claim has covered.
    ///
    /// # Errors
    /// [`XdpError::TooManyClaims`]; [`XdpError::Option`] if there is no port, or port 0.
    pub fn claim(&self, claim: &Claim) -> Result<(), XdpError> {
        let (keys, value) = claim.entries()?;
        for (done, key) in keys.clone().enumerate() {
            if let Err(source) = self.claims.set(&key, value) {
                for key in keys.take(done) {
                    // The entry was added just now; an error of the removal has no remedy.
                    let _ = self.claims.remove(&key);
                }
                return Err(match source.raw_os_error() {
                    Some(libc::E2BIG | libc::ENOMEM) => XdpError::TooManyClaims { source },
                    _ => failed("claim packets", REMEDY)(source),
                });
            }
        }
        Ok(())
    }

    /// Leaves these packets to the kernel again; packets that were not claimed are ignored.
    ///
    /// # Errors
    /// [`XdpError::Option`] as for [`Ownership::claim`].
    pub fn release(&self, claim: &Claim) -> Result<(), XdpError> {
        let (keys, _) = claim.entries()?;
        for key in keys {
            match self.claims.remove(&key) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("release packets", REMEDY)(source));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// How the program is attached.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }
}
