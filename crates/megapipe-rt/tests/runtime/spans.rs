//! Records the spans of tasks and connections with a subscriber of its own.

use crate::common::{runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{TcpListener, TcpStream, spawn_local, yield_now};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

on_both_drivers!(tasks_and_connections_have_spans);

/// A span that was seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: String,
    parent: Option<u64>,
    entered: usize,
    references: usize,
}

#[derive(Default)]
struct State {
    spans: BTreeMap<u64, Seen>,
    current: Vec<u64>,
}

/// Keeps all spans of the crate at level DEBUG, of one thread.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<State>>);

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Recorder {
    fn of(&self, name: &str) -> Vec<(u64, Seen)> {
        let state = self.0.lock().unwrap();
        let named = state.spans.iter().filter(|(_, seen)| seen.name == name);
        named.map(|(id, seen)| (*id, seen.clone())).collect()
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("megapipe_rt")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        assert_eq!(*attributes.metadata().level(), Level::DEBUG);
        let mut state = self.0.lock().unwrap();
        let id = state.spans.len() as u64 + 1;
        let parent = state.current.last().copied();
        let name = attributes.metadata().name();
        let mut seen = Seen { name, parent, references: 1, ..Seen::default() };
        attributes.record(&mut Fields(&mut seen.fields));
        state.spans.insert(id, seen);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        let mut state = self.0.lock().unwrap();
        state.spans.get_mut(&id.into_u64()).unwrap().entered += 1;
        state.current.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.0.lock().unwrap().current.pop(), Some(id.into_u64()));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.0.lock().unwrap().spans.get_mut(&id.into_u64()).unwrap().references += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut state = self.0.lock().unwrap();
        let seen = state.spans.get_mut(&id.into_u64()).unwrap();
        seen.references -= 1;
        seen.references == 0
    }
}

fn tasks_and_connections_have_spans(driver: DriverChoice) {
    let recorder = Recorder::default();
    tracing::subscriber::with_default(recorder.clone(), || {
        let runtime = runtime(driver, 1);
        within(&runtime, async {
            let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let client = spawn_local(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write(b"x").await.unwrap();
                assert!(stream.read().await.unwrap().is_none());
            });
            let line = line!() - 5;
            let mut server = listener.accept().await.unwrap();
            assert_eq!(&*server.read().await.unwrap().unwrap(), b"x");
            let connections = recorder.of("connection");
            assert_eq!(connections.len(), 2, "{connections:?}");
            assert!(connections.iter().all(|(_, seen)| seen.references == 1), "{connections:?}");
            drop(server);
            client.await.unwrap();
            spawn_local(async {
                for _ in 0..4 {
                    yield_now().await;
                }
            })
            .await
            .unwrap();
            let tasks = recorder.of("task");
            let (task, yielding) = (&tasks[0], &tasks[1]);
            assert_eq!(tasks.len(), 2);
            let place = format!("spawned_at={}:{line}:", file!());
            assert!(task.1.fields.starts_with("core=0 number=1 "), "{}", task.1.fields);
            assert!(task.1.fields.contains(&place), "{} {place}", task.1.fields);
            // Five polls, and the drop of the future.
            assert_eq!((yielding.1.entered, yielding.1.references), (6, 0));
            // The task that connects is the parent of its connection; `block_on` has no span.
            let mut parents: Vec<_> = connections.iter().map(|(_, seen)| seen.parent).collect();
            parents.sort_unstable();
            assert_eq!(parents, [None, Some(task.0)]);
            let ended = recorder.of("connection");
            assert!(ended.iter().all(|(_, seen)| seen.references == 0), "{ended:?}");
        });
    });
}
