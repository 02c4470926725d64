//! An axum server with a thread on each CPU, over HTTP/1 and HTTP/2.
//!
//! `cargo run -p systemtests-channel --example axum_server`, then
//! `curl http://127.0.0.1:8080/` or `curl --http2-prior-knowledge http://127.0.0.1:8080/hello/you`.

use axum::extract::Path;
use axum::{Router, routing::get};
use megapipe_rt::{Bound, Runtime, http};

fn main() -> std::io::Result<()> {
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/hello/{name}", get(|Path(name): Path<String>| async move { name }));
    let port = Bound::tcp("127.0.0.1:8080")?;
    Runtime::new()?.run(move || {
        let (port, app) = (port.clone(), app.clone());
        async move { http::serve(port.listen()?, app).await }
    })
}
