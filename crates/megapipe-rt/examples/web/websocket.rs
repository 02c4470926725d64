//! A WebSocket echo server with a thread on each CPU.
//!
//! `cargo run -p systemtests-channel --example websocket`, then open a connection to
//! `ws://127.0.0.1:9001/`, for example with `new WebSocket(…)` in a browser.

use futures_util::{SinkExt, StreamExt};
use megapipe_rt::{Bound, Runtime, TcpStream, is_shutdown, spawn_local};
use tokio_tungstenite::tungstenite::Error;

fn main() -> std::io::Result<()> {
    let port = Bound::tcp("127.0.0.1:9001")?;
    Runtime::new()?.run(move || {
        let port = port.clone();
        async move {
            let mut listener = port.listen()?;
            loop {
                match listener.accept().await {
                    Ok(stream) => drop(spawn_local(async move {
                        if let Err(error) = echo(stream).await {
                            eprintln!("a connection failed: {error}");
                        }
                    })),
                    Err(error) if is_shutdown(&error) => return Ok(()),
                    Err(error) => eprintln!("accept: {error}"),
                }
            }
        }
    })
}

async fn echo(stream: TcpStream) -> Result<(), Error> {
    let mut socket = tokio_tungstenite::accept_async(stream).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        // The library answers pings and closes.
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}
