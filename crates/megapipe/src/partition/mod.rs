//! One listening socket for several channels.
use crate::cpuset::CpuSet;
use crate::source::Waker;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
/// Why a listening socket cannot be shared as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// The set names no CPU.
    #[error("the set of CPUs is empty: name at least one")]
    NoCpu,
}
pub(crate) struct Queue {
    pub(crate) id: u64,
    pub(crate) descriptor: Arc<OwnedFd>,
}
pub(crate) enum Mail {
    Adopt(Queue),
    Return(u64),
}
pub(crate) struct Office;
impl Office {
    pub(crate) fn new(_: Waker) -> Arc<Office> {
        Arc::new(Office)
    }
    pub(crate) fn drain(&self) -> Vec<Mail> {
        vec![]
    }
}
pub(crate) struct Membership;
impl Membership {
    pub(crate) fn join(
        _: BorrowedFd<'_>,
        _: &CpuSet,
        _: &Arc<Office>,
    ) -> Result<(Membership, Vec<Queue>), ListenerError> {
        Err(ListenerError::NoCpu)
    }
    pub(crate) fn set_cpus(&self, _: &CpuSet) -> Result<Vec<Queue>, ListenerError> {
        Ok(vec![])
    }
    pub(crate) fn leave(self) -> Vec<OwnedFd> {
        vec![]
    }
    pub(crate) fn steal(&self, _: usize, _: u32, _: &mut Vec<OwnedFd>) {}
}
