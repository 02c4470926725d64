//! Tests of servers on systems without /proc and /sys, as in a chroot(2).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use systemtests_bench::{Serving, TIME_LIMIT};
use testkit::process::program;

#[test]
fn one_thread_serves_the_clients_of_every_cpu() {
    const TEST: &str = "one_thread_serves_the_clients_of_every_cpu";
    if !testkit::is_root() {
        testkit::skip(TEST, "it needs root to hide /proc and /sys");
        return;
    }
    for server in ["megapipe", "megapipe-epoll", "epoll-partitioned"] {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec \"$0\" \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(program("iobench"));
        command.args(["serve", "--server", server, "--bind", "0"]);
        let serving = Serving::start_by(command);
        for cpu in testkit::allowed_cpus() {
            let address = serving.address.clone();
            let client = move || {
                // The kernel processes the handshake on this CPU, too.
                testkit::pin(cpu);
                let mut stream = TcpStream::connect(address).expect("the server listens");
                stream.set_read_timeout(Some(TIME_LIMIT)).expect("a TCP socket");
                stream.write_all(b"message").expect("the server is connected");
                let mut echo = [0; 7];
                stream.read_exact(&mut echo).expect("the server answers");
                assert_eq!(&echo, b"message", "{server}, CPU {cpu}");
            };
            std::thread::spawn(client).join().expect("an answer");
        }
    }
}
