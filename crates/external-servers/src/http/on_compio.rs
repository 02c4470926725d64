//! compio with `cyper_axum::serve`: a runtime on the calling thread.

use std::net::TcpListener;

use super::app::app;
use crate::error::{Context, Result};
use crate::on_compio::{REMEDY, start};
use crate::workers::Ready;

/// Serves forever.
pub(super) fn serve(listener: TcpListener, ready: Ready) -> Result<()> {
    start()?.block_on(async move {
        let listener = compio::net::TcpListener::from_std(listener)
            .context("hand the listening socket to compio", REMEDY)?;
        ready.tell();
        cyper_axum::serve(listener, app()).await.context("serve", REMEDY)
    })
}
