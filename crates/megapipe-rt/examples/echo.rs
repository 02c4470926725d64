//! An echo server with a thread on each CPU: `cargo run -p megapipe-rt --example echo`, then
//! `nc 127.0.0.1 7000`. The first argument is another address to listen on. SIGTERM or Ctrl-C ends
//! it: connections have five seconds to end. SIGUSR1 prints what each task waits for.

use megapipe_rt::{Bound, Runtime, spawn_local};
use std::time::Duration;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7000".into());
    let port = Bound::tcp(address)?;
    let runtime = Runtime::builder()
        .shutdown_signals(&[libc::SIGINT, libc::SIGTERM])
        .dump_signal(libc::SIGUSR1)
        .build()?;
    println!("echoes on {}", port.local_addr()?);
    runtime.run(move || {
        let port = port.clone();
        async move {
            let mut listener = port.listen()?;
            loop {
                let mut stream = match listener.accept().await {
                    Ok(stream) => stream,
                    Err(error) if megapipe_rt::is_shutdown(&error) => {
                        return Ok::<(), std::io::Error>(());
                    }
                    // Too many open files, for example: the listener goes on by itself.
                    Err(error) => {
                        eprintln!("accept: {error}");
                        continue;
                    }
                };
                spawn_local(async move {
                    while let Some(message) = stream.read().await? {
                        stream.write(message).await?;
                    }
                    Ok::<(), std::io::Error>(())
                });
            }
        }
    })?;
    let left = runtime.shutdown(Duration::from_secs(5));
    eprintln!("{left} connections were closed");
    Ok(())
}
