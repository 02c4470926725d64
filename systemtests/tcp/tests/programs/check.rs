//! Tests `mtcp check`: the requirements that this machine does not meet, with cause and remedy.

use crate::support::{Site, program};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Checks settings in the server's namespace, which has the interface `server`. Returns whether
/// they are valid, and the output. Without rights, the check runs as for another user.
fn check(site: &Site, settings: &str, with_rights: bool) -> (bool, String) {
    let file = site.path("checked.toml");
    std::fs::write(&file, settings).expect("it is written");
    let mut command = if with_rights {
        Command::new(program("mtcp"))
    } else {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-all").arg(program("mtcp"));
        command
    };
    command.arg("check").arg(file);
    let output = site.server.run(|| command.output()).expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said.into_owned())
}

fn device(kind: &str, interface: &str) -> String {
    format!("[device]\nkind = \"{kind}\"\ninterface = \"{interface}\"\n")
}

fn with_address(device: &str, list: &str) -> String {
    format!("{device}[address]\nlist = [{list}]\n")
}

#[track_caller]
fn assert_bad(site: &Site, settings: &str, cause: &[&str]) {
    let (good, said) = check(site, settings, true);
    assert!(!good && !said.contains(": good"), "{settings}\n{said}");
    for words in cause {
        assert!(said.contains(words), "`{words}` is missing in: {said}\n{settings}");
    }
}

#[track_caller]
fn assert_good(site: &Site, settings: &str) {
    let (good, said) = check(site, settings, true);
    assert!(good && said.contains(": good"), "{settings}\n{said}");
}

const ADDRESS: &str = "\"10.9.0.2/24\", \"fd09::2/64\"";

#[test]
fn an_interface_must_be_there_up_and_fit() {
    let site = Site::new("packet");
    for kind in ["xdp", "packet"] {
        assert_good(&site, &with_address(&device(kind, "server"), ADDRESS));
        let absent = with_address(&device(kind, "nosuch"), ADDRESS);
        assert_bad(&site, &absent, &["device.interface", "nosuch", "`ip link`"]);
        let two = with_address(&device(kind, "server"), ADDRESS) + "[engine]\ncores = 2\n";
        if kind == "xdp" {
            assert_bad(&site, &two, &["1 receive queue", "ethtool -L server"]);
        } else {
            assert_good(&site, &two);
        }
    }
    assert_good(&site, &with_address(&device("tap", "mtcp0"), ADDRESS));
    assert_bad(&site, &with_address(&device("tap", "server"), ADDRESS), &["server", "exists"]);
    assert_bad(&site, &with_address(&device("memory", ""), ADDRESS), &["device.kind"]);
    let small = with_address(&device("packet", "server"), ADDRESS) + "[tcp]\nmtu = 1000\n";
    assert_bad(&site, &small, &["1280", "fd09::2", "tcp.mtu"]);
    site.server.ip("link set server down");
    let packet = with_address(&device("packet", "server"), ADDRESS);
    assert_bad(&site, &packet, &["server is down", "ip link set server up"]);
}

#[test]
fn the_device_needs_rights() {
    let site = Site::new("packet");
    for (kind, interface, needed) in [
        ("xdp", "server", "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF"),
        ("packet", "server", "CAP_NET_RAW"),
        ("tap", "mtcp0", "CAP_NET_ADMIN"),
    ] {
        let settings = with_address(&device(kind, interface), ADDRESS);
        let (good, said) = check(&site, &settings, false);
        assert!(!good && said.contains(needed), "{kind}: {said}");
        assert!(said.contains("root") || said.contains("setcap"), "no remedy: {said}");
    }
}

#[test]
fn addresses_must_be_the_stacks_or_shared() {
    let site = Site::new("packet");
    let packet = device("packet", "server");
    let bad = |list: &str, cause: &[&str]| {
        assert_bad(&site, &with_address(&packet, list), &[&["address.list"], cause].concat());
    };
    bad("\"10.9.0.0/24\"", &["10.9.0.0", "network"]);
    bad("\"10.9.0.255/24\"", &["10.9.0.255", "broadcast"]);
    bad("\"127.0.0.2/8\"", &["127.0.0.2", "loopback"]);
    bad("\"10.9.0.2/24\", \"10.9.0.2/24\"", &["10.9.0.2", "twice"]);
    site.server.ip("addr add 10.9.0.2/24 dev server");
    bad("\"10.9.0.2/24\"", &["10.9.0.2", "kernel", "ip addr del 10.9.0.2/24"]);
    let xdp = device("xdp", "server");
    let shared = |list: &str| with_address(&xdp, list) + "ownership = \"shared\"\n";
    assert_good(&site, &shared("\"10.9.0.2/24\""));
    assert_good(&site, &shared(""));
    let absent = shared("\"10.9.0.3/24\"");
    assert_bad(&site, &absent, &["10.9.0.3", "ip addr add 10.9.0.3/24 dev server"]);
    site.server.ip("addr flush dev server");
    assert_bad(&site, &shared(""), &["server has no address"]);
}

#[test]
fn routes_processors_and_files_must_fit() {
    let site = Site::new("packet");
    let good = with_address(&device("packet", "server"), ADDRESS);
    let with = |more: &str| format!("{good}{more}");
    let own = with("[[route]]\nto = \"0.0.0.0/0\"\nvia = \"10.9.0.2\"\n");
    assert_bad(&site, &own, &["route.via", "10.9.0.2"]);
    assert_bad(&site, &with("[engine]\ncpus = [1000]\n"), &["engine.cpus", "1000"]);
    let absent = "/nosuch/directory/file";
    let capture = with(&format!("[capture]\nfile = \"{absent}\"\n"));
    assert_bad(&site, &capture, &["capture.file", absent]);
    let stat = with(&format!("[stat]\nsocket = \"{absent}\"\n"));
    assert_bad(&site, &stat, &["stat.socket", absent]);
}

#[test]
fn a_program_with_more_rights_than_its_user_ignores_the_users_variable() {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().expect("a directory");
    let permit = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    };
    permit(directory.path(), 0o755);
    let (copy, file) = (directory.path().join("mtcp"), directory.path().join("users.toml"));
    std::fs::copy(program("mtcp"), &copy).expect("it is copied");
    std::fs::write(&file, "nonsense").expect("it is written");
    let check = |mode| {
        permit(&copy, mode);
        let mut command = Command::new(&copy);
        command.arg("check").env("MTCP_CONFIG", &file).uid(NOBODY).gid(NOBODY);
        String::from_utf8(command.output().expect("it runs").stderr).expect("text")
    };
    let plain = check(0o755);
    assert!(plain.contains("users.toml"), "{plain}");
    let privileged = check(0o4755);
    assert!(privileged.contains("no configuration"), "{privileged}");
}
