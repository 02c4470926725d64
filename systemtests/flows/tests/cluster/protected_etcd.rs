//! Tests of an etcd with TLS, client certificates and passwords, and of the answers to those who
//! lack one of them.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fabled::cluster::{EtcdAccess, Member, Options};
use fabled::cluster_link::ClusterEvent;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};

use super::etcd::{Etcd, PORT};
use super::hosts::{Host, join_with, options};
use super::network::{ETCD, Network};

/// A CA, and files with the certificates and keys that it signed.
struct Authority<'a> {
    directory: &'a Path,
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    fn new(directory: &'a Path, name: &'static str) -> Authority<'a> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
        Authority { directory, name, issuer: Issuer::new(params, key) }
    }

    fn certificate(&self) -> PathBuf {
        self.directory.join(format!("{}.pem", self.name))
    }

    /// Signs a certificate for etcd's address. It is good for both sides, because etcd's gateway
    /// uses etcd's certificate as a client. That gateway takes no client's with a common name.
    fn sign(&self, name: &str, common_name: Option<&str>) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![ETCD.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.directory.join(format!("{}-{name}.pem", self.name));
        fs::write(&path, certificate.pem()).unwrap();
        let key =
            private(self.directory, &format!("{}-{name}.key", self.name), key.serialize_pem());
        (path, key)
    }
}

fn private(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    use std::io::Write;
    let path = directory.join(name);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(content.as_ref()).unwrap();
    path
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// An etcd that only the user `fabled` with a certificate may use, and the files for that.
struct Protected {
    directory: tempfile::TempDir,
    etcd: Etcd,
    access: EtcdAccess,
}

impl Protected {
    fn start(network: &Network) -> Protected {
        let directory = tempfile::tempdir().unwrap();
        let ca = Authority::new(directory.path(), "ca");
        let (server, server_key) = ca.sign("etcd", None);
        let (certificate, key) = ca.sign("host", None);
        let arguments = [
            ("--cert-file", &server),
            ("--key-file", &server_key),
            ("--trusted-ca-file", &ca.certificate()),
        ];
        let arguments = arguments.iter().map(|(option, path)| format!("{option}={}", text(path)));
        let arguments = arguments.chain(["--client-cert-auth".to_owned()]).collect();
        let etcd = Etcd::start_with(network, "https", arguments);
        ca.sign("named", Some("fabled"));
        let credentials = private(directory.path(), "user", "fabled:good:password\n");
        let access = EtcdAccess {
            ca: Some(ca.certificate()),
            certificate: Some(certificate),
            key: Some(key),
            credentials: Some(credentials),
        };
        let protected = Protected { directory, etcd, access };
        for words in [
            "user add root:root",
            "user grant-role root root",
            "user add fabled:good:password",
            "user add other:password",
            "role add zone",
            "role grant-permission zone readwrite --prefix=true /fable/test/",
            "user grant-role fabled zone",
            "auth enable",
        ] {
            protected.control(network, words);
        }
        protected
    }

    fn control(&self, network: &Network, words: &str) {
        let file = |file: &Option<PathBuf>| text(file.as_ref().unwrap());
        let tls = format!(
            "--cacert {} --cert {} --key {}",
            file(&self.access.ca),
            file(&self.access.certificate),
            file(&self.access.key)
        );
        let words = format!("etcdctl --endpoints https://{ETCD}:{PORT} {tls} {words}");
        network.bridge.command(&words, &[("ETCDCTL_API", "3")]);
    }

    fn options(&self, name: &str) -> Options {
        let etcd = vec![format!("https://{ETCD}:{PORT}")];
        Options { etcd, etcd_access: self.access.clone(), ..options(name) }
    }

    /// Returns why a host with this access does not join.
    fn refusal(&self, network: &Network, access: EtcdAccess) -> String {
        let options = Options { etcd_access: access, ..self.options("c") };
        let member = network.hosts[1].run(move || Member::start(&options)).unwrap();
        let mut host = Host { member, events: Vec::new() };
        let event = host.expect("an answer", |event| {
            matches!(event, ClusterEvent::Up)
                || matches!(event, ClusterEvent::Down { reason } if !reason.contains("within"))
        });
        match event {
            ClusterEvent::Down { reason } => reason,
            other => panic!("it is let in: {other:?}"),
        }
    }
}

#[test]
fn hosts_join_through_tls_with_a_certificate_and_a_password() {
    let Some(network) = Network::start("an etcd with TLS and users", 2) else { return };
    let mut protected = Protected::start(&network);
    let [mut a, b] =
        [0, 1].map(|index| join_with(&network, index, protected.options(["a", "b"][index])));
    a.publish_well("fable://kv/1");
    b.found("fable://kv/1");
    // etcd forgets its tokens when it stops: the hosts prove their user again.
    protected.etcd.kill();
    a.expect_down();
    protected.etcd.start_again(&network);
    a.expect_up();
    a.publish_well("fable://kv/2");
    b.found("fable://kv/2");
}

#[test]
fn who_lacks_a_certificate_or_the_password_is_refused_with_a_remedy() {
    let Some(network) = Network::start("strangers at an etcd with TLS and users", 2) else {
        return;
    };
    let protected = Protected::start(&network);
    let directory = protected.directory.path();
    let good = || protected.access.clone();
    let stranger = Authority::new(directory, "stranger");
    let (certificate, key) = stranger.sign("host", None);
    let user = |name: &str, text: &str| Some(private(directory, name, text));

    let other_ca = EtcdAccess { ca: Some(stranger.certificate()), ..good() };
    let other_certificate = EtcdAccess { certificate: Some(certificate), key: Some(key), ..good() };
    let named = EtcdAccess {
        certificate: Some(directory.join("ca-named.pem")),
        key: Some(directory.join("ca-named.key")),
        ..good()
    };
    let no_certificate = EtcdAccess { certificate: None, key: None, ..good() };
    let no_user = EtcdAccess { credentials: None, ..good() };
    let wrong = EtcdAccess { credentials: user("wrong", "fabled:bad"), ..good() };
    let no_role = EtcdAccess { credentials: user("other", "other:password"), ..good() };
    for (access, words) in [
        (other_ca, ["no TLS connection with etcd", "UnknownIssuer", "--etcd-ca"]),
        (other_certificate, ["no TLS connection with etcd", "etcd's log", "--etcd-certificate"]),
        (no_certificate, ["no TLS connection with etcd", "etcd's log", "--etcd-certificate"]),
        (named, ["refuses access", "CommonName of client", "issue one without"]),
        (no_user, ["refuses access", "etcdserver: ", "--etcd-credentials"]),
        (wrong, ["refuses access", "authentication failed", "--etcd-credentials"]),
        (no_role, ["refuses access", "permission denied", "grant-permission"]),
    ] {
        let reason = protected.refusal(&network, access);
        assert!(words.iter().all(|word| reason.contains(word)), "{words:?}: {reason}");
    }
    // The same host with everything is let in.
    join_with(&network, 1, protected.options("c"));
}
