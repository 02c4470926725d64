//! The application that all runtimes serve.

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;

/// Longest answer, 1 MiB.
const MOST_BYTES: usize = 1 << 20;

/// Every answer is the beginning of it, so an answer costs neither memory nor a copy.
static BODY: [u8; MOST_BYTES] = [b'x'; MOST_BYTES];

/// `GET /BYTES` answers with that many bytes.
pub(super) fn app() -> Router {
    Router::new().route("/{bytes}", get(answer))
}

async fn answer(Path(bytes): Path<usize>) -> Result<Bytes, StatusCode> {
    BODY.get(..bytes).map(Bytes::from_static).ok_or(StatusCode::NOT_FOUND)
}
