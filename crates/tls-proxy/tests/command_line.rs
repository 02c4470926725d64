//! Tests of the answers to wrong command lines.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use testkit::{Refusal, assert_refusals, refusal};

/// Options with which the program would start.
const SOUND: &str = "--listen 127.0.0.1:0 --to 127.0.0.1:9 --certificate chain.pem --key key.pem";
const NO_CHAIN: &str = "--listen 127.0.0.1:0 --to 127.0.0.1:9 --key key.pem --certificate";
const NO_KEY: &str = "--listen 127.0.0.1:0 --to 127.0.0.1:9 --certificate chain.pem --key";
const NO_LISTEN: &str = "--to 127.0.0.1:9 --certificate chain.pem --key key.pem --listen";

/// Options that are followed by a wrong one; the parts are those of [`refusal`].
type Row<'a> = (&'a str, &'a str, i32, [&'a str; 3]);

const ROWS: &[Row<'_>] = &[
    (NO_CHAIN, "missing.pem", 1, ["missing.pem: No such file", "cannot read", "user may read"]),
    (NO_CHAIN, "key.pem", 1, ["key.pem", "it contains no such section", "BEGIN CERTIFICATE"]),
    (NO_CHAIN, "cut.pem", 1, ["cut.pem", "it is cut off", "name a file with"]),
    (NO_KEY, "open.pem", 1, ["mode 644", "is not private", "`chmod 600 open.pem`"]),
    (
        NO_KEY,
        "chain.pem --allow-readable-key",
        1,
        ["chain.pem", "it contains no such section", "BEGIN PRIVATE KEY"],
    ),
    (
        NO_KEY,
        "other.pem",
        1,
        ["other.pem", "does not belong to the first certificate", "name the key of the server"],
    ),
    (SOUND, "--user nosuchuser", 1, ["\"nosuchuser\"", "there is no user", "getent passwd"]),
    (SOUND, "--proxy-protocol v3", 2, ["'v3'", "possible values: v1, v2", "--help"]),
    (
        NO_LISTEN,
        "0.0.0.0:0 --proxy-protocol v2",
        1,
        ["0.0.0.0:0", "stands for all addresses", "repeat --listen"],
    ),
    (SOUND, "--driver kqueue", 1, ["\"kqueue\"", "unknown driver", "auto, uring, epoll or mtcp"]),
    (
        SOUND,
        "--driver epoll --config mtcp.toml",
        1,
        ["the driver epoll", "--config does not apply", "add --driver mtcp"],
    ),
    (SOUND, "--driver mtcp", 1, ["no configuration", "set MTCP_CONFIG", "docs/mtcp.toml"]),
    (
        SOUND,
        "--driver mtcp --config missing.toml",
        1,
        ["missing.toml", "cannot read the configuration", "--config"],
    ),
    (SOUND, "--driver epoll --cores 256", 1, ["--cores 256", "this process may use", "lower"]),
    (NO_LISTEN, "192.0.2.1:443", 1, ["192.0.2.1:443", "cannot listen on", "ip address"]),
    (NO_LISTEN, "nowhere", 2, ["'nowhere'", "invalid socket address syntax", "--help"]),
    (SOUND, "--idle-timeout 0", 2, ["'0'", "the least is 0.001", "use a longer time"]),
    (SOUND, "--drain 10s", 2, ["'10s'", "use a number of seconds from 0", "such as 10 or 0.5"]),
    (SOUND, "--max-connections 0", 2, ["0 is not in", "is not in", "1..=1000000"]),
    (SOUND, "--backend 10.0.0.1:80", 2, ["'--backend'", "unexpected argument", "--help"]),
];

#[test]
fn wrong_command_lines_are_answered_with_cause_and_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    write_files(directory.path());
    let lines: Vec<String> =
        ROWS.iter().map(|(rest, wrong, ..)| format!("{rest} {wrong}")).collect();
    let table: Vec<Refusal<'_>> = lines
        .iter()
        .zip(ROWS)
        .map(|(line, (_, _, status, parts))| refusal(line, *status, *parts))
        .collect();
    let prepare = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tls-proxy"));
        command.current_dir(directory.path());
        command.env_remove("MEGAPIPE_DRIVER").env_remove("MTCP_CONFIG");
        command
    };
    assert_refusals("tls-proxy", prepare, &table);
}

fn write_files(directory: &Path) {
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).expect("a file");
    let pair = || generate_simple_self_signed(["server.test".to_owned()]).expect("a certificate");
    let CertifiedKey { cert, signing_key } = pair();
    write("chain.pem", &cert.pem());
    write("key.pem", &signing_key.serialize_pem());
    write("other.pem", &pair().signing_key.serialize_pem());
    write("open.pem", &signing_key.serialize_pem());
    for (name, mode) in [("key.pem", 0o600), ("other.pem", 0o600), ("open.pem", 0o644)] {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(directory.join(name), permissions).expect("a file");
    }
    write("cut.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n");
}
