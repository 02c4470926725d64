//! Handles of tasks.

use megapipe_rt::{AbortHandle, JoinError as Ended};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for the result of a task.
#[derive(Debug)]
pub struct JoinHandle<T>(megapipe_rt::JoinHandle<T>);

pub(crate) fn joined<T>(handle: megapipe_rt::JoinHandle<T>) -> JoinHandle<T> {
    JoinHandle(handle)
}

impl<T> JoinHandle<T> {
    pub fn abort(&self) {
        self.0.abort();
    }

    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T: Send + 'static> JoinHandle<T> {
    pub fn abort_handle(&self) -> AbortHandle {
        self.0.abort_handle()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(JoinError::new)
    }
}

/// The reason why a task has no result.
pub struct JoinError(Ended);

impl JoinError {
    pub(crate) fn new(ended: Ended) -> JoinError {
        JoinError(ended)
    }

    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Ended::Cancelled)
    }

    pub fn is_panic(&self) -> bool {
        matches!(self.0, Ended::Panicked(_))
    }

    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        match self.0 {
            Ended::Panicked(panic) => Ok(panic.into_payload()),
            other => Err(JoinError(other)),
        }
    }

    #[track_caller]
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        self.try_into_panic().expect("the task panicked")
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> std::io::Error {
        error.0.into()
    }
}
