//! Connects over the stack if its interface leads to the destination, otherwise over the kernel.

use super::MtcpDriver;
use crate::driver::address;
use crate::driver::entry::{Entry, Phase, Task};
use crate::engine::Port;
use crate::socket::errors::errno;
use crate::socket::options::SocketOption;
use crate::socket::settings::Extras;
use megapipe::Kind;
use megapipe::driver_api::{Endpoint, Full, Object, Operation, Unattached};
use mtcp_proto::{Error, Options, Readiness, SocketId};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use sys::socket_address;

/// An address in the form that operations have.
type RawAddress = (*const libc::sockaddr, libc::socklen_t);

/// Options that an application may set before a socket connects over the stack; the connection
/// inherits them.
const INHERITED: [(i32, i32); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
];

impl<P: Port> MtcpDriver<P> {
    /// Takes over a stream socket. A socket that is connected already, or is not TCP, is left to
    /// the kernel.
    pub(super) fn attach_stream(&mut self, descriptor: OwnedFd) -> Result<Object, Unattached> {
        let local = match address::is_connected(descriptor.as_fd()) {
            true => None,
            false => address::tcp_name(descriptor.as_fd()),
        };
        let kernel = self.kernel.attach(Endpoint::Descriptor(descriptor), Kind::Stream)?;
        let Some(local) = local else { return Ok(kernel) };
        let mut entry = Entry::new(Some(kernel), Phase::Fresh);
        if local.port() != 0 || !local.ip().is_unspecified() {
            let extras = Extras { local: Some(local), ..Extras::new(self.defaults) };
            entry.extras = Some(Box::new(extras));
        }
        Ok(Object(Object::INSTALLED + self.entries.insert(entry)))
    }

    /// Copies the options of the kernel's socket that concern the stack.
    pub(super) fn copy_options(
        &mut self,
        kernel: Object,
        options: Options,
        entry: &mut Entry,
    ) -> Options {
        let extras = entry.extras.take().map_or_else(|| Extras::new(options), |extras| *extras);
        let mut extras = Extras { options, ..extras };
        let before = extras.clone();
        for (level, name) in INHERITED {
            let mut value = [0; 8];
            let told = self.kernel.get_option(kernel, level, name, &mut value);
            if let (Ok(bytes), Ok(option)) = (told, SocketOption::find(level, name)) {
                // An option that the stack does not accept keeps its default.
                let _ = option.set(&mut extras, &value[..bytes.min(value.len())]);
            }
        }
        let options = extras.options;
        if extras != before || extras.local.is_some() {
            entry.extras = Some(Box::new(extras));
        }
        options
    }

    pub(super) fn begin_connect(
        &mut self,
        number: u32,
        kernel: Object,
        tag: u64,
        target: RawAddress,
    ) -> Result<(), Full> {
        let (pointer, bytes) = target;
        let length = (bytes as usize).min(size_of::<libc::sockaddr_storage>());
        // SAFETY: the operation's address is readable for its length until the operation's last
        // outcome.
        let raw = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) };
        let remote = socket_address::parse(raw).filter(|remote| self.goes_by_stack(*remote));
        let Some(remote) = remote else {
            if let Some(entry) = self.entries.get_mut(number) {
                entry.phase = Phase::Kernel;
            }
            return self.hand_down(tag, kernel, Operation::Connect { address: pointer, bytes });
        };
        match self.connect_on_stack(number, kernel, remote) {
            Ok(socket) => {
                self.entries.place(socket, number);
                if let Some(entry) = self.entries.get_mut(number) {
                    entry.phase = Phase::Connecting(socket);
                    let operation = Operation::Connect { address: pointer, bytes };
                    entry.outbound = Some(Task::new(tag, operation));
                }
            }
            Err(error) => self.end(tag, -errno(error)),
        }
        Ok(())
    }

    /// Whether a connection to this address uses the stack. The stack's own addresses loop back in
    /// it, unless the kernel has them too and a listener there. Addresses of a family in which the
    /// stack has no address do not use it.
    fn goes_by_stack(&mut self, remote: SocketAddr) -> bool {
        let own = self.port.addresses();
        if own.contains(&remote.ip()) {
            return !self.reach.is_shared();
        }
        let family = own.iter().any(|own| own.is_ipv6() == remote.is_ipv6());
        family && self.reach.leads_to(remote.ip())
    }

    fn connect_on_stack(
        &mut self,
        number: u32,
        kernel: Object,
        remote: SocketAddr,
    ) -> Result<SocketId, Error> {
        let Some(mut entry) = self.entries.take(number) else { return Err(Error::UnknownSocket) };
        let options = self.copy_options(kernel, self.defaults, &mut entry);
        let bound = entry.extras.as_ref().and_then(|extras| extras.local);
        self.entries.put_back(number, entry);
        // With an unspecified address the stack chooses one of its own.
        self.port.connect(bound, remote, &options)
    }

    /// Processes a readiness event of a connecting socket; true if it is established.
    pub(super) fn finish_connect(
        &mut self,
        number: u32,
        socket: SocketId,
        readiness: Readiness,
    ) -> bool {
        // A connection that was reset after it was established has data, and its error, for
        // receivers.
        let over = Readiness::ERROR.with(Readiness::CLOSED);
        let failed = readiness.intersects(over) && !self.port.was_established(socket);
        let stands = Readiness::WRITABLE.with(Readiness::PEER_CLOSED).with(Readiness::CLOSED);
        if !failed && !readiness.intersects(stands) {
            return false;
        }
        let Some(entry) = self.entries.get_mut(number) else { return false };
        let Some(task) = entry.outbound.take() else { return false };
        if failed {
            // The kernel's socket still exists, for another attempt.
            entry.phase = Phase::Fresh;
            // As in the kernel if SO_ERROR has returned the reason.
            let error = self.port.take_error(socket).unwrap_or(Error::Aborted);
            self.port.close(socket);
            self.end(task.tag, -errno(error));
            return false;
        }
        entry.phase = Phase::Connected(socket);
        let unused = entry.kernel.take();
        self.end(task.tag, 0);
        if let Some(kernel) = unused {
            let lent = self.move_lent(number);
            self.handed = true;
            drop(self.kernel.detach(kernel, &lent));
        }
        true
    }
}
