//! The library's processes under a real daemon: moved by operators, and over the daemon's death.

mod common;

use std::process::{Child, Command, Stdio};

use common::{Daemon, read_all, within};
use fable::Endpoint;
use fable::protocol::{FlowEntry, NameEntry};

/// An echo server in a process of its own; killed when dropped.
struct Server(Child);

impl Server {
    fn start(daemon: &Daemon) -> Server {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_echoes", "--nocapture"])
            .env("FABLE_SOCKET", daemon.socket())
            .env("FABLED_TEST_ECHO", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server(child);
        within("the server is there", || names(daemon).into_iter().next());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn names(daemon: &Daemon) -> Vec<NameEntry> {
    serde_json::from_str(&daemon.fable_says(&["ls", "--json"])).unwrap()
}

fn flows(daemon: &Daemon) -> Vec<FlowEntry> {
    serde_json::from_str(&daemon.fable_says(&["top", "--once", "--json"])).unwrap()
}

/// Not a test by itself: the server's process.
#[test]
fn helper_that_echoes() {
    if std::env::var_os("FABLED_TEST_ECHO").is_none() {
        return;
    }
    // Ends with the pipe at the latest.
    std::thread::spawn(|| {
        read_all(std::io::stdin());
        std::process::exit(0);
    });
    let endpoint = Endpoint::register("fable://echo").unwrap();
    let flow = endpoint.listen().unwrap().accept().unwrap();
    while let Some(request) = flow.read().unwrap() {
        let mut answer = flow.write(request.len()).unwrap();
        answer.copy_from_slice(&request);
        answer.commit().unwrap();
    }
}

/// Sends numbers and expects each of them back.
struct Client {
    flow: fable::Flow,
    next: u64,
}

impl Client {
    fn exchange(&mut self, count: u64) {
        for _ in 0..count {
            let mut buffer = self.flow.write(8).unwrap();
            buffer.copy_from_slice(&self.next.to_le_bytes());
            buffer.commit().unwrap();
            let answer = self.flow.read_timeout(common::PATIENCE).unwrap().unwrap();
            assert_eq!(answer[..], self.next.to_le_bytes());
            self.next += 1;
        }
    }
}

#[test]
fn a_flow_goes_where_operators_send_it_and_outlives_the_daemon() {
    // Nothing but orders moves this flow.
    let mut daemon = Daemon::with_policy("[thresholds]\nbusy_messages_s = 1e12\n");
    let server = Server::start(&daemon);
    let endpoint = Endpoint::options().socket(daemon.socket()).anonymous();
    let mut client = Client { flow: endpoint.connect("fable://echo").unwrap(), next: 0 };
    client.exchange(100);
    let flow = format!("{:016x}", flows(&daemon)[0].flow.0);
    let socket = daemon.socket();
    for transport in ["unix", "mempipe-spin", "pipe", "tcp-nodelay", "shmem-pipe", "tcp"] {
        // Ordered while messages flow.
        let order = Command::new(env!("CARGO_BIN_EXE_fable"))
            .arg("--socket")
            .arg(&socket)
            .args(["move", &flow, transport])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut order = order.unwrap();
        let status = within("the order is carried out", || {
            client.exchange(10);
            order.try_wait().unwrap()
        });
        let error = read_all(order.stderr.take().unwrap());
        assert!(status.success(), "{transport}: {error}");
        assert!(flows(&daemon)[0].transport.starts_with(transport));
    }
    daemon.crash_and_start_again();
    client.exchange(100);
    // Both processes come back with their name and their flow.
    let back = within("the flow is announced", || {
        client.exchange(1);
        flows(&daemon).into_iter().find(|flow| flow.messages.iter().all(|&count| count > 200))
    });
    assert_eq!((format!("{:016x}", back.flow.0), back.transport.as_str()), (flow, "tcp"));
    within("the name is registered again", || names(&daemon).into_iter().next());
    drop(server);
    within("the flow and the name are gone", || {
        // The library notices when it is used, at the latest.
        let _ = client.flow.try_read();
        (flows(&daemon).is_empty() && names(&daemon).is_empty()).then_some(())
    });
}
