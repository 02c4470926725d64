//! Lets a signal make the echo server list its tasks.

mod common;

use common::TIME_LIMIT;
use megapipe::DriverChoice;
use megapipe_rt::Bound;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;
use testkit::process::{Guard, example};

on_both_drivers!(a_signal_lists_the_tasks);

fn a_signal_lists_the_tasks(driver: DriverChoice) {
    let address = Bound::tcp("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new(example("megapipe-rt", "echo"));
    command.arg(address.to_string()).env("MEGAPIPE_DRIVER", driver_name(driver));
    let mut server = Guard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(server.output()).read_line(&mut line).unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    let mut errors = BufReader::new(server.0.stderr.take().unwrap());
    let began = Instant::now();
    let mut all = String::new();
    // The echo is there before its task waits for the next message.
    while !["waits for read", "waits for accept", "echo.rs:"].iter().all(|part| all.contains(part))
    {
        assert!(began.elapsed() < TIME_LIMIT, "{all}");
        server.signal(libc::SIGUSR1);
        let mut heading = String::new();
        errors.read_line(&mut heading).unwrap();
        let numbers = heading.split(' ').filter_map(|word| word.parse::<usize>().ok());
        all.clear();
        for _ in 0..numbers.sum() {
            errors.read_line(&mut all).unwrap();
        }
    }
    drop(client);
    assert!(server.end(libc::SIGTERM).success());
    errors.read_to_string(&mut all).unwrap();
    assert!(all.contains("0 connections were closed"), "{all}");
}

fn driver_name(driver: DriverChoice) -> &'static str {
    match driver {
        DriverChoice::Epoll => "epoll",
        _ => "uring",
    }
}
