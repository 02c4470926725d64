//! Tests that the texts of all set-up errors name cause and remedy.

use std::io;
use std::path::{Path, PathBuf};

use sys::seccomp::SeccompError;
use testkit::assert_texts;

use crate::cluster::{EtcdError, PrivateFileError, StartError};
use crate::commands::CommandError;
use crate::policy::FileError;
use crate::run::RunError;
use crate::sandbox::SandboxError;

fn refused() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

fn not_json() -> serde_json::Error {
    serde_json::from_str::<u32>("x").expect_err("no number")
}

#[test]
fn errors_of_joining_a_zone() {
    let address = || ([10, 0, 0, 1], 7400).into();
    assert_texts!(StartError;
        StartError::BadLabel(_) => StartError::BadLabel("a b".into()),
            ["`a b` cannot name", "use 1 to 64 letters", "--zone or --host"];
        StartError::BadLease(_) => StartError::BadLease(1), ["a lease of 1 s", "use --lease 2"];
        StartError::PrivateFile(_) =>
            PrivateFileError::content(Path::new("/s/z"), "--zone-secret", "it is short").into(),
            ["/s/z", "--zone-secret"];
        StartError::NoZoneSecret(_) => StartError::NoZoneSecret("z".into()),
            ["zone z has no secret", "--make-secret FILE", "--zone-secret", "--insecure-zone"];
        StartError::Etcd(_) => EtcdError::Compacted { revision: 3 }.into(), ["revision 3"];
        StartError::Identity { .. } =>
            StartError::Identity { path: "/s/a".into(), source: refused() },
            ["cannot make /s/a", "use a --state-directory"];
        StartError::Listen { .. } => StartError::Listen { address: address(), source: refused() },
            ["cannot listen on 10.0.0.1:7400", "use --listen"];
        StartError::System { .. } =>
            StartError::System { what: "make an event descriptor", source: refused() },
            ["cannot make an event descriptor", "raise `ulimit -n`"];
    );
    let (path, option) = (|| PathBuf::from("/s/z"), "--zone-secret");
    assert_texts!(PrivateFileError;
        PrivateFileError::Read { .. } =>
            PrivateFileError::Read { path: path(), option, source: refused() },
            ["cannot read /s/z", "--zone-secret needs a regular file"];
        PrivateFileError::Exposed { .. } =>
            PrivateFileError::Exposed { path: path(), option, mode: 0o644, owner: 7, user: 0 },
            ["access to /s/z (mode 644, user 7)", "chown 0 /s/z", "chmod 600 /s/z"];
        PrivateFileError::Content { .. } =>
            PrivateFileError::content(&path(), option, "it has 3 bytes; make one"),
            ["cannot use /s/z for --zone-secret: it has 3 bytes; make one"];
    );
}

#[test]
fn errors_of_etcd() {
    let endpoint = || "etcd:2379".to_owned();
    assert_texts!(EtcdError;
        EtcdError::BadEndpoint { .. } =>
            EtcdError::BadEndpoint { text: "u@h".into(), why: "only host and port are allowed" },
            ["`u@h` is no endpoint", "write --etcd https://HOST:PORT"];
        EtcdError::BadFile { .. } =>
            EtcdError::BadFile { path: "/c".into(), option: "--etcd-ca", why: "no PEM".into() },
            ["cannot use /c for --etcd-ca: no PEM", "name a PEM file"];
        EtcdError::PrivateFile(_) =>
            PrivateFileError::content(Path::new("/c"), "--etcd-credentials", "no line").into(),
            ["/c", "--etcd-credentials"];
        EtcdError::Tls { .. } =>
            EtcdError::Tls { endpoint: endpoint(), source: "reset".into(), remedy: "see its log" },
            ["no TLS connection with etcd at etcd:2379: reset", "see its log"];
        EtcdError::Access { .. } =>
            EtcdError::Access { message: "denied".into(), remedy: "grant it" },
            ["etcd refuses access: denied", "grant it"];
        EtcdError::Unreachable { .. } =>
            EtcdError::Unreachable { endpoint: endpoint(), source: refused() },
            ["cannot connect to etcd at etcd:2379", "check that it runs"];
        EtcdError::TimedOut { .. } =>
            EtcdError::TimedOut { endpoint: endpoint(), timeout_ms: 500 },
            ["etcd:2379 did not answer within 500 ms", "check its load"];
        EtcdError::Broken { .. } =>
            EtcdError::Broken { endpoint: endpoint(), source: "no HTTP".into() },
            ["etcd:2379 failed: no HTTP", "check that it is etcd's client port"];
        EtcdError::Refused { .. } => EtcdError::Refused { status: 403, message: "no".into() },
            ["HTTP status 403", "see etcd's log"];
        EtcdError::Malformed { .. } => EtcdError::Malformed { source: not_json() },
            ["cannot parse etcd's answer", "use etcd 3.4 or later"];
        EtcdError::Compacted { .. } => EtcdError::Compacted { revision: 3 },
            ["revision 3", "fabled reads all keys again"];
    );
}

#[test]
fn errors_of_a_policy() {
    let parse = || {
        let source = toml::from_str::<toml::Table>("x =").expect_err("no value");
        FileError::Parse { path: "p.toml".into(), source: Box::new(source) }
    };
    // The parser's message shows the line, so the text has several.
    let text = parse().to_string();
    assert!(text.contains("cannot use the policy p.toml") && text.contains("--print-policy"));
    assert_texts!(FileError;
        FileError::Read { .. } => FileError::Read { path: "p.toml".into(), source: refused() },
            ["cannot read the policy p.toml", "name a readable file with --policy"];
        FileError::Value { .. } =>
            FileError::Value { path: "p.toml".into(), what: "retry_ms must be at most 1" },
            ["cannot use the policy p.toml", "retry_ms must be at most 1"];
        FileError::Parse { .. } => parse(), ["p.toml"];
    );
}

#[test]
fn errors_of_the_commands() {
    assert_texts!(CommandError;
        CommandError::NoDaemon { .. } =>
            CommandError::NoDaemon { path: "/run/f.sock".into(), source: refused() },
            ["no daemon at /run/f.sock", "start it with `fabled`", "--socket"];
        CommandError::Refused(_) => CommandError::Refused("no flow 1a; see `fable top`".into()),
            ["no flow 1a"];
        CommandError::Lost(_) => CommandError::Lost("closed the connection".into()),
            ["the daemon closed the connection", "see its log"];
        CommandError::NoFlow(_) => CommandError::NoFlow("no flow 1a is visible".into()), ["1a"];
        CommandError::Output(_) => CommandError::Output(refused()),
            ["cannot write to standard output", "check the disk or pipe"];
        CommandError::Page(_) => CommandError::Page(cli::PageError::Output(refused())),
            ["cannot write to standard output"];
    );
    let execute = || {
        let source = io::ErrorKind::NotFound.into();
        RunError::Execute { program: "nosuch".into(), source }
    };
    let library = || {
        let library = preload::launch::Library {
            file: "libnosuch.so",
            variable: "NO_SUCH_VARIABLE",
            package: "nosuch",
        };
        library.find().expect_err("there is none")
    };
    assert_texts!(RunError;
        RunError::Execute { .. } => execute(), ["cannot execute nosuch", "install it"];
        RunError::Library(_) => library().into(),
            ["cannot find the library libnosuch.so", "cargo build -p nosuch", "NO_SUCH_VARIABLE"];
        RunError::Statistics { .. } =>
            RunError::Statistics { file: "/no/f".into(), source: refused() },
            ["cannot write the statistics to /no/f", "name a file"];
        RunError::NoProgram => RunError::NoProgram, ["no program was named", "add it"];
    );
}

#[test]
fn errors_of_restrictions() {
    assert_texts!(SandboxError;
        SandboxError::Capabilities(_) => SandboxError::Capabilities(refused()),
            ["cannot drop capabilities", "permit capset(2)"];
        SandboxError::NoUser(_) => SandboxError::NoUser("fable".into()),
            ["no user \"fable\"", "getent passwd"];
        SandboxError::User { .. } => SandboxError::User { name: "fable".into(), source: refused() },
            ["cannot become the user fable", "as root, or omit --user"];
        SandboxError::Directory { .. } =>
            SandboxError::Directory { path: "/run/fable".into(), source: refused() },
            ["cannot make the directory /run/fable", "--socket"];
        SandboxError::Seccomp(_) => SeccompError::Thread(7).into(), ["thread 7", "--no-seccomp"];
    );
}
