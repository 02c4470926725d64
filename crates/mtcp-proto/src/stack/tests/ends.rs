use super::network::{CLIENT, Network, SERVER, end, v4};
use crate::config::{Config, Options};
use crate::error::Error;
use crate::socket::{Readiness, Shutdown, State};
use std::time::Duration;

#[test]
fn an_orphan_still_delivers_everything() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    let data = vec![7; 40_000];
    network.send(CLIENT, client, &data);
    network.close(CLIENT, client);
    assert_eq!(network.stacks[CLIENT].readiness(client), Err(Error::UnknownSocket));
    assert_eq!(network.stacks[CLIENT].sockets().next().unwrap().socket, client);
    let mut received = 0;
    loop {
        network.pass(Duration::from_millis(100));
        match network.receive(SERVER, server) {
            Ok(part) if part.is_empty() => break,
            Ok(part) => received += part.len(),
            Err(error) => assert_eq!(error, Error::WouldBlock),
        }
    }
    assert_eq!(received, data.len());
    network.close(SERVER, server);
    network.run();
    network.assert_empty();
}

#[test]
fn half_closed_connections_go_on_in_the_other_direction() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 10);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    let now = network.now;
    network.stacks[CLIENT].shutdown(now, client, Shutdown::Send).unwrap();
    network.events(CLIENT);
    network.run();
    let finished = Readiness::WRITABLE.with(Readiness::SEND_FINISHED);
    assert_eq!(network.events(CLIENT), [(client, finished)], "the acknowledgement is told");
    assert_eq!(network.stacks[CLIENT].send(now, client, b"x"), Err(Error::Shutdown));
    assert_eq!(network.receive(SERVER, server), Ok(Vec::new()));
    network.send(SERVER, server, b"late");
    network.run();
    assert_eq!(network.receive(CLIENT, client).as_deref(), Ok(&b"late"[..]));
    network.close(SERVER, server);
    network.run();
    assert_eq!(network.receive(CLIENT, client), Ok(Vec::new()));
    assert!(network.readiness(CLIENT, client).contains(Readiness::CLOSED));
    assert_eq!(network.stacks[CLIENT].time_wait.len(), 1);
    network.close(CLIENT, client);
    network.run();
    network.assert_empty();
}

#[test]
fn orphans_make_way_when_the_table_is_full() {
    let config = Config { max_sockets: 5, ..Config::default() };
    let mut network = Network::new(config, Config::default());
    let listener = network.listen(end(v4(SERVER), 80), 100);
    for _ in 0..5 {
        let (client, _) = network.pair(listener, end(v4(SERVER), 80));
        network.close(CLIENT, client);
        network.run();
    }
    let states: Vec<State> = network.stacks[CLIENT].sockets().map(|info| info.state).collect();
    assert_eq!(states, [State::FinWait2; 5]);
    let held: Vec<_> = (0..5).map(|_| network.pair(listener, end(v4(SERVER), 80))).collect();
    assert_eq!(network.connect(end(v4(SERVER), 80)), Err(Error::TooMany));
    for (client, server) in held {
        network.echo(client, server);
    }
}

#[test]
fn forgotten_orphans_end_by_themselves() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    network.close(CLIENT, client);
    network.pass(Duration::from_secs(130));
    assert_eq!(network.stacks[CLIENT].sockets().count(), 0, "FIN-WAIT-2 is bounded");
    network.close(SERVER, server);
    network.pass(Duration::from_secs(2000));
    network.assert_empty();
}

#[test]
fn a_reset_reaches_the_application_once() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    network.events(SERVER);
    network.stacks[CLIENT].abort(network.now, client);
    network.run();
    let events = network.events(SERVER);
    assert_eq!(events.len(), 1);
    assert!(events[0].0 == server && events[0].1.contains(Readiness::ERROR));
    assert_eq!(network.receive(SERVER, server), Err(Error::Reset));
    assert_eq!(network.receive(SERVER, server), Ok(Vec::new()));
    assert_eq!(network.stacks[CLIENT].sockets().count(), 0);
    network.close(SERVER, server);
    network.run();
    network.assert_empty();
    assert_eq!(network.stacks[SERVER].time_wait.len(), 0);
}

#[test]
fn connections_of_an_address_that_goes_away_are_aborted() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let (client, server) = network.pair(listener, end(v4(SERVER), 80));
    let (gone, _) = network.pair(listener, end(v4(SERVER), 80));
    network.close(CLIENT, gone);
    let now = network.now;
    network.stacks[SERVER].set_addresses(now, &[v4(7)]);
    network.run();
    assert!(network.readiness(SERVER, server).contains(Readiness::ERROR));
    assert_eq!(network.stacks[SERVER].take_error(server), Some(Error::Aborted));
    assert_eq!(network.stacks[CLIENT].take_error(client), Some(Error::Reset));
    let again = network.connect(end(v4(SERVER), 80)).unwrap();
    network.pass(Duration::from_secs(1));
    assert_eq!(network.readiness(CLIENT, again), Readiness::default(), "nobody answers");
}

#[test]
fn buffers_stay_within_their_bound() {
    let bound = 512 << 10;
    let small = Config { max_buffer_bytes: bound, ..Config::default() };
    let mut network = Network::new(Config::default(), small);
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let pairs: Vec<_> = (0..20).map(|_| network.pair(listener, end(v4(SERVER), 80))).collect();
    let data = vec![1; 40_000];
    let mut received = vec![0; pairs.len()];
    for &(client, _) in &pairs {
        network.send(CLIENT, client, &data);
    }
    for _ in 0..2000 {
        network.pass(Duration::from_millis(200));
        assert!(network.stacks[SERVER].shared.pool.used_bytes() <= bound);
        for (&(_, server), count) in pairs.iter().zip(&mut received) {
            while let Ok(part) = network.receive(SERVER, server) {
                *count += part.len();
            }
        }
        if received.iter().all(|&count| count == data.len()) {
            break;
        }
    }
    assert_eq!(received, vec![data.len(); pairs.len()]);
    let options = Options { linger_reset: true, ..Options::default() };
    for (client, server) in pairs {
        network.stacks[CLIENT].set_options(network.now, client, &options).unwrap();
        network.close(CLIENT, client);
        network.close(SERVER, server);
    }
    network.run();
    network.assert_empty();
}

#[test]
fn a_device_with_little_room_serves_all_connections() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let remote = end(v4(SERVER), 80);
    let pairs: Vec<_> = (0..3).map(|_| network.pair(listener, remote)).collect();
    let mut received = [0; 3];
    network.wires[CLIENT].limit = Some(4);
    for _ in 0..300 {
        for (&(client, server), count) in pairs.iter().zip(&mut received) {
            // The clients always have more to send.
            let _ = network.stacks[CLIENT].send(network.now, client, &[5; 100_000]);
            while let Ok(part) = network.receive(SERVER, server) {
                *count += part.len();
            }
        }
        network.output(CLIENT);
        network.deliver(CLIENT);
        network.output(SERVER);
        network.deliver(SERVER);
    }
    let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
    assert!(*most > 100_000 && least * 10 > most * 9, "{received:?}");
}

#[test]
fn a_full_device_keeps_the_order_and_takes_turns() {
    let mut network = Network::simple();
    let listener = network.listen(end(v4(SERVER), 80), 100);
    let remote = end(v4(SERVER), 80);
    let pairs: Vec<_> = (0..3).map(|_| network.pair(listener, remote)).collect();
    for &(client, _) in &pairs {
        network.send(CLIENT, client, &[5; 10_000]);
    }
    network.wires[CLIENT].limit = Some(2);
    let mut rounds = 0;
    while network.stacks[CLIENT].output(network.now, &mut network.wires[CLIENT]) {
        assert_eq!(network.wires[CLIENT].packets.len(), 2);
        network.deliver(CLIENT);
        rounds += 1;
    }
    assert!(rounds >= 8, "{rounds}");
    network.wires[CLIENT].limit = None;
    network.run();
    for (_, server) in pairs {
        let mut bytes = 0;
        while let Ok(part) = network.receive(SERVER, server) {
            bytes += part.len();
        }
        assert_eq!(bytes, 10_000);
    }
    assert_eq!(network.stacks[SERVER].counters().out_of_order, 0);
}
