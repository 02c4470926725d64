//! Tests the async runtime `megapipe-rt` over the stack: its cores' channels choose the driver by
//! their settings, and the runtime knows nothing of the stack.

pub(crate) use crate::runtime_parts::{on_thread, within};
use crate::test_addresses::{KERNEL, STACK, start_with_reports};
use megapipe::DriverChoice;
use megapipe_rt::{
    Bound, Builder, Runtime, TcpListener, TcpStream, http, sleep, spawn_local, spawn_on,
};
use mtcp::config::Mode;
use mtcp::driver::Engines;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener as Listener, TcpStream as Peer};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use testkit::Namespace;

/// The name of a driver for channels on every thread of the process.
const SHARED: &str = "mtcp-of-every-thread";

/// The engines of the test that runs.
static ENGINES: Mutex<Option<Engines>> = Mutex::new(None);

/// Runs the test over an engine in its own thread, and over one that runs in calls of the channel.
macro_rules! in_both_modes {
    ($($name:ident),+ $(,)?) => {
        mod paired {
            $(#[test]
            fn $name() {
                super::$name(mtcp::config::Mode::Paired);
            })+
        }
        mod complete {
            $(#[test]
            fn $name() {
                super::$name(mtcp::config::Mode::Complete);
            })+
        }
    };
}
pub(crate) use in_both_modes;

in_both_modes!(
    messages_timers_and_wakers_work_at_once,
    each_core_accepts_its_connections,
    an_address_of_the_stack_alone_is_listened_on,
    a_client_connects_through_the_stack,
    axum_serves_http,
    a_shutdown_ends_the_connections,
);

/// Runs a test in a namespace of its own, with a stack that has this number of cores.
fn over_default_channels(mode: Mode, cores: u16, test: impl FnOnce(Builder) + Send) {
    over_stack(mode, cores, None, |builder, config| test(builder.channel_config(config)));
}

/// Like `over_default_channels`, with a runtime whose channels have settings of the test's, and a
/// stack that gives reports at a path.
pub(crate) fn over_stack(
    mode: Mode,
    cores: u16,
    reports: Option<&Path>,
    test: impl FnOnce(Builder, megapipe::Config) + Send,
) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !megapipe::driver_api::installed().contains(&SHARED) {
        let factory = |below| match &*engines() {
            Some(engines) => engines.driver(below),
            None => Err(io::Error::other("no stack")),
        };
        megapipe::driver_api::install(SHARED, factory).expect("nobody else installs it");
    }
    let namespace = Namespace::new();
    namespace.run(|| {
        *engines() = Some(Engines::new(start_with_reports(&namespace, mode, cores, reports)));
        let config = megapipe::Config {
            driver: DriverChoice::Installed(SHARED),
            ..megapipe::Config::default()
        };
        let builder = Runtime::builder().cores(cores.into()).pinned(false);
        test(builder, config);
        *engines() = None;
    });
}

fn engines() -> MutexGuard<'static, Option<Engines>> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve_echo(mut listener: TcpListener) -> io::Result<()> {
    loop {
        let mut stream = listener.accept().await?;
        spawn_local(async move {
            // A connection of the stack has no descriptor, which would have the address.
            let error = stream.local_addr().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
            while let Some(message) = stream.read().await? {
                stream.write(message).await?;
            }
            stream.shutdown().await
        });
    }
}

pub(crate) fn listen() -> (Bound, SocketAddr) {
    let bound = Bound::tcp("0.0.0.0:0").unwrap();
    let port = bound.local_addr().unwrap().port();
    (bound, SocketAddr::new(STACK[0], port))
}

/// Sends the content over a connection of the kernel, and compares what comes back.
fn exchange(address: SocketAddr, bytes: usize) {
    let mut peer = Peer::connect(address).unwrap();
    crate::common::set_time_limit(&peer);
    let mut writer = peer.try_clone().unwrap();
    let sender = thread::spawn(move || {
        writer.write_all(&testkit::content(bytes)).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut echoed = Vec::new();
    peer.read_to_end(&mut echoed).unwrap();
    sender.join().unwrap();
    assert!(echoed == testkit::content(bytes), "{} of {bytes} bytes", echoed.len());
}

fn messages_timers_and_wakers_work_at_once(mode: Mode) {
    over_default_channels(mode, 1, |builder| {
        let runtime = builder.build().unwrap();
        let handle = runtime.handle().clone();
        within(&runtime, async {
            let (bound, address) = listen();
            let server = spawn_local(serve_echo(bound.listen().unwrap()));
            let clients = thread::spawn(move || {
                [1, 70_000, 3_000_000].into_iter().for_each(|bytes| exchange(address, bytes));
            });
            let began = Instant::now();
            // Another thread wakes tasks of the core while the stack works.
            let messenger = thread::spawn(move || {
                let run = |number| handle.spawn_on(0, move || async move { number });
                (0..200).map(run).collect::<Vec<_>>()
            });
            for _ in 0..20 {
                sleep(Duration::from_millis(2)).await;
            }
            assert!(began.elapsed() >= Duration::from_millis(40));
            on_thread(move || clients.join().unwrap()).await;
            let mut sum = 0;
            for task in on_thread(move || messenger.join().unwrap()).await {
                sum += task.await.unwrap();
            }
            assert_eq!(sum, 199 * 200 / 2);
            server.abort();
        });
    });
}

fn each_core_accepts_its_connections(mode: Mode) {
    const CORES: u16 = 3;
    const CLIENTS: usize = 60;
    over_default_channels(mode, CORES, |builder| {
        let runtime = builder.build().unwrap();
        within(&runtime, async {
            let (bound, address) = listen();
            let mut tasks = Vec::new();
            for core in 0..CORES.into() {
                let bound = bound.clone();
                let counting = spawn_on(core, move || async move {
                    let mut listener = bound.listen()?;
                    Ok::<_, io::Error>(spawn_local(async move {
                        let mut count = 0;
                        while let Ok(mut stream) = listener.accept().await {
                            count += 1;
                            let message = stream.read().await.unwrap().unwrap();
                            stream.write(message).await.unwrap();
                        }
                        count
                    }))
                });
                tasks.push(counting.await.unwrap().unwrap());
            }
            on_thread(move || {
                for number in 0..CLIENTS {
                    let mut peer = Peer::connect(address).unwrap();
                    crate::common::set_time_limit(&peer);
                    peer.write_all(&[number as u8]).unwrap();
                    let mut found = Vec::new();
                    peer.read_to_end(&mut found).unwrap();
                    assert_eq!(found, [number as u8]);
                }
            })
            .await;
            // Accepting ends.
            megapipe_rt::Handle::current().request_shutdown();
            let mut counts = Vec::new();
            for task in tasks {
                counts.push(task.await.unwrap());
            }
            assert_eq!(counts.iter().sum::<usize>(), CLIENTS, "{counts:?}");
            assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        });
    });
}

/// The kernel of the namespace does not have the address, so the socket is bound to it by
/// IP_FREEBIND.
fn an_address_of_the_stack_alone_is_listened_on(mode: Mode) {
    over_default_channels(mode, 1, |builder| {
        let runtime = builder.build().unwrap();
        within(&runtime, async {
            let address = SocketAddr::new(STACK[0], 7000);
            let error = Bound::tcp(address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable, "{error}");
            let listener = megapipe::listen_with(address, 1024, |socket| {
                Ok(rustix::net::sockopt::set_ip_freebind(socket, true)?)
            });
            let bound = Bound::from(listener.unwrap());
            let server = spawn_local(serve_echo(bound.listen().unwrap()));
            on_thread(move || exchange(address, 100_000)).await;
            server.abort();
        });
    });
}

fn a_client_connects_through_the_stack(mode: Mode) {
    over_default_channels(mode, 1, |builder| {
        let runtime = builder.build().unwrap();
        within(&runtime, async {
            let listener = Listener::bind((KERNEL[0], 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let server = thread::spawn(move || {
                let (mut peer, from) = listener.accept().unwrap();
                crate::common::set_time_limit(&peer);
                let mut all = Vec::new();
                peer.read_to_end(&mut all).unwrap();
                peer.write_all(&all).unwrap();
                from.ip()
            });
            let mut stream = TcpStream::connect(address).await.unwrap();
            for piece in testkit::content(500_000).chunks(50_000) {
                stream.write(piece.to_vec()).await.unwrap();
            }
            stream.shutdown().await.unwrap();
            let mut echoed = Vec::new();
            while let Some(message) = stream.read().await.unwrap() {
                echoed.extend_from_slice(&message);
            }
            assert!(echoed == testkit::content(500_000), "{} bytes", echoed.len());
            assert_eq!(server.join().unwrap(), STACK[0]);
            let refused = TcpStream::connect(SocketAddr::new(KERNEL[0], 1)).await.unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
        });
    });
}

fn axum_serves_http(mode: Mode) {
    use axum::{Router, body::Bytes, extract::DefaultBodyLimit, routing::get, routing::post};
    const BODY: usize = 1_000_000;
    over_default_channels(mode, 1, |builder| {
        let runtime = builder.build().unwrap();
        within(&runtime, async {
            let app = Router::new()
                .route("/", get(|| async { "over the stack" }))
                .route("/echo", post(|body: Bytes| async { body }))
                .layer(DefaultBodyLimit::disable());
            let (bound, address) = listen();
            let server = spawn_local(http::serve(bound.listen().unwrap(), app));
            let ask = move |request: Vec<u8>| {
                let mut peer = Peer::connect(address).unwrap();
                crate::common::set_time_limit(&peer);
                let mut writer = peer.try_clone().unwrap();
                let sender = thread::spawn(move || writer.write_all(&request).unwrap());
                let mut answer = Vec::new();
                peer.read_to_end(&mut answer).unwrap();
                sender.join().unwrap();
                answer
            };
            let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
            let got = on_thread(move || ask(format!("GET / {head}\r\n").into_bytes())).await;
            assert!(got.starts_with(b"HTTP/1.1 200 ") && got.ends_with(b"over the stack"));
            let mut request =
                format!("POST /echo {head}content-length: {BODY}\r\n\r\n").into_bytes();
            request.extend(testkit::content(BODY));
            let got = on_thread(move || ask(request)).await;
            assert!(got.ends_with(&testkit::content(BODY)), "{} bytes", got.len());
            server.abort();
        });
    });
}

fn a_shutdown_ends_the_connections(mode: Mode) {
    over_default_channels(mode, 1, |builder| {
        let runtime = builder.build().unwrap();
        let mut peer = within(&runtime, async {
            let (bound, address) = listen();
            spawn_local(serve_echo(bound.listen().unwrap()));
            on_thread(move || {
                let mut peer = Peer::connect(address).unwrap();
                crate::common::set_time_limit(&peer);
                peer.write_all(b"x").unwrap();
                peer.read_exact(&mut [0; 1]).unwrap();
                peer
            })
            .await
        });
        // The connection's task waits for its peer, so it is dropped.
        assert_eq!(runtime.shutdown(Duration::from_millis(100)), 1);
        let end = peer.read(&mut [0; 1]);
        let reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        assert!(end.as_ref().is_ok_and(|count| *count == 0) || end.as_ref().is_err_and(reset));
    });
}
