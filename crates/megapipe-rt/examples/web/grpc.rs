//! A gRPC server with a thread on each CPU: the standard service for health checks, by tonic.
//!
//! `cargo run -p systemtests-channel --example grpc`, then
//! `grpc_health_probe -addr 127.0.0.1:50051` or any other client of `grpc.health.v1.Health`. A
//! service that `tonic-prost-build` generates is added to the routes in the same way.

use megapipe_rt::{Bound, Runtime, http};
use tonic::service::Routes;

fn main() -> std::io::Result<()> {
    // The empty name, which stands for the whole server, is there and serves.
    let (_reporter, service) = tonic_health::server::health_reporter();
    let routes = Routes::new(service);
    let port = Bound::tcp("127.0.0.1:50051")?;
    Runtime::new()?.run(move || {
        let (port, routes) = (port.clone(), routes.clone());
        async move { http::serve(port.listen()?, routes).await }
    })
}
