//! MegaPipe's TLS proxy in front of lighttpd, as SSLShader in section 5.3 of the mTCP paper: ab
//! sends requests by TLS, and the proxy forwards them to lighttpd, which is on the kernel's TCP at
//! the clients' end of the veth pair.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::error::{Context, Error, Result};
use crate::installed::{find_own, version};
use crate::network::PathKind;
use crate::programs::lighttpd::Lighttpd;
use crate::programs::{Amount, Cell, Printed, Program, Target, Variant};
use crate::sys::signals::Signals;

const REMEDY: &str = "build it with `cargo build --release -p tls-proxy`";

/// The TLS proxy before lighttpd, with ab as its client.
pub(crate) struct TlsProxy {
    server: PathBuf,
    lighttpd: Lighttpd,
}

impl TlsProxy {
    /// Finds the programs.
    pub(crate) fn find(connections: u32) -> Result<TlsProxy> {
        let lighttpd = Lighttpd::find(connections)?;
        Ok(TlsProxy { server: find_own("tls-proxy", REMEDY)?, lighttpd })
    }
}

impl Program for TlsProxy {
    fn name(&self) -> &'static str {
        "tls-proxy"
    }

    fn settings(&self) -> String {
        let version = version(&self.server, "--version");
        format!("{version}, one core, epoll or mtcp, in front of {}", self.lighttpd.settings())
    }

    fn path(&self) -> PathKind {
        PathKind::Veth
    }

    fn variants(&self) -> &'static [Variant] {
        &[Variant::Tcp, Variant::Mtcp]
    }

    fn operations(&self) -> &'static [&'static str] {
        self.lighttpd.operations()
    }

    fn connections(&self, cell: &Cell, printed: &Printed) -> u64 {
        self.lighttpd.connections(cell, printed)
    }

    fn transactions(&self, operation: &str) -> u32 {
        self.lighttpd.transactions(operation)
    }

    /// Few operations are enough: handshakes take far longer than starting ab.
    fn least_operations(&self) -> u64 {
        100
    }

    fn brings_stack(&self) -> bool {
        true
    }

    fn backend(&self) -> Option<&dyn Program> {
        Some(&self.lighttpd)
    }

    fn server(&self, target: &Target<'_>, _signals: &Signals) -> Result<Vec<String>> {
        let backend = target.backend.ok_or_else(|| {
            Error::setup("there is no backend for tls-proxy", "report this as a bug")
        })?;
        let [certificate, key] = write_certificate(target)?;
        let mut words = vec![self.server.display().to_string()];
        words.extend([format!("--listen={}", target.address), format!("--to={backend}")]);
        words.extend([format!("--certificate={certificate}"), format!("--key={key}")]);
        words.push("--cores=1".to_owned());
        match target.stack {
            Some(settings) => words
                .extend(["--driver=mtcp".to_owned(), format!("--config={}", settings.display())]),
            None => words.push("--driver=epoll".to_owned()),
        }
        Ok(words)
    }

    fn fill(&self, _target: &Target<'_>, _signals: &Signals) -> Result<()> {
        Ok(())
    }

    fn client(&self, target: &Target<'_>, cell: &Cell, amount: Amount) -> Vec<String> {
        self.lighttpd.load("https", target, cell, amount)
    }

    fn parse(&self, text: &str, cell: &Cell, amount: Amount) -> Result<Printed, String> {
        self.lighttpd.parse(text, cell, amount)
    }
}

/// Writes a self-signed certificate and its key; returns the names of the files.
fn write_certificate(target: &Target<'_>) -> Result<[String; 2]> {
    let name = target.address.ip().to_string();
    let made = rcgen::generate_simple_self_signed([name]).map_err(|error| {
        Error::setup(format!("cannot make a certificate: {error}"), "report this as a bug")
    })?;
    let write = |name: &str, text: String| -> Result<String> {
        let file = target.directory.join(name);
        // tls-proxy refuses a key that others can read.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&file).and_then(|mut file| file.write_all(text.as_bytes()));
        written.context(
            format!("write {}", file.display()),
            "free some space in the directory for temporary files",
        )?;
        Ok(file.display().to_string())
    };
    Ok([write("chain.pem", made.cert.pem())?, write("key.pem", made.signing_key.serialize_pem())?])
}
