use super::network::{CLIENT, Network, SERVER, Wire, end, secret, v4, v6};
use crate::config::{Config, Options, Steering};
use crate::error::Error;
use crate::packet::Checksum;
use crate::stack::Stack;

fn client_of_two(core: u16) -> Config {
    Config { steering: Steering { core, cores: 2 }, ..Config::default() }
}

#[test]
fn chosen_ports_lead_answers_to_their_core() {
    for core in [0, 1] {
        let mut network = Network::new(client_of_two(core), Config::default());
        let listener = network.listen(end(v4(SERVER), 80), 1000);
        for _ in 0..100 {
            let (client, server) = network.pair(listener, end(v4(SERVER), 80));
            network.echo(client, server);
        }
        assert_eq!(network.stacks[CLIENT].counters().drop_other_core, 0);
    }
}

#[test]
fn packets_of_the_other_core_are_known_and_counted() {
    let mut network = Network::new(client_of_two(0), Config::default());
    network.listen(end(v4(SERVER), 80), 1000);
    let mut other = Stack::new(client_of_two(1), secret(1), network.now).unwrap();
    other.set_addresses(network.now, &[v4(CLIENT), v6(CLIENT)]);
    for _ in 0..10 {
        network.connect(end(v4(SERVER), 80)).unwrap();
    }
    network.output(CLIENT);
    network.deliver(CLIENT);
    network.output(SERVER);
    for answer in std::mem::take(&mut network.wires[SERVER].packets) {
        assert_eq!(other.owner(&answer), Some(0));
        assert_eq!(network.stacks[CLIENT].owner(&answer), Some(0));
        other.input(network.now, &answer, Checksum::Unverified);
    }
    assert_eq!(other.counters().drop_other_core, 10);
    let mut wire = Wire::default();
    assert!(!other.output(network.now, &mut wire));
    assert!(wire.packets.is_empty(), "no reset for what belongs to another");
    assert_eq!(network.stacks[SERVER].owner(&[0; 40]), None);
}

#[test]
fn a_named_port_must_steer_here() {
    let mut network = Network::new(client_of_two(0), Config::default());
    let now = network.now;
    let results: Vec<_> = (1000..1100)
        .map(|port| {
            let local = Some(end(v4(CLIENT), port));
            let remote = end(v4(SERVER), 80);
            network.stacks[CLIENT].connect(now, local, remote, &Options::default()).map(drop)
        })
        .collect();
    let here = results.iter().filter(|result| result.is_ok()).count();
    let elsewhere =
        results.iter().filter(|&&result| result == Err(Error::AddressNotAvailable)).count();
    assert_eq!(here + elsewhere, 100);
    assert!((20..80).contains(&here), "{here}");
}
