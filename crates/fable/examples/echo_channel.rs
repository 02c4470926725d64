//! Echo server for any number of clients on one thread: it registers the listener and its flows
//! with one `megapipe` channel.

use std::collections::HashMap;
use std::time::Duration;

use fable::{Endpoint, Error, Flow};
use megapipe::{Channel, Repeat, Timer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or("fable://echo".to_owned());
    let listener = Endpoint::register(&name)?.listen()?;
    println!("listening on {}", listener.name());

    let mut channel = Channel::new()?;
    let clock = channel.register(Timer::every(Duration::from_secs(60))?, ())?;
    channel.watch(clock, Repeat::UntilCancelled)?;
    let newcomers = listener.watch(&mut channel, ())?;
    let mut clients = HashMap::new();
    loop {
        let Some(done) = channel.dispatch(None)? else { continue };
        if done.handle == clock {
            println!("{} clients", clients.len());
        } else if done.handle == newcomers {
            while let Ok(flow) = listener.try_accept() {
                clients.insert(flow.watch(&mut channel, ())?, flow);
            }
        } else if let Some(flow) = clients.get(&done.handle)
            && !matches!(echo(flow), Err(Error::WouldBlock))
        {
            channel.unregister(done.handle)?;
            clients.remove(&done.handle);
        }
    }
}

/// Echoes every message that has arrived. Fails with [`Error::WouldBlock`] until the client has
/// ended its direction.
fn echo(flow: &Flow) -> Result<(), Error> {
    while let Some(request) = flow.try_read()? {
        let mut reply = flow.write(request.len())?;
        reply.copy_from_slice(&request);
        reply.commit()?;
    }
    flow.finish()
}
