//! Runs WebSocket connections (tokio-tungstenite over the traits of tokio) on streams, against
//! tungstenite over plain blocking sockets and Python's websockets.

use crate::common::{TIME_LIMIT, runtime, within};
use futures_util::{SinkExt, StreamExt};
use megapipe::DriverChoice;
use megapipe_rt::{TcpListener, TcpStream, sleep, spawn_local};
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::Duration;
use tokio_tungstenite::tungstenite::{self, Message, protocol::CloseFrame};

on_both_drivers!(
    a_server_echoes_messages,
    python_s_client_is_answered,
    a_client_exchanges_messages,
    a_torn_connection_is_an_error
);

async fn on_thread<T: Send + 'static>(code: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(code);
    while !thread.is_finished() {
        sleep(Duration::from_millis(1)).await;
    }
    thread.join().unwrap()
}

fn blocking(address: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    stream
}

/// Echoes until the peer closes; returns the number of messages.
async fn echo(stream: TcpStream) -> Result<usize, tungstenite::Error> {
    let mut socket = tokio_tungstenite::accept_async(stream).await?;
    let mut count = 0;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
            count += 1;
        }
    }
    Ok(count)
}

fn a_server_echoes_messages(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = thread::spawn(move || {
            let (mut socket, _) =
                tungstenite::client("ws://localhost/", blocking(address)).unwrap();
            for bytes in [0, 1, 125, 126, 70_000, 2_000_000] {
                let sent = Message::binary(testkit::content(bytes));
                socket.send(sent.clone()).unwrap();
                assert!(socket.read().unwrap() == sent, "{bytes}");
            }
            socket.send(Message::text("text")).unwrap();
            assert_eq!(socket.read().unwrap(), Message::text("text"));
            socket.send(Message::Ping(vec![1, 2].into())).unwrap();
            assert_eq!(socket.read().unwrap(), Message::Pong(vec![1, 2].into()));
            let reason = CloseFrame { code: 1000.into(), reason: "done".into() };
            socket.close(Some(reason.clone())).unwrap();
            assert_eq!(socket.read().unwrap(), Message::Close(Some(reason)));
            assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
        });
        let server = spawn_local(echo(listener.accept().await.unwrap()));
        on_thread(move || client.join().unwrap()).await;
        assert_eq!(server.await.unwrap().unwrap(), 7);
    });
}

/// The client, `websocket_client.py`, checks the answers.
fn python_s_client_is_answered(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/websocket_client.py"));
        command.arg(format!("ws://{address}/"));
        let client = thread::spawn(move || command.output().expect("python3"));
        let server = spawn_local(echo(listener.accept().await.unwrap()));
        let output = on_thread(move || client.join().unwrap()).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == b"done\n", "{errors}");
        assert_eq!(server.await.unwrap().unwrap(), 12);
    });
}

fn a_client_exchanges_messages(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
            let mut socket = tungstenite::accept(stream).unwrap();
            loop {
                match socket.read() {
                    Ok(message) if message.is_close() => {}
                    Ok(message) => socket.send(message).unwrap(),
                    Err(tungstenite::Error::ConnectionClosed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let stream = TcpStream::connect(address).await.unwrap();
        let connected = tokio_tungstenite::client_async("ws://localhost/", stream).await;
        let (mut socket, _) = connected.unwrap();
        for bytes in [1, 126, 500_000] {
            let sent = Message::binary(testkit::content(bytes));
            socket.send(sent.clone()).await.unwrap();
            assert!(socket.next().await.unwrap().unwrap() == sent, "{bytes}");
        }
        socket.close(None).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap().is_close());
        assert!(socket.next().await.is_none());
        on_thread(move || server.join().unwrap()).await;
    });
}

fn a_torn_connection_is_an_error(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = thread::spawn(move || {
            let (mut socket, _) =
                tungstenite::client("ws://localhost/", blocking(address)).unwrap();
            socket.send(Message::text("last")).unwrap();
            assert_eq!(socket.read().unwrap(), Message::text("last"));
        });
        let server = spawn_local(echo(listener.accept().await.unwrap()));
        let error = server.await.unwrap().unwrap_err();
        assert!(matches!(error, tungstenite::Error::Protocol(_)), "{error}");
        client.join().unwrap();
    });
}
