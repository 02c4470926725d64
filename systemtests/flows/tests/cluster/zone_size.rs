//! What a zone of many hosts asks of etcd: the daemon's own sessions, one for each host, in this
//! process. docs/scale.md has the figures for 10,000 hosts and how to repeat them.

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use fabled::cluster::Options;
use fabled::cluster::simulation::Simulation;

use super::etcd::Etcd;
use super::etcd_load::{Counters, Sampler};
use super::hosts::{options, parsed};
use super::network::Network;

/// How long the hosts run between two looks at them.
const STEP: Duration = Duration::from_millis(100);
/// The bytes that a host may cost when etcd returns with its data: far less than a listing.
const RETURN_BYTES: f64 = 8192.0;

/// The sizes of a zone, from the environment.
struct Size {
    hosts: usize,
    zones: usize,
    lease_s: u32,
}

impl Size {
    fn read() -> Size {
        let number = |name: &str, default: usize| match env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
            Err(_) => default,
        };
        Size {
            hosts: number("FABLE_ZONE_HOSTS", 100),
            zones: number("FABLE_ZONES", 1),
            lease_s: number("FABLE_ZONE_LEASE_S", 15).try_into().expect("a lease in seconds"),
        }
    }

    /// Everything that waits gives up after this.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(120) + Duration::from_millis(200) * self.hosts.try_into().expect("few")
    }

    /// Lets the hosts run until etcd has the records of all of them and no others, and all know it.
    fn settle(&self, simulation: &mut Simulation, network: &Network, what: &str) {
        let time_limit = self.time_limit();
        let hosts = simulation.hosts();
        // A host and its name each; and the record of the store.
        let keys = (2 * hosts + self.zones) as f64;
        run_until(simulation, time_limit, what, |all| {
            let counters = Counters::read();
            let found = counters.map(|found| found.other("etcd_debugging_mvcc_keys_total"));
            all.joined() == hosts && found == Some(keys)
        });
        let revision = Etcd::revision(network);
        // Changes of other zones are no news.
        if self.zones == 1 {
            run_until(simulation, time_limit, what, |all| all.informed(revision) == hosts);
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_s.into())
    }
}

/// One phase of the life of a zone, as etcd's counters show it.
struct Phase {
    begin: Instant,
    before: Option<Counters>,
}

impl Phase {
    fn begin() -> Phase {
        Phase { begin: Instant::now(), before: Counters::read() }
    }

    /// Prints the phase and returns what etcd did in it.
    fn end(self, what: &str, sampler: &Sampler) -> Counters {
        let counters = Counters::read().expect("etcd answers");
        let done = self.before.map_or(counters.clone(), |before| counters.since(&before));
        done.print(what, self.begin.elapsed(), sampler.peak(self.begin));
        done
    }
}

/// Lets the hosts run until the condition holds.
fn run_until(
    simulation: &mut Simulation,
    time_limit: Duration,
    what: &str,
    mut holds: impl FnMut(&Simulation) -> bool,
) {
    let begin = Instant::now();
    loop {
        simulation.run(STEP);
        if holds(simulation) {
            return;
        }
        let (joined, hosts) = (simulation.joined(), simulation.hosts());
        assert!(begin.elapsed() < time_limit, "{what}: {joined} of {hosts} hosts have joined");
    }
}

/// Returns how many connections were accepted in this thread's namespace.
fn accepted() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").expect("/proc");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut both = names.split_whitespace().zip(values.split_whitespace());
    let found = both.find(|(name, _)| *name == "PassiveOpens").expect("the counter");
    found.1.parse().expect("a number")
}

/// Adds hosts with these numbers.
fn add(simulation: &mut Simulation, size: &Size, hosts: std::ops::Range<usize>) {
    for index in hosts {
        let zone = format!("zone{}", index % size.zones);
        let host = format!("host{index}");
        let name = parsed(&format!("fable://service/{host}"));
        let listen = "10.77.0.1:7171".parse().expect("an address");
        let options = Options { zone, listen, lease_ttl_s: size.lease_s, ..options(&host) };
        simulation.add(&options, &name).expect("a host starts");
    }
}

#[test]
fn many_hosts_ask_little_of_etcd() {
    let Some(network) = Network::start("many hosts", 0) else { return };
    let size = Size::read();
    // A watch, a connection for calls and an event descriptor each; a second call sometimes.
    testkit::raise_descriptor_limit(4 * u64::try_from(size.hosts).expect("few") + 1000);
    let mut etcd = Etcd::start(&network);
    network.bridge.enter();
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535").expect("root");
    let mut simulation = Simulation::new().expect("a runtime");
    let sampler = Sampler::start();
    println!("{} hosts, {} zones, leases of {} s", size.hosts, size.zones, size.lease_s);
    println!("| phase | s | requests/s | busiest second | requests | events | MB | etcd's CPU s |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");

    let phase = Phase::begin();
    add(&mut simulation, &size, 0..size.hosts);
    size.settle(&mut simulation, &network, "the start");
    phase.end("start, all at once", &sampler);

    let phase = Phase::begin();
    let opened = accepted().saturating_sub(sampler.count());
    simulation.run(2 * size.lease());
    let opened = accepted().saturating_sub(sampler.count()).saturating_sub(opened);
    let rest = phase.end("rest", &sampler);
    let memory = Counters::read().expect("etcd answers");
    println!(
        "{opened} connections opened at rest; etcd has {:.0} MB and {:.0} descriptors",
        memory.other("process_resident_memory_bytes") / 1e6,
        memory.other("process_open_fds")
    );
    let renewals = rest.requests("LeaseKeepAlive");
    assert!(rest.all_requests() - renewals < 1.0, "only leases are renewed at rest");
    assert!(opened < size.hosts as u64 / 10, "{opened} connections were opened for renewals");

    let phase = Phase::begin();
    simulation.lose(size.hosts / 10);
    size.settle(&mut simulation, &network, "the loss");
    phase.end("a tenth is lost", &sampler);

    let phase = Phase::begin();
    let left = simulation.hosts();
    add(&mut simulation, &size, left..size.hosts);
    size.settle(&mut simulation, &network, "the return of the lost");
    phase.end("the tenth returns", &sampler);

    etcd.kill();
    run_until(&mut simulation, size.time_limit(), "all miss etcd", |all| all.joined() == 0);
    let phase = Phase { begin: Instant::now(), before: None };
    etcd.start_again(&network);
    size.settle(&mut simulation, &network, "the return of etcd");
    let back = phase.end("etcd returns", &sampler);
    let bytes = back.sent_bytes() / size.hosts as f64;
    assert!(bytes < RETURN_BYTES, "{bytes:.0} bytes for each host: none needs a listing");
}
