//! Tests of the veth path with sockets and devices.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::*;
use crate::network::tests::{devices, held, namespace_name, ran_in_user_namespace};

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Sends bytes there and back over a pair with the kernel at both ends.
fn talk(veth: &Veth, veth_pair: &VethPair) {
    let listener = {
        let _entered = Entered::new(&veth.server_namespace()).unwrap();
        TcpListener::bind((veth_pair.server_address, 0)).unwrap()
    };
    let mut client = {
        let _entered = veth.enter_client().unwrap();
        TcpStream::connect_timeout(&listener.local_addr().unwrap(), TIME_LIMIT).unwrap()
    };
    assert_eq!(client.local_addr().unwrap().ip(), IpAddr::from(veth_pair.client_addresses[0]));
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
    }
    let mut room = [0; 5];
    client.write_all(b"there").unwrap();
    server.read_exact(&mut room).unwrap();
    assert_eq!(&room, b"there");
    server.write_all(b"back.").unwrap();
    client.read_exact(&mut room).unwrap();
    assert_eq!(&room, b"back.");
}

#[test]
fn connections_cross_every_cable() {
    if ran_in_user_namespace() {
        return;
    }
    let mut veth = Veth::create(2, 3).unwrap();
    talk(&veth, &veth.shared().clone());
    let other = veth.add_cable(1, End::Kernel, End::Kernel).unwrap();
    talk(&veth, &other);
    let sources = veth.sources(other.server_address.into());
    assert_eq!(sources.len(), 3);
    assert_eq!(sources[0], IpAddr::from(other.client_addresses[0]));
    let _entered = veth.enter_client().unwrap();
    for source in sources {
        TcpListener::bind((source, 0)).expect("the address is there");
    }
}

#[test]
fn the_address_of_a_stack_is_unknown_to_the_kernel() {
    if ran_in_user_namespace() {
        return;
    }
    let mut veth = Veth::create(1, 1).unwrap();
    let veth_pair = veth.add_cable(1, End::Stack, End::Kernel).unwrap();
    {
        let _entered = Entered::new(&veth.server_namespace()).unwrap();
        assert!(devices().contains(&veth_pair.server_device()));
        assert!(TcpListener::bind((veth_pair.server_address, 0)).is_err());
    }
    let _entered = veth.enter_client().unwrap();
    TcpListener::bind((veth_pair.client_addresses[0], 0)).expect("this end is the kernel's");
}

#[test]
fn cables_can_be_taken_away_and_laid_anew() {
    if ran_in_user_namespace() {
        return;
    }
    let mut veth = Veth::create(1, 1).unwrap();
    for _ in 0..3 {
        // Another process should have created this device, but did not.
        veth.reserve().unwrap();
        let veth_pair = veth.add_cable(1, End::Kernel, End::Stack).unwrap();
        let _entered = veth.enter_client().unwrap();
        assert_eq!(devices(), ["lo", "client1", veth_pair.client_device().as_str()]);
        veth.remove_cables().unwrap();
        assert_eq!(devices(), ["lo", "client1"]);
    }
    talk(&veth, &veth.shared().clone());
}

#[test]
fn nothing_is_seen_outside_and_nothing_is_left() {
    if ran_in_user_namespace() {
        return;
    }
    let before = (namespace_name(), devices());
    let veth = Veth::create(1, 1).unwrap();
    let inside = {
        let _entered = veth.enter_client().unwrap();
        namespace_name()
    };
    assert_ne!(inside, before.0);
    assert_eq!((namespace_name(), devices()), before);
    assert!(held(&inside) > 0);
    drop(veth);
    assert_eq!(held(&inside), 0, "descriptors of the namespace are still open");
    assert_eq!(devices(), before.1);
}

#[test]
fn impossible_numbers_are_refused() {
    if ran_in_user_namespace() {
        return;
    }
    let message = Veth::create(1, 251).err().unwrap().to_string();
    assert!(message.contains("1 to 250"), "{message}");
}
