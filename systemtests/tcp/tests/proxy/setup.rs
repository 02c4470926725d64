//! Tests that a failed start reports cause and remedy, and tests openssl as the client.

use crate::backend;
use crate::client::{client, expect, over, read_all, say_goodbye, send};
use crate::site::{PEER, PROXY, PROXY_V6, Site, Testbed};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::process::{Command, Stdio};
use testkit::process::{program, succeed};

/// Runs the program with changed options, and returns its error.
fn start(site: &Site, replace: &[(&str, &str)]) -> String {
    site.complaint(options(site, replace))
}

fn options(site: &Site, replace: &[(&str, &str)]) -> Command {
    let mut options = vec![
        ("--listen", format!("{PROXY}:443")),
        ("--to", format!("{PEER}:80")),
        ("--certificate", site.path("chain.pem").display().to_string()),
        ("--key", site.path("key.pem").display().to_string()),
    ];
    for (name, value) in replace {
        options.retain(|(other, _)| other != name);
        options.push((name, (*value).to_owned()));
    }
    let mut command = Command::new(program("tls-proxy"));
    command.env_remove("MEGAPIPE_DRIVER").env_remove("MTCP_CONFIG").stdin(Stdio::null());
    command.args(options.iter().flat_map(|(name, value)| [*name, value.as_str()]));
    command
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn files_that_are_wrong_are_named_with_what_belongs_there() {
    let site = Site::new(Testbed::Epoll);
    let file = |name: &str| site.path(name).display().to_string();
    let missing = file("missing.pem");
    assert_says(
        &start(&site, &[("--certificate", &missing)]),
        &["cannot read", "missing.pem: ", "may read"],
    );
    site.write("empty.pem", "# nothing\n");
    let text = start(&site, &[("--key", &file("empty.pem"))]);
    assert_says(&text, &["empty.pem: ", "PRIVATE KEY"]);
    let text = start(&site, &[("--certificate", &file("key.pem"))]);
    assert_says(&text, &["key.pem: ", "BEGIN CERTIFICATE"]);
    site.write("cut.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n");
    let text = start(&site, &[("--certificate", &file("cut.pem"))]);
    assert_says(&text, &["cut.pem: ", "cut off"]);
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    site.write("broken.pem", broken);
    assert_says(&start(&site, &[("--certificate", &file("broken.pem"))]), &["broken.pem"]);
    let CertifiedKey { signing_key, .. } =
        generate_simple_self_signed(["other.test".to_owned()]).expect("a certificate");
    site.write("other.pem", &signing_key.serialize_pem());
    let text = start(&site, &[("--key", &file("other.pem"))]);
    assert_says(&text, &["other.pem does not belong to", "chain.pem", "name the key"]);
}

#[test]
fn addresses_and_drivers_that_cannot_be_had_are_told_with_the_remedy() {
    let site = Site::new(Testbed::Epoll);
    let taken = site.proxy(&[]);
    assert_says(&start(&site, &[]), &["10.9.0.1:443", "ss -ltnp"]);
    drop(taken);
    assert_says(&start(&site, &[("--listen", "10.99.0.1:443")]), &["10.99.0.1:443", "ip address"]);
    assert_says(&start(&site, &[("--driver", "kqueue")]), &["kqueue", "epoll or mtcp"]);
    assert_says(&start(&site, &[("--config", "mtcp.toml")]), &["--driver mtcp"]);
    assert_says(&start(&site, &[("--driver", "mtcp")]), &["MTCP_CONFIG"]);
    let config = site.path("mtcp.toml").display().to_string();
    site.write("mtcp.toml", "[device]\nkind = \"xdp\"\ninterface = \"nowhere\"\n");
    let text = start(&site, &[("--driver", "mtcp"), ("--config", &config)]);
    assert_says(&text, &["mtcp.toml", "address.list"]);
    let settings = "[device]\nkind = \"xdp\"\ninterface = \"nowhere\"\n\
                    [address]\nlist = [\"10.9.0.1/24\"]\n";
    site.write("mtcp.toml", settings);
    let text = start(&site, &[("--driver", "mtcp"), ("--config", &config)]);
    assert_says(&text, &["nowhere"]);
    assert_says(&start(&site, &[("--cores", "255")]), &["--cores 255", "lower --cores"]);
    let text = site.complaint(under_limit(options(&site, &[("--max-connections", "1000")])));
    assert_says(&text, &["1000 connections", "2256 descriptors", "limit is 1000", "ulimit -Hn"]);
}

/// The program with a limit of 1000 descriptors.
fn under_limit(program: Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 1000 && exec \"$@\"", "sh"]).arg(program.get_program());
    command.args(program.get_args()).stdin(Stdio::null());
    command
}

#[test]
fn openssl_resumes_its_session() {
    let site = Site::new(Testbed::Uring);
    let server = backend::serve(site.listen(80), 4, |mut stream| {
        expect(&mut stream, b"a line\n");
        send(&mut stream, b"its answer\n");
    });
    let proxy = site.proxy(&[]);
    for version in ["-tls1_2", "-tls1_3"] {
        for (option, state) in [("-sess_out", "New"), ("-sess_in", "Reused")] {
            let mut command = Command::new("openssl");
            let address = format!("{PROXY}:443");
            command.args(["s_client", "-connect", &address, version, "-ign_eof", "-CAfile"]);
            command.arg(site.path("chain.pem")).arg(option).arg(site.path("session"));
            // Sends a line and reads the answer, so that tickets have arrived.
            command.stdin(input(&site));
            let output = succeed(site.peers(), command).stdout;
            let text = String::from_utf8_lossy(&output);
            assert!(text.contains(&format!("{state}, TLSv1.")), "{version} {option}: {text}");
            assert!(text.contains("its answer"), "{text}");
            assert!(text.contains("Verify return code: 0"), "{text}");
        }
    }
    server.join().expect("the backend");
    proxy.await_counts(&[("resumed", 2)]);
}

/// A line for a client to send.
fn input(site: &Site) -> std::fs::File {
    site.write("input", "a line\n");
    std::fs::File::open(site.path("input")).expect("it was written")
}

#[test]
fn the_environment_chooses_where_the_command_line_does_not() {
    let site = Site::new(Testbed::Xdp);
    let server = backend::serve(site.listen(80), 1, backend::echo);
    let mut command = options(&site, &[]);
    command.env("MEGAPIPE_DRIVER", "mtcp").env("MTCP_CONFIG", site.path("mtcp.toml"));
    let proxy = site.start(command);
    let mut client = client(&site);
    send(&mut client, b"by the stack");
    say_goodbye(&mut client);
    assert_eq!(read_all(&mut client), b"by the stack");
    server.join().expect("the backend");
    assert_eq!(proxy.end().of("whole"), 1);
}

#[test]
fn all_addresses_of_both_families_can_be_listened_on_side_by_side() {
    for testbed in [Testbed::Uring, Testbed::Epoll, Testbed::Xdp] {
        let site = Site::new(testbed);
        let server = backend::serve(site.listen(80), 2, backend::echo);
        let mut command = site.command();
        command.args(["--listen", "0.0.0.0:443", "--listen", "[::]:443"]);
        command.args(["--to", &format!("{PEER}:80")]);
        let proxy = site.start(command);
        for address in [format!("{PROXY}:443"), format!("[{PROXY_V6}]:443")] {
            let mut client = over(&site, site.connect_to(&address));
            send(&mut client, address.as_bytes());
            say_goodbye(&mut client);
            assert_eq!(read_all(&mut client), address.as_bytes(), "{testbed:?}");
        }
        server.join().expect("the backend");
        assert_eq!(proxy.end().of("whole"), 2);
    }
}
