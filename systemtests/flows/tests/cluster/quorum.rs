//! Tests with an etcd of three members, of which some die. Names are served as long as two of them
//! run; while they do not, the last known names are used.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use fabled::cluster::Options;
use fabled::cluster_link::{Cluster, ClusterEvent};

use super::hosts::{Host, LEASE_S, eventually, join_with, options, ticket};
use super::network::{ETCD, Network};
use systemtests_flows::within;

const MEMBERS: usize = 3;

fn client_url(member: usize) -> String {
    format!("http://{ETCD}:{}", 2379 + 100 * member)
}

fn peer_url(member: usize) -> String {
    format!("http://127.0.0.1:{}", 2380 + 100 * member)
}

/// Three members, all in the bridge's namespace.
struct Quorum {
    members: Vec<Option<Child>>,
    directory: tempfile::TempDir,
}

impl Quorum {
    fn start(network: &Network) -> Quorum {
        let directory = tempfile::tempdir().unwrap();
        let mut quorum = Quorum { members: (0..MEMBERS).map(|_| None).collect(), directory };
        (0..MEMBERS).for_each(|member| quorum.launch(network, member, "new"));
        quorum.answers(network, 0);
        quorum
    }

    fn launch(&mut self, network: &Network, member: usize, state: &'static str) {
        let data = self.directory.path().join(format!("data{member}"));
        let log = fs::File::create(self.directory.path().join(format!("log{member}"))).unwrap();
        let members = (0..MEMBERS).map(|member| format!("m{member}={}", peer_url(member)));
        let members = members.collect::<Vec<_>>().join(",");
        let process = network.bridge.run(move || {
            let (client, peer) = (client_url(member), peer_url(member));
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("m{member}"), "--logger", "zap"]);
            command.arg("--data-dir").arg(data);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &members, "--initial-cluster-state", state]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            // SAFETY: prctl with plain numbers is permitted between fork and exec.
            unsafe {
                command.pre_exec(|| {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    Ok(())
                });
            }
            command.spawn().unwrap()
        });
        self.members[member] = Some(process);
    }

    /// Waits until a member answers with data that a majority has agreed on.
    fn answers(&self, network: &Network, member: usize) {
        let ask = || {
            network.bridge.run(move || {
                let mut command = Command::new("etcdctl");
                command.env("ETCDCTL_API", "3").args(["--endpoints", &client_url(member)]);
                command.args(["--command-timeout", "5s", "get", "/"]);
                command.stdin(Stdio::null()).output().unwrap().status.success()
            })
        };
        assert!(eventually(ask), "member {member} does not answer");
    }

    fn kill(&mut self, member: usize) {
        let mut process = self.members[member].take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn lose_data(&self, member: usize) {
        fs::remove_dir_all(self.directory.path().join(format!("data{member}"))).unwrap();
    }

    /// Replaces a member that has lost its data by a new one, as an operator of etcd does.
    fn replace(&mut self, network: &Network, member: usize) {
        let endpoint = client_url((member + 1) % MEMBERS);
        let try_control = |words: &str| {
            let words = format!("--endpoints {endpoint} --command-timeout 5s {words}");
            let output = network.bridge.run(move || {
                let mut command = Command::new("etcdctl");
                command.env("ETCDCTL_API", "3").args(words.split(' '));
                command.stdin(Stdio::null()).output().unwrap()
            });
            let text = String::from_utf8(output.stdout).unwrap();
            output.status.success().then_some(text)
        };
        // etcd refuses to change its members until the remaining ones have been connected for a
        // while.
        let control = |words: &str| within(words, || try_control(words));
        let list = control("member list");
        let name = format!("m{member}");
        let line = list.lines().find(|line| line.split(", ").any(|word| word == name)).unwrap();
        control(&format!("member remove {}", line.split(',').next().unwrap()));
        control(&format!("member add {name} --peer-urls={}", peer_url(member)));
        self.launch(network, member, "existing");
        self.answers(network, member);
    }
}

impl Drop for Quorum {
    fn drop(&mut self) {
        for process in self.members.iter_mut().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Makes two hosts that know all members, and a name of the first.
fn two_hosts(network: &Network) -> [Host; 2] {
    let etcd: Vec<String> = (0..MEMBERS).map(client_url).collect();
    let [mut a, b] = [0, 1].map(|index| {
        let name = ["a", "b"][index];
        let options = Options { etcd: etcd.clone(), lease_ttl_s: LEASE_S, ..options(name) };
        join_with(network, index, options)
    });
    a.publish_well("fable://kv/1");
    b.found("fable://kv/1");
    [a, b]
}

/// Asserts that a new name is known to the other host, and that the old one still exists.
fn assert_serves_new(a: &mut Host, b: &mut Host, name: &str) {
    a.publish_well(name);
    b.found(name);
    b.found("fable://kv/1");
}

fn assert_has_lost_nothing(host: &mut Host) {
    let lost = |event: &ClusterEvent| matches!(event, ClusterEvent::NameGone { .. });
    let events = host.take_events();
    assert!(!events.iter().any(lost), "{events:?}");
}

#[test]
fn one_member_dies_and_loses_its_data() {
    let Some(network) = Network::start("one member of etcd dies", 2) else { return };
    let mut quorum = Quorum::start(&network);
    let [mut a, mut b] = two_hosts(&network);
    for member in 0..MEMBERS {
        // One round for each member, because the hosts may use any of them.
        quorum.kill(member);
        assert_serves_new(&mut a, &mut b, &format!("fable://killed/{member}"));
        match member {
            0 => {
                quorum.lose_data(member);
                quorum.replace(&network, member);
            }
            _ => {
                quorum.launch(&network, member, "existing");
                quorum.answers(&network, member);
            }
        }
        assert_serves_new(&mut a, &mut b, &format!("fable://back/{member}"));
    }
    assert_has_lost_nothing(&mut b);
}

#[test]
fn two_members_die_and_one_comes_back() {
    let Some(network) = Network::start("two members of etcd die", 2) else { return };
    let mut quorum = Quorum::start(&network);
    let [mut a, mut b] = two_hosts(&network);
    quorum.kill(0);
    quorum.kill(1);
    a.expect_down();
    b.expect_down();
    // The third one decides nothing alone: the last known names are used, and new ones wait.
    assert_eq!(b.find("fable://kv/1").len(), 1);
    b.member.ticket(&ticket("fable://kv/1", "b"), "a").unwrap();
    a.publish("fable://kv/2");
    quorum.launch(&network, 1, "existing");
    a.published("fable://kv/2");
    b.found("fable://kv/2");
    b.found("fable://kv/1");
    assert_has_lost_nothing(&mut b);
}
