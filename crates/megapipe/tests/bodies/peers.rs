//! Tests accepting connections with their peers' addresses.

use crate::common::{
    Rig, accepted, client, clients_in_order, inet, listener, outcome, test_addresses,
};
use megapipe::{Accept, Address, DriverChoice, Error};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const KINDS: [fn() -> Accept; 2] = [Accept::descriptors, Accept::lightweight];

/// Each connection has its peer's address: also several in one batch, of counted accepts, and those
/// that were accepted for a request that was cancelled.
pub(crate) fn each_connection_brings_its_peer(driver: DriverChoice) {
    for accept in KINDS.map(|kind| kind()) {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        rig.accept(listening, accept.count(2)).unwrap();
        let clients = clients_in_order(address, 9);
        assert_eq!(accepted(rig.another(listening)).peer, None, "none was asked for");
        assert_eq!(accepted(rig.last(listening)).peer, None, "none was asked for");
        let peer_of = |client: &TcpStream| Some(inet(client.local_addr().unwrap()));
        rig.accept(listening, accept.with_peer_address().count(3)).unwrap();
        for left in (0..3).rev() {
            let done = rig.next();
            assert_eq!(done.more, left > 0);
            let accepted = accepted(done.event);
            assert_eq!(accepted.peer, peer_of(&clients[4 - left]));
            let handle = rig.join(accepted.socket);
            assert_eq!(Some(rig.peer_address(handle).unwrap()), peer_of(&clients[4 - left]));
        }
        rig.accept(listening, accept.with_peer_address()).unwrap();
        assert_eq!(accepted(rig.another(listening)).peer, peer_of(&clients[5]));
        rig.cancel(listening).unwrap();
        let mut served = 6;
        loop {
            let done = rig.next();
            if !done.more {
                assert_eq!(outcome(&done.event), Err(libc::ECANCELED));
                break;
            }
            assert_eq!(accepted(done.event).peer, peer_of(&clients[served]));
            served += 1;
        }
    }
}

/// IPv6, with IPv4 mapped into it, and UNIX sockets with and without a name.
pub(crate) fn peers_of_every_family(driver: DriverChoice) {
    for accept in KINDS.map(|kind| kind().with_peer_address()) {
        let mut rig = Rig::new(driver);
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let listening = rig.join(listener);
        rig.accept(listening, accept).unwrap();
        for found in test_addresses().found {
            let ours = client(SocketAddr::new(found, port));
            let told = ours.local_addr().unwrap();
            let told = match told.ip() {
                IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), told.port()),
                IpAddr::V6(_) => told,
            };
            assert_eq!(accepted(rig.another(listening)).peer, Some(inet(told)));
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let listening = rig.join(UnixListener::bind(&path).unwrap());
        rig.accept(listening, accept).unwrap();
        let _unnamed = UnixStream::connect(&path).unwrap();
        assert_eq!(accepted(rig.another(listening)).peer, Some(Address::Unnamed));
    }
}

/// The address is that of the connection, even if its peer has reset it meanwhile.
pub(crate) fn a_peer_that_is_gone_has_its_address(driver: DriverChoice) {
    for accept in KINDS.map(|kind| kind().with_peer_address().count(1)) {
        let mut rig = Rig::new(driver);
        let (listener, address) = listener();
        let listening = rig.join(listener);
        let gone = client(address);
        let name = inet(gone.local_addr().unwrap());
        let gone = rig.join(gone);
        rig.set_linger(gone, Some(Duration::ZERO)).unwrap();
        rig.close(gone).unwrap();
        assert_eq!(outcome(&rig.last(gone)), Ok(0));
        rig.accept(listening, accept).unwrap();
        let accepted = accepted(rig.last(listening));
        assert_eq!(accepted.peer, Some(name));
        let handle = rig.join(accepted.socket);
        rig.read(handle, Vec::with_capacity(1)).unwrap();
        assert_eq!(outcome(&rig.last(handle)), Err(libc::ECONNRESET));
    }
}

pub(crate) fn accepts_with_and_without_addresses_do_not_mix(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, _address) = listener();
    let listening = rig.join(listener);
    rig.accept(listening, Accept::lightweight().count(2)).unwrap();
    let with_addresses = Accept::lightweight().with_peer_address();
    let error = rig.accept(listening, with_addresses).unwrap_err();
    assert!(matches!(error, Error::MixedAccept), "{error}");
    rig.cancel(listening).unwrap();
    assert_eq!(outcome(&rig.last(listening)), Err(libc::ECANCELED));
    rig.accept(listening, with_addresses).unwrap();
}
