//! Tests SIGHUP, which replaces certificate and key for new connections.

use crate::backend::{accept, echo, serve};
use crate::client::{self, client, expect, handshaken, read_all, say_goodbye, send};
use crate::site::{PROXY, Site, Testbed};
use rcgen::{CertifiedKey, generate_simple_self_signed};

/// Replaces the files by those of another pair.
fn renew(site: &Site) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([PROXY.to_owned()]).expect("a certificate");
    site.write("chain.pem", &cert.pem());
    site.write("key.pem", &signing_key.serialize_pem());
}

pub(crate) fn a_new_certificate_is_for_new_connections(testbed: Testbed) {
    let site = Site::new(testbed);
    let listener = site.listen(80);
    let proxy = site.proxy(&[]);
    let old_settings = client::settings(&site, rustls::ALL_VERSIONS);
    let mut early = handshaken(client::with(&old_settings, site.connect()));
    let mut backend = accept(&listener);
    renew(&site);
    proxy.signal(libc::SIGHUP);
    let line = proxy.line();
    assert!(line.contains("reloaded") && line.contains("key.pem"), "{line}");
    // Each thread takes the new settings in its next turn.
    testkit::within(testkit::process::TIME_LIMIT, "the new certificate", || {
        let new_settings = client::settings(&site, rustls::ALL_VERSIONS);
        let mut stream = client::with(&new_settings, site.connect());
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).ok()?;
        }
        drop(accept(&listener));
        Some(())
    });
    send(&mut early, b"still here");
    expect(&mut backend, b"still here");
    send(&mut backend, b"and served");
    expect(&mut early, b"and served");
    // The first client's session goes on with a ticket, without the certificate.
    let mut again = handshaken(client::with(&old_settings, site.connect()));
    send(&mut again, b"resumed");
    expect(&mut accept(&listener), b"resumed");
    assert_eq!(proxy.counts().of("resumed"), 1);
}

pub(crate) fn a_wrong_file_leaves_the_old_certificate(testbed: Testbed) {
    let site = Site::new(testbed);
    let server = serve(site.listen(80), 3, echo);
    let proxy = site.proxy(&[]);
    let key = std::fs::read_to_string(site.path("key.pem")).expect("it was written");
    let assert_refused = |cause: &str| {
        proxy.signal(libc::SIGHUP);
        let complaint = proxy.complaint();
        assert!(complaint.contains("certificate in use stays"), "{complaint}");
        assert!(complaint.contains(cause), "{complaint}");
        let mut client = client(&site);
        send(&mut client, b"served");
        say_goodbye(&mut client);
        assert_eq!(read_all(&mut client), b"served");
    };
    site.write("key.pem", "-----BEGIN PRIVATE KEY-----\nAAAA\n");
    assert_refused("cut off");
    site.write("key.pem", &key);
    site.permit("key.pem", 0o644);
    assert_refused("chmod 600");
    std::fs::remove_file(site.path("key.pem")).expect("it was there");
    assert_refused("cannot read");
    server.join().expect("the backends");
}
