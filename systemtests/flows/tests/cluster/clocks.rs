//! Tests with wall clocks that step by a day while flows are open: timeouts, leases, names and
//! flows use the monotonic clock. Only tickets, on which two hosts must agree, depend on the date.

use super::etcd::Etcd;
use super::hosts::SHORT_LEASE_S;
use super::network::Network;
use super::programs::{TRUSTING, flow, goes_over, name, start_daemon_by, start_program};
use systemtests_flows::{Daemon, within};

const DAY_S: i64 = 86_400;

fn start_daemon(network: &Network, index: usize) -> Daemon {
    start_daemon_by(network, index, TRUSTING, SHORT_LEASE_S, Daemon::with_clock)
}

#[test]
fn a_clock_that_steps_on_one_host_ends_nothing_and_is_named_where_it_matters() {
    let Some(network) = Network::start("a clock that steps", 2) else { return };
    let _etcd = Etcd::start(&network);
    let [a, b] = [0, 1].map(|index| start_daemon(&network, index));
    let server = start_program(&network, 0, "server", &a);
    server.hear("serving");
    let known = within("the name is known to the other host", || name(&b));
    let client = start_program(&network, 1, "client", &b);
    let id = client.hear("connected").split(' ').next().unwrap().to_owned();
    goes_over(&a, "tcp-nodelay");
    for offset_s in [DAY_S, -DAY_S] {
        b.set_clock(offset_s);
        // Existing flows continue, also with new paths, and for longer than a lease.
        b.fable_says(&["move", &id, "tcp"]);
        [&a, &b].into_iter().for_each(|daemon| goes_over(daemon, "tcp"));
        a.fable_says(&["move", &id, "auto"]);
        [&a, &b].into_iter().for_each(|daemon| goes_over(daemon, "tcp-nodelay"));
        std::thread::sleep(std::time::Duration::from_secs(u64::from(SHORT_LEASE_S) + 1));
        assert_eq!(name(&b).map(|entry| entry.epoch), Some(known.epoch));
        goes_over(&b, "tcp-nodelay");
        // A process from a host with another date gets that reason.
        let late = start_program(&network, 1, "client", &b);
        assert!(late.hear("error").contains("Refused"));
        within("the log says why", || a.log().contains("do the hosts' clocks agree").then_some(()));
        // Keys have no date.
        a.fable_says(&["move", &id, "tls"]);
        [&a, &b].into_iter().for_each(|daemon| goes_over(daemon, "tls"));
        a.fable_says(&["move", &id, "auto"]);
        [&a, &b].into_iter().for_each(|daemon| goes_over(daemon, "tcp-nodelay"));
    }
    assert!(flow(&a).unwrap().epoch > 5);
    client.ask("finish", "finished");
}
