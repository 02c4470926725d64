//! Tests connections that the channel makes with its own sockets.

use crate::common::{
    self, Rig, inet, outcome, peer_listener, peer_listener_of, received, set_time_limit, written,
};
use megapipe::TooManyLightweight;
use megapipe::{Address, Config, DriverChoice, Error, Event, Handle, Kind, Repeat};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

#[track_caller]
fn connected(rig: &mut Rig, handle: Handle) {
    assert!(matches!(rig.last(handle), Event::Connect(Ok(()))));
}

/// Sends a message in each direction.
#[track_caller]
fn talk(rig: &mut Rig, handle: Handle, mut peer: impl Read + Write) {
    rig.write(handle, b"ping").unwrap();
    assert_eq!(written(rig.last(handle)).len(), 4);
    let mut found = [0; 4];
    peer.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"ping");
    peer.write_all(b"pong").unwrap();
    rig.receive(handle, Repeat::Once).unwrap();
    assert_eq!(&*received(rig.last(handle)), b"pong");
}

pub(crate) fn connections_of_every_family(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    for family in [0, 1] {
        let (listener, address) = peer_listener_of(family);
        let handle = rig.connect_to(address, 4711).unwrap();
        assert_eq!((rig.kind(handle).unwrap(), rig.cookie(handle)), (Kind::Stream, Some(&4711)));
        connected(&mut rig, handle);
        assert_eq!(rig.peer_address(handle).unwrap(), inet(address));
        let (peer, _) = listener.accept().unwrap();
        set_time_limit(&peer);
        talk(&mut rig, handle, peer);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let handle = rig.connect_to(path.as_path(), 0).unwrap();
    connected(&mut rig, handle);
    let (peer, _): (UnixStream, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(common::TIME_LIMIT)).unwrap();
    talk(&mut rig, handle, peer);
}

/// The socket belongs to the channel: there is no descriptor to return, and the peer sees the end
/// after all submitted writes.
pub(crate) fn the_socket_is_the_channels_own(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = peer_listener();
    let handle = rig.connect_to(address, 0).unwrap();
    rig.set_nodelay(handle, true).unwrap();
    rig.write(handle, b"before it is connected").unwrap();
    connected(&mut rig, handle);
    assert_eq!(written(rig.last(handle)).len(), 22);
    rig.write(handle, b", and the last").unwrap();
    let remains = rig.unregister(handle).unwrap();
    assert!(remains.descriptor.is_none() && remains.connections.is_empty());
    assert!(rig.drain().is_empty(), "a completion of an unregistered handle");
    let (mut peer, _) = listener.accept().unwrap();
    set_time_limit(&peer);
    let mut found = Vec::new();
    peer.read_to_end(&mut found).unwrap();
    assert_eq!(found, b"before it is connected, and the last");
}

pub(crate) fn a_descriptor_of_it_does_not_block(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_listener, address) = peer_listener();
    let handle = rig.connect_to(address, 0).unwrap();
    connected(&mut rig, handle);
    common::expect_free_descriptor(&rig.descriptor(handle).unwrap());
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
}

pub(crate) fn a_refused_connection_can_be_tried_again(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (_kept, deaf) = common::deaf_address(common::test_addresses().peer[0]);
    let handle = rig.connect_to(deaf, 0).unwrap();
    assert_eq!(outcome(&rig.last(handle)), Err(libc::ECONNREFUSED));
    let (listener, address) = peer_listener();
    rig.connect(handle, address).unwrap();
    connected(&mut rig, handle);
    let (peer, _): (TcpStream, _) = listener.accept().unwrap();
    set_time_limit(&peer);
    talk(&mut rig, handle, peer);
}

pub(crate) fn what_cannot_be_connected_is_refused(driver: DriverChoice) {
    let mut rig = Rig::with(driver, Config { max_handles: 1, ..Config::default() });
    let error = rig.connect_to(Address::Unnamed, 0).unwrap_err();
    assert!(
        matches!(&error, Error::System { source, .. }
        if source.raw_os_error() == Some(libc::EINVAL)),
        "{error}"
    );
    let (_listener, address) = peer_listener();
    let handle = rig.connect_to(address, 0).unwrap();
    connected(&mut rig, handle);
    for _ in 0..3 {
        let error = rig.connect_to(address, 0).unwrap_err();
        assert!(matches!(error, Error::TooManyHandles { limit: 1 }), "{error}");
    }
    rig.close(handle).unwrap();
    assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
    let handle = rig.connect_to(address, 0).unwrap();
    connected(&mut rig, handle);
}

/// Failed and ended connections free their entries in the ring's file table, if there is one.
pub(crate) fn the_limit_on_lightweight_sockets(driver: DriverChoice) {
    let config = Config { max_lightweight: 2, max_handles: 3, ..Config::default() };
    let mut rig = Rig::with(driver, config);
    let (listener, address) = peer_listener();
    for _ in 0..5 {
        let handles = [(); 2].map(|()| rig.connect_to(address, 0).unwrap());
        for _ in handles {
            assert!(matches!(rig.next().event, Event::Connect(Ok(()))));
        }
        let third = rig.connect_to(address, 0);
        match rig.has_file_table() {
            true => {
                let error = third.unwrap_err();
                let Error::System { source, .. } = &error else { panic!("{error}") };
                let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
                assert!(matches!(inner, Some(TooManyLightweight { limit: 2 })), "{error}");
            }
            false => {
                let third = third.unwrap();
                connected(&mut rig, third);
                drop(rig.unregister(third).unwrap());
            }
        }
        for handle in handles {
            rig.close(handle).unwrap();
            assert!(matches!(rig.last(handle), Event::Close(Ok(()))));
        }
    }
    drain(&listener);
}

fn drain(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    while listener.accept().is_ok() {}
}

pub(crate) fn a_dropped_channel_ends_its_connections(driver: DriverChoice) {
    let mut rig = Rig::new(driver);
    let (listener, address) = peer_listener();
    let handle = rig.connect_to(address, 0).unwrap();
    connected(&mut rig, handle);
    let (mut peer, _) = listener.accept().unwrap();
    set_time_limit(&peer);
    // One connect is in flight.
    rig.connect_to(address, 0).unwrap();
    drop(rig);
    common::expect_end(&mut peer);
}
