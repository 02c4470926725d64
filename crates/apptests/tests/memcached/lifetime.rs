//! How a server ends.

use crate::server::{DRIVERS, PATIENCE, Server, pattern};
use std::net::TcpListener;

#[test]
fn sigterm_leaves_nothing() {
    for driver in DRIVERS {
        let mut server = Server::start(driver, &["-t", "2"]);
        let mut clients: Vec<_> = (0..50).map(|_| server.client()).collect();
        for client in &mut clients {
            client.set("key", b"value");
        }
        server.process.signal(libc::SIGTERM).unwrap();
        let status = server.process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{driver}: {status}");
        for client in &mut clients {
            assert!(client.rest().is_empty(), "{driver}");
        }
        drop(clients);
        assert!(TcpListener::bind(server.address()).is_ok(), "{driver}: the port is taken still");
    }
}

#[test]
fn a_graceful_stop_ends_with_requests_under_way() {
    for driver in DRIVERS {
        let mut server = Server::start(driver, &["-t", "2"]);
        let value = pattern(6, 400_000);
        let mut clients: Vec<_> = (0..20).map(|_| server.client()).collect();
        clients[0].set("value", &value);
        for client in &mut clients {
            client.send("get value\r\n".repeat(30).as_bytes());
            assert!(client.answer("value").is_some_and(|got| got == value), "{driver}");
        }
        server.process.signal(libc::SIGUSR1).unwrap();
        let status = server.process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{driver}: {status}");
        // What came of the answers under way is theirs, and no other bytes.
        let whole = [b"VALUE value 0 400000\r\n", value.as_slice(), b"\r\nEND\r\n"].concat();
        for client in &mut clients {
            let rest = client.rest();
            let right = rest.chunks(whole.len()).all(|part| whole.starts_with(part));
            assert!(right, "{driver}: {} bytes came that are no answer", rest.len());
        }
    }
}
