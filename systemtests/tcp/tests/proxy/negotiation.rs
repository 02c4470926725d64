//! Tests the negotiation of client and proxy before the first byte: the application protocol, the
//! name, and the resumed session.

use crate::backend::{self, accept};
use crate::client::{Stream, expect, handshaken, send, settings};
use crate::site::{PROXY, Site, Testbed};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind};
use std::sync::Arc;

fn named(settings: ClientConfig, name: &str, site: &Site) -> Stream {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let tls = ClientConnection::new(Arc::new(settings), name).expect("a client");
    Stream::new(tls, site.connect())
}

/// Returns the error of a failed handshake.
fn failure(mut stream: Stream) -> Error {
    loop {
        assert!(stream.conn.is_handshaking(), "it succeeds");
        if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
            let inner = error.into_inner().expect("an error of TLS");
            return *inner.downcast::<Error>().expect("an error of TLS");
        }
    }
}

pub(crate) fn only_a_protocol_that_both_speak_is_agreed_on(testbed: Testbed) {
    let site = Site::new(testbed);
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

pub(crate) fn every_name_gets_the_certificate(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let settings = || (*settings(&site, rustls::ALL_VERSIONS)).clone();
    // By name, and by address, which the client does not send to the server (RFC 6066, section 3).
    for name in ["proxy.test", PROXY] {
        let mut client = handshaken(named(settings(), name, &site));
        send(&mut client, b"hello");
        expect(&mut accept(&listener), b"hello");
    }
    // The client detects that the certificate is for another name.
    let error = failure(named(settings(), "other.test", &site));
    assert!(matches!(error, Error::InvalidCertificate(_)), "{error}");
    proxy.await_counts(&[("handshakes", 2), ("failed", 1), ("connections", 3)]);
}

/// Tickets are lost with the process; a client with an old one gets a complete handshake.
pub(crate) fn a_session_of_another_process_is_not_resumed(testbed: Testbed) {
    let site = Site::new(testbed);
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
            // Tickets arrive before the answer.
            expect(&mut client, b"answer");
        }
        proxy.await_counts(&[("resumed", 1)]);
        proxy.kill();
    }
}
