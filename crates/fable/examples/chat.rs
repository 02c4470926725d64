//! Waits for a flow and for the terminal at once: what is typed goes to the other side, what comes
//! from there is printed. `chat NAME` takes the name and waits for a guest, `chat NAME guest` is
//! the guest. `tcp://` and `unix://` names do without the daemon.

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
    // Without the buffer of `Stdin`, in which xpoll could not see what waits.
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

/// False when the other side has ended.
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

/// Sends a line, or this side's end when there are no more: then false.
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
