//! Runs random sequences of requests on connected pairs, and compares the results with a model.

use crate::common::model::{DISCONNECT, Direction, Pending, READ, RECEIVE, REPEAT, WRITE, message};
use crate::common::{Rig, TIME_LIMIT, outcome};
use megapipe::{BufferClass, Completion, Config, DriverChoice, Event, Handle, Lease, Repeat};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The next operation; `side` numbers the ends of all connections.
#[derive(Clone, Debug)]
enum Step {
    Write { side: usize, bytes: usize },
    WriteVectored { side: usize, parts: Vec<usize> },
    Read { side: usize, room: usize },
    Receive { side: usize },
    Cancel { side: usize },
    Disconnect { side: usize },
    Rejoin { side: usize },
    Drop { side: usize, by_close: bool },
    Dispatch { times: usize },
    Flush,
    HoldLeases { hold: bool },
}

const CONNECTIONS: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = || 0..2 * CONNECTIONS;
    let bytes = || prop_oneof![4 => 8..300usize, 3 => 300..5000usize, 1 => 5000..400_000usize];
    let step = prop_oneof![
        8 => (side(), bytes()).prop_map(|(side, bytes)| Step::Write { side, bytes }),
        3 => (side(), prop::collection::vec(bytes(), 1..6))
            .prop_map(|(side, parts)| Step::WriteVectored { side, parts }),
        6 => (side(), 1..9000usize).prop_map(|(side, room)| Step::Read { side, room }),
        6 => side().prop_map(|side| Step::Receive { side }),
        3 => side().prop_map(|side| Step::Cancel { side }),
        1 => side().prop_map(|side| Step::Disconnect { side }),
        2 => side().prop_map(|side| Step::Rejoin { side }),
        1 => (side(), any::<bool>()).prop_map(|(side, by_close)| Step::Drop { side, by_close }),
        8 => (1..20usize).prop_map(|times| Step::Dispatch { times }),
        2 => Just(Step::Flush),
        2 => any::<bool>().prop_map(|hold| Step::HoldLeases { hold }),
    ];
    prop::collection::vec(step, 1..150)
}

/// One end of a connection; `handle` is `None` after the end is dropped.
struct Side {
    handle: Option<Handle>,
    pending: Pending,
    /// The kind of receive of this end. It is always the same, so that completions can be
    /// distinguished.
    repeat: Repeat,
}

struct World {
    rig: Rig,
    sides: Vec<Side>,
    /// The direction from the side of the same number to the other side of its connection.
    directions: Vec<Direction>,
    owners: HashMap<Handle, usize>,
    closing: Vec<(Handle, usize)>,
    leases: Option<Vec<Lease>>,
    writes: u64,
}

impl World {
    fn new(driver: DriverChoice, config: Config) -> World {
        let mut world = World {
            rig: Rig::with(driver, config),
            sides: Vec::new(),
            directions: Vec::new(),
            owners: HashMap::new(),
            closing: Vec::new(),
            leases: None,
            writes: 0,
        };
        for connection in 0..CONNECTIONS {
            let (a, b) = UnixStream::pair().unwrap();
            for end in [a, b] {
                let handle = world.rig.join(end);
                world.owners.insert(handle, world.sides.len());
                let repeat = if connection == 0 { Repeat::Once } else { Repeat::UntilCancelled };
                world.sides.push(Side {
                    handle: Some(handle),
                    pending: Pending::default(),
                    repeat,
                });
                world.directions.push(Direction::default());
            }
        }
        world
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Write { side, bytes } => self.write(side, &[bytes]),
            Step::WriteVectored { side, ref parts } => self.write(side, parts),
            Step::Read { side, room } => {
                if let Some(handle) = self.sides[side].handle {
                    self.rig.read(handle, Vec::with_capacity(room)).unwrap();
                    self.sides[side].pending.file(READ);
                }
            }
            Step::Receive { side } => self.receive(side),
            Step::Cancel { side } => {
                if let Some(handle) = self.sides[side].handle {
                    self.rig.cancel(handle).unwrap();
                    self.sides[side].pending.cancel();
                }
            }
            Step::Disconnect { side } => self.disconnect(side),
            Step::Rejoin { side } => self.rejoin(side),
            Step::Drop { side, by_close } => self.end(side, by_close),
            Step::Dispatch { times } => {
                for _ in 0..times {
                    let Some(done) = self.rig.dispatch(Duration::ZERO).unwrap() else { break };
                    self.drain(done);
                }
            }
            Step::Flush => self.rig.flush().unwrap(),
            Step::HoldLeases { hold } => self.leases = hold.then(Vec::new),
        }
    }

    fn write(&mut self, side: usize, parts: &[usize]) {
        let Some(handle) = self.sides[side].handle else { return };
        self.writes += 1;
        let bytes = message(self.writes, parts.iter().sum());
        if let [_] = parts {
            self.rig.write(handle, bytes.clone()).unwrap();
        } else {
            let mut rest = &bytes[..];
            let mut buffers = Vec::new();
            for part in parts {
                let (front, back) = rest.split_at(*part);
                buffers.push(front.to_vec().into());
                rest = back;
            }
            self.rig.write_vectored(handle, buffers).unwrap();
        }
        self.directions[side].file(self.writes, bytes);
        self.sides[side].pending.file(WRITE);
    }

    fn receive(&mut self, side: usize) {
        let Some(handle) = self.sides[side].handle else { return };
        let repeat = self.sides[side].repeat;
        self.rig.receive(handle, repeat).unwrap();
        let kind = if repeat == Repeat::Once { RECEIVE } else { REPEAT };
        self.sides[side].pending.file(kind);
    }

    fn disconnect(&mut self, side: usize) {
        let Some(handle) = self.sides[side].handle else { return };
        self.rig.disconnect(handle, Shutdown::Write).unwrap();
        self.directions[side].cut = true;
        self.sides[side].pending.file(DISCONNECT);
    }

    /// Ends the handle with all its pending requests.
    fn leave(&mut self, side: usize) -> Option<Handle> {
        let handle = self.sides[side].handle.take()?;
        self.owners.remove(&handle);
        self.directions[side].forget_pending();
        if self.sides[side].pending.count(READ..=REPEAT) > 0 {
            self.directions[side ^ 1].lossy = true;
        }
        self.sides[side].pending = Pending::default();
        Some(handle)
    }

    fn rejoin(&mut self, side: usize) {
        let Some(handle) = self.leave(side) else { return };
        let descriptor = self.rig.unregister(handle).unwrap().descriptor.unwrap();
        let handle = self.rig.join(UnixStream::from(descriptor));
        self.owners.insert(handle, side);
        self.sides[side].handle = Some(handle);
    }

    fn end(&mut self, side: usize, by_close: bool) {
        let Some(handle) = self.leave(side) else { return };
        self.directions[side].sender_gone = true;
        self.directions[side ^ 1].receiver_gone = true;
        if by_close {
            self.rig.close(handle).unwrap();
            self.closing.push((handle, side));
        } else {
            drop(self.rig.unregister(handle).unwrap());
        }
    }

    fn drain(&mut self, done: Completion) {
        let Completion { handle, more, event, .. } = done;
        if let Event::Close(result) = event {
            let at = self.closing.iter().position(|(closing, _)| *closing == handle);
            let (_, side) = self.closing.swap_remove(at.expect("a close that was asked for"));
            if let Err(error) = result {
                let direction = &self.directions[side];
                assert!(direction.receiver_gone || direction.cut, "{error}");
            }
            return;
        }
        let side = *self.owners.get(&handle).expect("a completion for a registered handle");
        let pending = &mut self.sides[side].pending;
        match event {
            Event::Write(..) | Event::WriteVectored(..) => {
                assert!(!more);
                self.directions[side].wrote(pending, &event);
            }
            Event::Read(..) | Event::Receive(_) => {
                let lease = self.directions[side ^ 1].came(pending, event, more);
                if let (Some(lease), Some(leases)) = (lease, &mut self.leases) {
                    leases.push(lease);
                }
            }
            event @ Event::Disconnect(_) => {
                let cancelled = pending.finish(DISCONNECT);
                let gone = self.directions[side].receiver_gone;
                match outcome(&event) {
                    Ok(_) => {}
                    Err(libc::ECANCELED) => assert!(cancelled),
                    Err(errno) => assert!(gone, "errno {errno}"),
                }
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Dispatches until `finished` returns true.
    fn run_until(&mut self, what: &str, finished: impl Fn(&World) -> bool) {
        let until = Instant::now() + TIME_LIMIT;
        while !finished(self) {
            let left = until.saturating_duration_since(Instant::now());
            match self.rig.dispatch(left).unwrap() {
                Some(done) => self.drain(done),
                None => panic!(
                    "{what} does not come; pending: {:?}; {:?}",
                    self.sides.iter().map(|side| &side.pending).collect::<Vec<_>>(),
                    self.rig.counters()
                ),
            }
        }
    }

    /// Receives everything, ends everything, and compares.
    fn finish(mut self) {
        self.leases = None;
        for side in 0..self.sides.len() {
            self.disconnect(side);
        }
        let open = |world: &World, side: usize| {
            world.sides[side].handle.is_some() && !world.directions[side ^ 1].ended
        };
        let idle = |world: &World, side: usize| world.sides[side].pending.count(READ..=REPEAT) == 0;
        let sides = 0..self.sides.len();
        while sides.clone().any(|side| open(&self, side)) {
            for side in sides.clone() {
                if open(&self, side) && idle(&self, side) {
                    self.receive(side);
                }
            }
            self.run_until("a receive", |world| {
                sides.clone().any(|side| open(world, side) && idle(world, side))
                    || !sides.clone().any(|side| open(world, side))
            });
        }
        self.run_until("the last completion", |world| {
            let idle = |side: &Side| side.pending.count(READ..=DISCONNECT) == 0;
            world.sides.iter().all(idle) && world.closing.is_empty()
        });
        self.directions.iter().for_each(Direction::check);
        for side in self.sides {
            if let Some(handle) = side.handle {
                self.rig.unregister(handle).unwrap();
            }
        }
        assert!(self.rig.drain().is_empty());
    }
}

/// Output pause of the model's channels. Both ends of a pair write without waiting for the other to
/// read: if both paused their receives, they would wait for each other.
const UNPAUSED: usize = 1 << 30;

fn run(driver: DriverChoice, config: Config) {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../crates/megapipe/proptest-regressions/conformance_model.txt"
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        max_shrink_iters: 500,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        ..ProptestConfig::default()
    });
    let result = runner.run(&steps(), |steps| {
        let mut world = World::new(driver, config.clone());
        steps.iter().for_each(|step| world.take(step));
        world.finish();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

pub(crate) fn sequences_of_requests(driver: DriverChoice) {
    run(driver, Config { output_pause: UNPAUSED, ..Config::default() });
}

pub(crate) fn sequences_with_few_resources(driver: DriverChoice) {
    let config = Config {
        batch: 2,
        completions: 64,
        small_buffers: BufferClass { count: 4, bytes: 256 },
        large_buffers: BufferClass { count: 2, bytes: 2048 },
        output_pause: UNPAUSED,
        ..Config::default()
    };
    run(driver, config);
}
