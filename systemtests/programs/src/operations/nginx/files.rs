//! Scenarios with a file of 1 GB in each of nginx's ways to send one.

use super::super::Extent;
use super::super::content::Sparse;
use super::super::load::{TIMEOUT, fault};
use super::super::outcome::Figures;
use super::no_complaints;
use crate::http::Client;
use crate::nginx::{Nginx, Setup};
use std::io;

/// Reads the file over a keep-alive connection, then requests another file on it.
fn fetch(mut setup: Setup, extent: Extent, server: &str, path: &str) -> Figures {
    setup.server.push_str(server);
    let nginx = Nginx::start(&setup)?;
    let sparse = Sparse { bytes: extent.pick(64 << 20, 1 << 30) };
    sparse.write(&nginx.directory().join("html/large"))?;
    let mut client = Client::connect_within(nginx.port(), TIMEOUT)?;
    client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"))?;
    let (status, head) = client.head()?;
    if status != 200 {
        return Err(fault(format!("the file was answered {status}: {head}")));
    }
    sparse.check(&mut Body(&mut client))?;
    if client.get("/who")?.status != 200 {
        return Err(fault("the connection is of no use after the file"));
    }
    no_complaints(&nginx)?;
    Ok(Vec::new())
}

/// Reads the bytes after a head.
struct Body<'a>(&'a mut Client);

impl io::Read for Body<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.bytes(room.len())?;
        room.copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// nginx uses sendfile(2).
pub(super) fn sendfile(setup: Setup, extent: Extent) -> Figures {
    fetch(setup, extent, "", "/large")
}

/// nginx reads files on threads.
pub(super) fn aio_threads(mut setup: Setup, extent: Extent) -> Figures {
    setup.main.push_str("thread_pool default threads=4;");
    fetch(setup, extent, "aio threads; sendfile off;", "/large")
}

/// nginx reads files with O_DIRECT.
pub(super) fn directio(mut setup: Setup, extent: Extent) -> Figures {
    setup.main.push_str("thread_pool default threads=4;");
    let server = "aio threads; directio 4k; output_buffers 2 512k;";
    fetch(setup, extent, server, "/large")
}

/// nginx proxies the file without a temporary file, so that the upstream connection waits for the
/// client.
pub(super) fn proxied(setup: Setup, extent: Extent) -> Figures {
    let server = "location = /proxied { proxy_pass http://127.0.0.1:{port}/large; \
                  proxy_max_temp_file_size 0; }";
    fetch(setup, extent, server, "/proxied")
}
