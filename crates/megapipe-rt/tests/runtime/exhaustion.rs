//! Lets tasks of many connections keep the few buffers of a channel, or read nothing, beside others
//! that behave well.

use crate::common::{TIME_LIMIT, builder, within};
use megapipe::{BufferClass, Config, DriverChoice};
use megapipe_rt::{Handle, TcpListener, TcpStream, metrics, sleep, spawn_local};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

on_both_drivers!(a_thousand_connections_share_few_buffers);

const CONNECTIONS: usize = 1000;
/// Bytes that are sent to a task that does not read.
const UNREAD: usize = 50_000;

/// What a connection's task does until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Echoes at once.
    Honest,
    /// Keeps the buffer of its first message.
    Keeps,
    /// Reads one piece and no more, though more arrives.
    Stops,
    /// Does not even begin to read.
    Waits,
}

impl Role {
    fn of(number: usize) -> Role {
        [Role::Honest, Role::Keeps, Role::Keeps, Role::Stops, Role::Waits][number % 5]
    }
}

async fn released(gate: &Cell<bool>) {
    while !gate.get() {
        sleep(Duration::from_millis(5)).await;
    }
}

async fn serve(
    mut stream: TcpStream,
    role: Role,
    gate: Rc<Cell<bool>>,
    kept: Rc<Cell<usize>>,
) -> io::Result<()> {
    match role {
        Role::Honest => {}
        Role::Keeps => {
            let message = stream.read().await?.expect("a message");
            kept.set(kept.get() + 1);
            released(&gate).await;
            stream.write(message).await?;
        }
        Role::Stops => {
            let message = stream.read().await?.expect("a message");
            stream.write(message.to_vec()).await?;
            drop(message);
            kept.set(kept.get() + 1);
            released(&gate).await;
        }
        Role::Waits => {
            kept.set(kept.get() + 1);
            released(&gate).await;
        }
    }
    while let Some(message) = stream.read().await? {
        stream.write(message).await?;
    }
    stream.shutdown().await
}

/// Connects one after the other, so the server accepts them in this order.
fn connect_all(address: SocketAddr) -> Vec<std::net::TcpStream> {
    let open = |_| {
        let peer = std::net::TcpStream::connect(address).unwrap();
        peer.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        peer.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        peer
    };
    (0..CONNECTIONS).map(open).collect()
}

fn echo(peer: &mut std::net::TcpStream, bytes: usize) {
    peer.write_all(&testkit::content(bytes)).unwrap();
    let mut echoed = vec![0; bytes];
    peer.read_exact(&mut echoed).unwrap();
    assert!(echoed == testkit::content(bytes));
}

async fn on_thread<T: Send + 'static>(code: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(code);
    while !thread.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    thread.join().unwrap()
}

fn a_thousand_connections_share_few_buffers(driver: DriverChoice) {
    let config = Config {
        driver,
        small_buffers: BufferClass { count: 8, bytes: 4160 },
        large_buffers: BufferClass { count: 2, bytes: 66_048 },
        ..Config::default()
    };
    testkit::raise_descriptor_limit(4 * CONNECTIONS as u64);
    let runtime = builder(driver, 1).channel_config(config).build().unwrap();
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = thread::spawn(move || connect_all(address));
        let (gate, kept) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let mut tasks = Vec::new();
        for number in 0..CONNECTIONS {
            let stream = listener.accept().await.unwrap();
            let served = serve(stream, Role::of(number), Rc::clone(&gate), Rc::clone(&kept));
            tasks.push(spawn_local(served));
        }
        let mut peers = on_thread(move || {
            let mut peers = connecting.join().unwrap();
            for (number, peer) in peers.iter_mut().enumerate() {
                match Role::of(number) {
                    Role::Honest => {}
                    Role::Keeps => peer.write_all(&testkit::content(1000)).unwrap(),
                    Role::Stops | Role::Waits => peer.write_all(&testkit::content(UNREAD)).unwrap(),
                }
            }
            peers
        })
        .await;
        // All that do not behave well do so by now.
        while kept.get() < CONNECTIONS / 5 * 4 {
            sleep(Duration::from_millis(1)).await;
        }
        peers = on_thread(move || {
            let honest = |number: &usize| Role::of(*number) == Role::Honest;
            for bytes in [1, 1000, 20_000, 1] {
                for number in (0..CONNECTIONS).filter(honest) {
                    echo(&mut peers[number], bytes);
                }
            }
            peers
        })
        .await;
        assert!(tasks.iter().all(|task| !task.is_finished()), "a connection was closed");
        let counts = metrics::read(&Handle::current()).await;
        println!("{} receives waited for a buffer", counts[0].channel.buffer_waits);
        assert!(counts[0].channel.buffer_waits > 0, "there were enough buffers");
        gate.set(true);
        on_thread(move || {
            for (number, peer) in peers.iter_mut().enumerate() {
                peer.shutdown(std::net::Shutdown::Write).unwrap();
                let mut rest = Vec::new();
                peer.read_to_end(&mut rest).unwrap();
                let expected = match Role::of(number) {
                    Role::Honest => 0,
                    Role::Keeps => 1000,
                    Role::Stops | Role::Waits => UNREAD,
                };
                assert!(rest == testkit::content(expected), "{number}: {} bytes", rest.len());
            }
        })
        .await;
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}
