//! Tests three programs of the kinds that mTCP's authors have ported, all on the user-level stack:
//! ab, this proxy and lighttpd, each with a veth to the same bridge. Also tests two stacks of one
//! proxy.

use crate::server::{assert_all_succeeded, lighttpd_settings};
use crate::site::{PEER, PROXY, Site};
use crate::streams::exchange_many;
use std::process::{Command, Stdio};
use testkit::Namespace;
use testkit::process::{Guard, program, succeed};

/// The address of ab's stack.
const CLIENT: &str = "10.9.0.2";

/// The command `mtcp run` with settings of this name.
fn under_stack(site: &Site, name: &str, subject: &str) -> Command {
    let mut command = Command::new(program("mtcp"));
    command.env("MTCP_PRELOAD", program("libmtcp_preload.so"));
    command.args(["run", "--config"]).arg(site.path(name)).arg(subject).stdin(Stdio::null());
    command
}

#[test]
fn ab_proxy_and_lighttpd_talk_by_the_stack_alone() {
    let hub = Namespace::new();
    hub.ip("link add hub type bridge");
    hub.ip("link set hub up");
    let site = Site::bridged(&hub, "proxy");
    let (client, server) = (Namespace::new(), Namespace::new());
    for (name, namespace, address) in [("client", &client, CLIENT), ("server", &server, PEER)] {
        hub.join(name, namespace, name);
        hub.ip(&format!("link set {name} master hub"));
        site.write(
            &format!("{name}.toml"),
            &format!(
                "[device]\nkind = \"xdp\"\ninterface = \"{name}\"\n\
                 [address]\nlist = [\"{address}/24\"]\n"
            ),
        );
    }
    let mut lighttpd = under_stack(&site, "server.toml", "lighttpd");
    lighttpd.args(["-D", "-f"]).arg(lighttpd_settings(&site, PEER, &[1, 65_536]));
    let _lighttpd = Guard::spawn_in(&server, lighttpd);
    let proxy = site.proxy(&[]);
    // lighttpd may not listen yet when the first connections arrive.
    let mut curl = under_stack(&site, "client.toml", "curl");
    curl.args(["--silent", "--show-error", "--fail", "--retry-all-errors", "--retry", "60"]);
    curl.args(["--retry-delay", "1", "--cacert"]).arg(site.path("chain.pem"));
    curl.arg(format!("https://{PROXY}/65536"));
    let got = succeed(&client, curl).stdout;
    assert!(got == testkit::content(65_536), "curl got something else");
    let before = proxy.counts();
    let requests = [
        (&["-n", "300", "-c", "50"][..], "1"),
        (&["-k", "-n", "2000", "-c", "50"], "1"),
        (&["-k", "-n", "200", "-c", "10"], "65536"),
    ];
    for (arguments, path) in requests {
        let mut ab = under_stack(&site, "client.toml", "ab");
        ab.args(["-q", "-s", "60"]).args(arguments).arg(format!("https://{PROXY}/{path}"));
        let report = succeed(&client, ab).stdout;
        assert_all_succeeded(&String::from_utf8_lossy(&report), arguments);
    }
    let after = proxy.end();
    // With -k, ab does not use a connection whose handshake ends after the last request was sent.
    assert!(after.of("handshakes") >= before.of("handshakes") + 302, "{}", after.0);
    assert_eq!(after.of("backend"), before.of("backend"), "{}", after.0);
}

#[test]
fn two_stacks_share_the_connections() {
    for mode in ["complete", "paired"] {
        let site = Site::with_two_stacks(mode);
        exchange_many(&site);
    }
}
