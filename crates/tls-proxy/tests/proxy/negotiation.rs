//! What client and proxy agree on before the first byte: the application's protocol, the name, the
//! session of an earlier connection.

use crate::backend::{self, accept};
use crate::client::{Stream, expect, handshaken, send, settings};
use crate::site::{PROXY, Road, Site};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind};
use std::sync::Arc;

fn named(settings: ClientConfig, name: &str, site: &Site) -> Stream {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let tls = ClientConnection::new(Arc::new(settings), name).expect("a client");
    Stream::new(tls, site.connect())
}

/// Why a handshake fails.
fn failure(mut stream: Stream) -> Error {
    loop {
        assert!(stream.conn.is_handshaking(), "it succeeds");
        if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
            let inner = error.into_inner().expect("an error of TLS");
            return *inner.downcast::<Error>().expect("an error of TLS");
        }
    }
}

pub(crate) fn only_a_protocol_that_both_speak_is_agreed_on(road: Road) {
    let site = Site::new(road);
    let server = backend::serve(site.listen(80), 2, |mut stream| expect(&mut stream, b"hello"));
    let proxy = site.proxy(&[]);
    let speaking = |protocols: &[&[u8]]| {
        let mut settings = (*settings(&site, rustls::ALL_VERSIONS)).clone();
        settings.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        named(settings, PROXY, &site)
    };
    for (protocols, agreed) in [(&[][..], None), (&[&b"h2"[..], b"http/1.1"], Some(b"http/1.1"))] {
        let mut client = handshaken(speaking(protocols));
        assert_eq!(client.conn.alpn_protocol(), agreed.map(|name| &name[..]));
        send(&mut client, b"hello");
    }
    // RFC 7301, section 3.2.
    let alert = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    assert_eq!(failure(speaking(&[b"h2"])), alert);
    server.join().expect("the backends");
    proxy.await_counts(&[("handshakes", 2), ("failed", 1)]);
}

pub(crate) fn every_name_gets_the_certificate(road: Road) {
    let site = Site::new(road);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let settings = || (*settings(&site, rustls::ALL_VERSIONS)).clone();
    // By name, and by address, of which nothing is said to the server (RFC 6066, section 3).
    for name in ["proxy.test", PROXY] {
        let mut client = handshaken(named(settings(), name, &site));
        send(&mut client, b"hello");
        expect(&mut accept(&listener), b"hello");
    }
    // It is the client who sees that it is another's.
    let error = failure(named(settings(), "other.test", &site));
    assert!(matches!(error, Error::InvalidCertificate(_)), "{error}");
    proxy.await_counts(&[("handshakes", 2), ("failed", 1), ("connections", 3)]);
}

/// Tickets die with the process; who has an old one gets a whole handshake.
pub(crate) fn a_session_of_another_process_is_not_resumed(road: Road) {
    let site = Site::new(road);
    let listener = site.listen(80);
    let settings = settings(&site, rustls::ALL_VERSIONS);
    for kinds in [[HandshakeKind::Full, HandshakeKind::Resumed]; 2] {
        let proxy = site.proxy(&[]);
        for kind in kinds {
            let mut client = handshaken(named((*settings).clone(), PROXY, &site));
            assert_eq!(client.conn.handshake_kind(), Some(kind));
            send(&mut client, b"question");
            let mut backend = accept(&listener);
            expect(&mut backend, b"question");
            send(&mut backend, b"answer");
            // Tickets come before it.
            expect(&mut client, b"answer");
        }
        proxy.await_counts(&[("resumed", 1)]);
        proxy.kill();
    }
}
