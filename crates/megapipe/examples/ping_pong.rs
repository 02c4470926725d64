//! The ping-pong server of the report's Listing 3.1: sends back what a client sends.
//!
//! `cargo run -p megapipe --example ping_pong [ADDRESS]`, then `nc 127.0.0.1 7000`.

use megapipe::{Accept, Channel, Event, Repeat};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".into());
    let listener = megapipe::listen(address)?;
    println!("listening on {}", listener.local_addr()?);

    let mut channel = Channel::new()?;
    let listening = channel.register(listener, ())?;
    channel.accept(listening, Accept::lightweight())?;
    loop {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::Accept(Ok(accepted)) => {
                let connection = channel.register(accepted.socket, ())?;
                channel.receive(connection, Repeat::UntilCancelled)?;
            }
            // For example, no descriptors are left: the channel continues when some are free.
            Event::Accept(Err(error)) => eprintln!("accept: {error}"),
            Event::Receive(Ok(message)) if !message.is_empty() => {
                channel.write(done.handle, message)?;
            }
            Event::Write(Ok(_), _) | Event::Close(_) => {}
            // The end of the stream, a reset, a failed write: the connection has ended.
            _ => channel.close(done.handle)?,
        }
    }
}
