//! Sends every datagram back to its sender, without copying it.
//!
//! `cargo run -p megapipe --example udp_echo [ADDRESS]`, then `nc -u 127.0.0.1 7000`.

use megapipe::{Channel, Event, Repeat};
use std::net::UdpSocket;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".into());
    let socket = UdpSocket::bind(address)?;
    println!("listening on {}", socket.local_addr()?);

    let mut channel = Channel::new()?;
    let echo = channel.register(socket, ())?;
    channel.receive_from(echo, Repeat::UntilCancelled)?;
    loop {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::ReceiveFrom(datagram) => {
                let datagram = datagram?;
                let sender = datagram.address()?;
                channel.send_to(echo, datagram.into_lease(), sender)?;
            }
            // A sender may have ended; a datagram to it is lost, as on the network.
            Event::SendTo(Err(error), _) => eprintln!("not sent back: {error}"),
            _ => {}
        }
    }
}
