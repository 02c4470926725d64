//! Waits for a flow and for the terminal at once. Sends each line that is typed to the other side,
//! and prints what the other side sends. `chat NAME` registers the name and accepts one flow; `chat
//! NAME guest` connects to it. `tcp://` and `unix://` names need no daemon.

use std::fs::File;
use std::io::{Read, stdin};
use std::os::fd::AsFd;

use fable::{Endpoint, Error, Flow, Interest, xpoll};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or("fable://chat".to_owned());
    let flow = if arguments.next().is_some() {
        Endpoint::anonymous().connect(&name)?
    } else {
        let listener = Endpoint::register(&name)?.listen()?;
        println!("waiting on {}", listener.name());
        listener.accept()?
    };
    // A `File` has no buffer. `Stdin` has one, and xpoll could not see what is in it.
    let mut terminal = File::from(stdin().as_fd().try_clone_to_owned()?);
    let mut typing = true;
    loop {
        let mut interests = vec![Interest::Flow(&flow)];
        if typing {
            interests.push(Interest::Descriptor(terminal.as_fd(), libc::POLLIN));
        }
        for ready in xpoll(&interests, None)? {
            if ready.index == 0 {
                if !print_all(&flow)? {
                    return Ok(());
                }
            } else {
                typing = send_typed(&flow, &mut terminal)?;
            }
        }
    }
}

/// Prints every message that has arrived. Returns false when the other side has ended.
fn print_all(flow: &Flow) -> Result<bool, Error> {
    loop {
        match flow.try_read() {
            Ok(Some(message)) => print!("{}", String::from_utf8_lossy(&message)),
            Ok(None) => return Ok(false),
            Err(Error::WouldBlock) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// Sends one typed line, or ends this side's direction at the end of the input and returns false.
fn send_typed(flow: &Flow, terminal: &mut File) -> Result<bool, Box<dyn std::error::Error>> {
    let mut line = [0; 1024];
    let bytes = terminal.read(&mut line)?;
    if bytes == 0 {
        flow.finish()?;
        return Ok(false);
    }
    let mut message = flow.write(bytes)?;
    message.copy_from_slice(&line[..bytes]);
    message.commit()?;
    Ok(true)
}
