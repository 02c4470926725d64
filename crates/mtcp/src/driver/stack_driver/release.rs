//! Cancels operations, and releases endpoints.

use super::MtcpDriver;
use crate::driver::entry::Phase;
use crate::engine::Port;
use megapipe::driver_api::Object;
use mtcp_proto::{Shutdown, SocketId};
use std::time::Duration;

impl<P: Port> MtcpDriver<P> {
    /// Cancels the operations that `wanted` selects. For those that both the stack and the kernel
    /// serve, the kernel driver ends them.
    pub(super) fn cancel_where(&mut self, number: u32, wanted: impl Fn(u64) -> bool) {
        self.keep_lent(number, &wanted);
        let Some(entry) = self.entries.get_mut(number) else { return };
        let phase = entry.phase;
        let mut ended = Vec::new();
        if !matches!(phase, Phase::Listening(_)) {
            let poll = entry.poll.take_if(|poll| wanted(poll.tag));
            ended.extend(poll.map(|poll| (poll.tag, -libc::ECANCELED)));
            for task in [&mut entry.inbound, &mut entry.outbound] {
                let task = task.take_if(|task| wanted(task.tag));
                ended.extend(task.map(|task| (task.tag, -libc::ECANCELED)));
            }
            if let Phase::Connecting(socket) = phase
                && !ended.is_empty()
                && entry.outbound.is_none()
            {
                entry.phase = Phase::Fresh;
                self.port.abort(socket);
            }
        }
        for (tag, result) in ended {
            self.end(tag, result);
        }
        let (kernel, all) = match self.entries.get_mut(number) {
            Some(entry) => (entry.kernel, &mut self.shared),
            None => return,
        };
        let Some(kernel) = kernel else { return };
        let tags: Vec<u64> = all
            .iter_mut()
            .filter(|shared| shared.number == number && wanted(shared.tag))
            .map(|shared| {
                shared.cancelled = true;
                shared.tag
            })
            .collect();
        for tag in tags {
            self.kernel.cancel(tag, kernel);
        }
    }

    /// Releases an endpoint; returns the kernel's socket, if there still is one. Those of the
    /// operations `pending` that the kernel driver executes are left to it.
    pub(super) fn release<'a>(
        &mut self,
        number: u32,
        pending: &'a [u64],
        close: bool,
    ) -> Option<(Object, &'a [u64])> {
        if !pending.is_empty() {
            self.cancel_where(number, |_| true);
        }
        let entry = self.entries.remove(number)?;
        match entry.phase {
            Phase::Connecting(socket) | Phase::Connected(socket) if close => {
                self.port.close(socket);
            }
            Phase::Listening(socket) => self.port.close(socket),
            _ => {}
        }
        self.shared.retain(|shared| shared.number != number || shared.cancelled);
        let busy = self.disown_lent(number);
        let kernel = entry.kernel?;
        let kernels = matches!(entry.phase, Phase::Kernel | Phase::Listening(_));
        let kernels = kernels || busy;
        Some((kernel, if kernels { pending } else { &[] }))
    }

    /// How long a close of this connection waits, if it waits.
    pub(super) fn linger_time(&mut self, number: u32) -> Option<(SocketId, Duration)> {
        let entry = self.entries.get_mut(number)?;
        let Phase::Connected(socket) = entry.phase else { return None };
        let time = entry.extras.as_ref()?.linger.filter(|time| !time.is_zero())?;
        // Unread data makes the close a reset, which does not wait.
        let waits =
            self.port.receivable(socket) == 0 && self.port.shutdown(socket, Shutdown::Send).is_ok();
        waits.then_some((socket, time))
    }
}
