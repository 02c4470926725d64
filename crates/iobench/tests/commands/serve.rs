//! Tests of servers on machines that refuse what other machines permit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::support::{iobench, stderr};

/// System calls that the usual profiles of containers bar.
const RING_CALLS: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// A server that ends with the test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, exchanges a message with it, and returns what it printed until then.
#[track_caller]
fn served(command: &mut Command) -> String {
    command.args(["--bind", "0"]).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut server = Served(command.spawn().expect("the program starts"));
    let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe"));
    let mut printed = String::new();
    while !printed.contains("echoes on ") {
        let read = lines.read_line(&mut printed).expect("text");
        assert_ne!(read, 0, "the server ended; it printed: {printed}");
    }
    let (_, address) = printed.rsplit_once("echoes on ").expect("the line that ended the loop");
    let address = address.split(' ').next().expect("an address");
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.write_all(b"message").expect("the server is connected");
    let mut echo = [0; 7];
    stream.read_exact(&mut echo).expect("the server answers");
    assert_eq!(&echo, b"message");
    printed
}

fn server(name: &str) -> Command {
    let mut command = iobench();
    command.env_remove("MEGAPIPE_DRIVER").args(["serve", "--server", name]);
    command
}

#[test]
fn servers_named_without_a_driver_use_what_the_machine_permits() {
    for name in ["megapipe", "megapipe-stealing", "megapipe-p", "megapipe-pb"] {
        let mut barred = server(name);
        testkit::bar_calls(&mut barred, &RING_CALLS);
        let printed = served(&mut barred);
        let driver = format!("driver of {name}: epoll, because no io_uring: ");
        assert_eq!(printed.matches(&driver).count(), 1, "{printed}");
        let printed = served(server(name).env("MEGAPIPE_DRIVER", "epoll"));
        let driver = format!("driver of {name}: epoll, because MEGAPIPE_DRIVER asks for it\n");
        assert!(printed.contains(&driver), "{printed}");
    }
    assert!(!served(&mut server("epoll")).contains("driver of"));
}

#[test]
fn a_driver_that_is_asked_for_and_barred_is_an_error_with_a_true_remedy() {
    let mut command = server("megapipe");
    testkit::bar_calls(command.env("MEGAPIPE_DRIVER", "uring"), &RING_CALLS);
    let output = command.args(["--bind", "0"]).output().expect("the program starts");
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for part in ["create the ring", "ask for the driver epoll or auto"] {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}
