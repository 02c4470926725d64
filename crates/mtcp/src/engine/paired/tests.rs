//! Tests which events the application's side reports.

use super::application::Application;
use super::chunk::Chunks;
use super::sender::Sender;
use super::{EngineStatus, Event, SLOTS};
use crate::engine::{Alarm, Port};
use crate::spsc::ring;
use mtcp_proto::{Readiness, SocketId};
use std::sync::Arc;
use std::thread;

/// An application whose engine is the test.
fn application() -> (Application, Sender<Event>) {
    let (alarm, engine_alarm) = (Arc::new(Alarm::new().unwrap()), Arc::new(Alarm::new().unwrap()));
    let (command_producer, _commands) = ring(SLOTS);
    let (event_producer, events) = ring(SLOTS);
    let commands = Sender::new(command_producer, engine_alarm);
    let thread = thread::spawn(|| ());
    let engine = Sender::new(event_producer, Arc::clone(&alarm));
    let status = Arc::new(EngineStatus::default());
    (Application::new(commands, events, alarm, status, Vec::new(), thread), engine)
}

#[test]
fn an_end_after_all_data_was_read_is_news() {
    let (mut application, mut engine) = application();
    let socket = SocketId { index: 0, generation: 0 };
    engine.send(Event::Opened(Ok((socket, None))));
    // The peer has ended its direction, but there was room only for this data so far.
    engine.send(Event::Ready { socket, readiness: Readiness::PEER_CLOSED, established: true });
    let mut chunk = Chunks::default().take();
    chunk.append(b"the last bytes");
    engine.send(Event::Data { socket, chunk });
    engine.publish();
    application.turn().unwrap();
    let (_, readiness, arrived) = application.next_news().expect("data");
    assert_eq!(arrived, Readiness::READABLE);
    assert!(readiness.contains(Readiness::READABLE.with(Readiness::PEER_CLOSED)));
    assert_eq!(application.receive(socket, &mut [0; 100]), Ok(14));

    engine.send(Event::Ended { socket, by_peer: true });
    engine.publish();
    application.turn().unwrap();
    let (_, _, arrived) = application.next_news().expect("the end");
    // A program that has read all data waits for both events.
    assert_eq!(arrived, Readiness::READABLE.with(Readiness::PEER_CLOSED));
}

#[test]
fn the_acknowledgement_of_an_end_is_shown() {
    let (mut application, mut engine) = application();
    let socket = SocketId { index: 0, generation: 0 };
    engine.send(Event::Opened(Ok((socket, None))));
    let readiness = Readiness::SEND_FINISHED;
    engine.send(Event::Ready { socket, readiness, established: true });
    engine.publish();
    application.turn().unwrap();
    let (_, shown, _) = application.next_news().expect("the change");
    assert_eq!(shown, Readiness::WRITABLE.with(Readiness::SEND_FINISHED));
}
