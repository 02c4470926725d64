//! Tests what the async runtime's features add: HTTP, gRPC, TLS, WebSocket, QUIC and metrics, with
//! other programs as clients.

#[macro_use]
#[path = "../../../../crates/megapipe-rt/tests/common/mod.rs"]
mod common;

mod grpc;
mod http;
mod http_limits;
mod metrics;
mod quinn;
mod tls;
mod websocket;
