//! Serves gRPC: the health service of tonic, through the service stack of `http`, for tonic's
//! client over a stream of the runtime, and for curl.

use crate::common::{TIME_LIMIT, runtime, within};
use hyper::client::conn::http2;
use megapipe::DriverChoice;
use megapipe_rt::hyper::{LocalExecutor, Timer};
use megapipe_rt::{Handle, TcpListener, TcpStream, http, sleep, spawn_local};
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic_health::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response};

on_both_drivers!(a_client_calls_and_follows_a_stream, curl_gets_an_answer_with_trailers);

const SERVICE: &str = "example.Service";

/// tonic's client side needs a service of `tower`; this one sends over one connection. Its futures
/// are not `Send`.
#[derive(Clone)]
struct Connection(http2::SendRequest<tonic::body::Body>);

impl Connection {
    async fn open(stream: TcpStream) -> hyper::Result<Connection> {
        let mut builder = http2::Builder::new(LocalExecutor);
        let (sender, connection) = builder.timer(Timer).handshake(stream).await?;
        spawn_local(connection);
        Ok(Connection(sender))
    }
}

impl tower_service::Service<hyper::Request<tonic::body::Body>> for Connection {
    type Response = hyper::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: hyper::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

fn a_client_calls_and_follows_a_stream(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (reporter, service) = tonic_health::server::health_reporter();
        reporter.set_service_status(SERVICE, ServingStatus::Serving).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        spawn_local(http::serve(listener, tonic::service::Routes::new(service)));
        let stream = TcpStream::connect(address).await.unwrap();
        // A frame of HTTP/2 does not wait for the acknowledgement of the one before.
        stream.set_nodelay(true).unwrap();
        let connection = Connection::open(stream).await.unwrap();
        let origin = "http://localhost".parse().unwrap();
        let mut client = HealthClient::with_origin(connection, origin);
        let request = || HealthCheckRequest { service: SERVICE.to_string() };
        let serving = health_check_response::ServingStatus::Serving as i32;
        for _ in 0..100 {
            assert_eq!(client.check(request()).await.unwrap().into_inner().status, serving);
        }
        let unknown = HealthCheckRequest { service: "unknown".to_string() };
        let status = client.check(unknown).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
        let mut changes = client.watch(request()).await.unwrap().into_inner();
        assert_eq!(changes.message().await.unwrap().unwrap().status, serving);
        reporter.set_service_status(SERVICE, ServingStatus::NotServing).await;
        let changed = changes.message().await.unwrap().unwrap().status;
        assert_eq!(changed, health_check_response::ServingStatus::NotServing as i32);
        drop((changes, client));
        Handle::current().request_shutdown();
    });
    assert_eq!(runtime.shutdown(TIME_LIMIT), 0);
}

/// A message of gRPC: not compressed, its length, and its bytes.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    frame
}

fn curl_gets_an_answer_with_trailers(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let (reporter, service) = tonic_health::server::health_reporter();
        reporter.set_service_status(SERVICE, ServingStatus::Serving).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/grpc.health.v1.Health/Check", listener.local_addr().unwrap());
        spawn_local(http::serve(listener, tonic::service::Routes::new(service)));
        let directory = tempfile::tempdir().unwrap();
        let (request, head) = (directory.path().join("request"), directory.path().join("head"));
        // Field 1 of the message is the service's name.
        let message = [&[0x0a, SERVICE.len() as u8], SERVICE.as_bytes()].concat();
        std::fs::write(&request, framed(&message)).unwrap();
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--max-time", "60"]);
        command.args(["--http2-prior-knowledge", "-H", "content-type: application/grpc"]);
        command.args(["-H", "te: trailers", "--dump-header"]).arg(&head);
        command.arg("--data-binary").arg(format!("@{}", request.display())).arg(url);
        let thread = std::thread::spawn(move || command.output().expect("curl"));
        while !thread.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        let output = thread.join().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Field 1 is the status SERVING.
        assert_eq!(output.stdout, framed(&[0x08, 0x01]));
        let head = std::fs::read_to_string(head).unwrap();
        assert!(head.contains("grpc-status: 0"), "{head}");
    });
}
