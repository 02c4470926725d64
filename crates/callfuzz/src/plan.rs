//! Makes the request of an operation, from the controller's model.

use crate::host::Request;
use crate::model::{Kind, Model, Open, Slot};
use crate::protocol::Call;
use crate::script::{Op, REFUSED, SLOTS, Verb};

/// An operation that can be executed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) op: Op,
    pub(crate) request: Request,
    /// The connection and the side of the descriptor.
    pub(crate) end: Option<(usize, usize)>,
    /// The files of the events in the answer.
    pub(crate) files: Vec<usize>,
}

/// Bytes that a pipe holds without special rights.
const PIPE_BYTES: usize = 60_000;

/// Returns how a read or write is made: the lowest bits of an operation's `b`.
pub(crate) fn how(op: Op) -> u32 {
    op.b & 15
}

/// Returns the flags of recv(2) of a reading operation.
pub(crate) fn read_flags(op: Op) -> i32 {
    let known = [
        (16, libc::MSG_DONTWAIT),
        (32, libc::MSG_PEEK),
        (64, libc::MSG_WAITALL),
        (128, libc::MSG_TRUNC),
        (256, libc::MSG_OOB),
    ];
    known.iter().filter(|(bit, _)| op.b & bit != 0).map(|(_, flag)| flag).sum()
}

/// Returns the flags of send(2) of a writing operation.
pub(crate) fn write_flags(op: Op) -> i32 {
    let known = [
        (16, libc::MSG_DONTWAIT),
        (32, libc::MSG_MORE),
        (64, libc::MSG_NOSIGNAL),
        (128, libc::MSG_OOB),
    ];
    known.iter().filter(|(bit, _)| op.b & bit != 0).map(|(_, flag)| flag).sum()
}

/// Returns whether the function takes flags.
pub(crate) fn takes_flags(op: Op) -> bool {
    [1, 2, 4].contains(&how(op))
}

/// Returns whether the operation leaves the bytes in the stream.
pub(crate) fn peeks(op: Op) -> bool {
    takes_flags(op) && op.b & 32 != 0
}

/// Returns whether the call opens a descriptor, which a started program inherits as well.
fn opens(verb: Verb) -> bool {
    matches!(verb, Verb::Socket | Verb::EpollCreate | Verb::Accept | Verb::Duplicate | Verb::Fork)
}

impl Model {
    /// Returns the request of an operation; `None` if it has no object.
    pub(crate) fn plan(&self, op: Op, family: i32) -> Option<Plan> {
        let process = &self.processes[op.process];
        if !process.is_live || process.is_executing && opens(op.verb) {
            return None;
        }
        let plan = |call: Call, arguments: &[i64]| {
            let request = Request::new(call, arguments);
            Some(Plan { op, request, end: None, files: Vec::new() })
        };
        match op.verb {
            Verb::Exit | Verb::Kill => return plan(Call::Exit, &[]),
            Verb::Again => return plan(Call::Again, &[]),
            Verb::Descriptors => return plan(Call::Descriptors, &[]),
            Verb::Interrupt => return plan(Call::Interrupt, &[]),
            Verb::Fork => {
                let child = op.process + 2;
                let is_free = self.processes.get(child).is_some_and(|child| !child.is_live);
                return if is_free { plan(Call::Fork, &[]) } else { None };
            }
            Verb::Socket | Verb::EpollCreate if process.slots[op.slot].is_some() => return None,
            Verb::EpollCreate => return plan(Call::EpollCreate, &[]),
            Verb::Socket => {
                let nonblocking = if op.a & 1 != 0 { libc::SOCK_NONBLOCK } else { 0 };
                let closes = if op.a & 2 != 0 { libc::SOCK_CLOEXEC } else { 0 };
                let kind = libc::SOCK_STREAM | nonblocking | closes;
                return plan(Call::Socket, &[i64::from(family), i64::from(kind)]);
            }
            _ => {}
        }
        let slot = process.slots[op.slot]?;
        let open = self.open(slot);
        let end = self.end(slot.file);
        let planned = match op.verb {
            Verb::Read | Verb::Write | Verb::Execute => self.transfer(op, slot, open),
            Verb::Poll => self.poll(op, slot),
            Verb::EpollAdd | Verb::EpollModify | Verb::EpollDelete | Verb::EpollWait => {
                self.epoll(op, slot, open)
            }
            _ => self.simple(op, slot, open, family),
        };
        planned.map(|(request, files)| Plan { op, request, end, files })
    }

    fn transfer(&self, op: Op, slot: Slot, open: &Open) -> Option<(Request, Vec<usize>)> {
        let end = self.end(slot.file);
        let connection = end.map(|(connection, side)| (&self.connections[connection], side));
        let is_splice = op.verb == Verb::Write && how(op) == 7;
        let count = (op.a as usize).min(if is_splice { PIPE_BYTES } else { usize::MAX });
        let reads = op.verb == Verb::Read || (op.verb == Verb::Execute && op.a == 0);
        let direction =
            connection.map(|(of, side)| &of.directions[if reads { 1 - side } else { side }]);
        let busy = |reader: bool| {
            direction.is_some_and(|of| if reader { of.has_reader } else { of.has_writer })
        };
        // The position of the next byte is no longer known.
        if !reads && direction.is_some_and(|of| of.is_uncertain) {
            return None;
        }
        if busy(reads) || (op.verb == Verb::Execute && end.is_none()) {
            return None;
        }
        let flags = if reads { read_flags(op) } else { write_flags(op) };
        let bytes = |count: usize| match direction {
            Some(direction) => direction.next(count),
            None => vec![0; count],
        };
        let mut request = match op.verb {
            Verb::Read => Request::new(
                Call::Read,
                &[slot.fd, i64::from(op.a), i64::from(how(op)), i64::from(flags)],
            ),
            Verb::Write => {
                Request::new(Call::Write, &[slot.fd, i64::from(how(op)), i64::from(flags)])
            }
            _ => Request::new(Call::Execute, &[slot.fd, i64::from(reads), i64::from(op.b)]),
        };
        if !reads {
            request.bytes = bytes(count);
            if op.verb == Verb::Write && takes_flags(op) && op.b & 128 != 0 {
                request.bytes = direction.map(|of| vec![of.urgent_byte()]).unwrap_or(vec![0]);
            }
        }
        let waits = !(open.is_nonblocking || takes_flags(op) && op.b & 16 != 0);
        request.threaded = waits || op.verb == Verb::Execute;
        Some((request, Vec::new()))
    }

    fn poll(&self, op: Op, slot: Slot) -> Option<(Request, Vec<usize>)> {
        let slots: Vec<Slot> = if op.b & 16 != 0 {
            self.processes[op.process].slots.iter().copied().flatten().collect()
        } else {
            vec![slot]
        };
        let waits = op.b & 32 != 0;
        let mut arguments = vec![i64::from(how(op)), if waits { -1 } else { 0 }];
        arguments.extend(slots.iter().flat_map(|slot| [slot.fd, i64::from(op.a)]));
        let files = slots.iter().map(|slot| slot.file).collect();
        let mut request = Request::new(Call::Poll, &arguments);
        request.threaded = waits;
        Some((request, files))
    }

    fn epoll(&self, op: Op, slot: Slot, open: &Open) -> Option<(Request, Vec<usize>)> {
        let Kind::Set(_) = open.kind else { return None };
        let code = match op.verb {
            Verb::EpollAdd => libc::EPOLL_CTL_ADD,
            Verb::EpollModify => libc::EPOLL_CTL_MOD,
            Verb::EpollDelete => libc::EPOLL_CTL_DEL,
            // Which of two threads gets an event is undefined.
            _ if self.awaited.contains(&slot.file) => return None,
            _ => {
                let time = if op.a == 1 { -1 } else { 0 };
                let mut request = Request::new(Call::EpollWait, &[slot.fd, time]);
                request.threaded = op.a == 1;
                return Some((request, vec![slot.file]));
            }
        };
        let member = self.slot(op.process, op.a as usize % SLOTS)?;
        if matches!(self.open(member).kind, Kind::Set(_)) {
            return None;
        }
        let arguments = [slot.fd, i64::from(code), member.fd, i64::from(op.b), member.file as i64];
        Some((Request::new(Call::EpollControl, &arguments), vec![member.file]))
    }

    /// Returns the port and the host of a connect: a listener's, or a port without a listener.
    fn connect_target(&self, op: Op, open: &Open) -> Option<(i64, i64)> {
        let number = op.a as usize;
        if number >= REFUSED {
            let target = number - REFUSED;
            // The host of a process that has ended no longer exists, because its stack has ended.
            return self.processes.get(target)?.is_live.then(|| (1, self.host(target)));
        }
        let target = self.slot((number / SLOTS) % 2, number % SLOTS)?;
        let Kind::Listener { port, queue } = &self.open(target).kind else { return None };
        let takes = queue.len() < 3 && open.kind == Kind::Fresh;
        takes.then(|| (*port, self.host(number / SLOTS)))
    }

    fn simple(
        &self,
        op: Op,
        slot: Slot,
        open: &Open,
        family: i32,
    ) -> Option<(Request, Vec<usize>)> {
        let is_free = |process: usize| {
            let process = &self.processes[process];
            let has_room = process.slots[op.a as usize % SLOTS].is_none();
            process.is_live && !process.is_executing && has_room
        };
        let (fd, a, b) = (slot.fd, i64::from(op.a), i64::from(op.b));
        let is_set = matches!(open.kind, Kind::Set(_));
        let request = match op.verb {
            Verb::Bind if open.kind == Kind::Fresh => {
                Request::new(Call::Bind, &[fd, family.into(), self.host(op.process)])
            }
            Verb::Listen if open.kind == Kind::Fresh => Request::new(Call::Listen, &[fd, a]),
            Verb::Connect => {
                let (port, host) = self.connect_target(op, open)?;
                let mut request = Request::new(Call::Connect, &[fd, family.into(), port, host]);
                request.threaded = !open.is_nonblocking;
                request
            }
            // Which of two threads gets a connection is undefined.
            Verb::Accept if !open.is_nonblocking && self.accepting.contains(&slot.file) => {
                return None;
            }
            Verb::Accept if is_free(op.process) => {
                let Kind::Listener { .. } = open.kind else { return None };
                let nonblocking = if op.b & 16 != 0 { libc::SOCK_NONBLOCK } else { 0 };
                let closes = if op.b & 32 != 0 { libc::SOCK_CLOEXEC } else { 0 };
                let flags = i64::from(nonblocking | closes);
                let mut request = Request::new(Call::Accept, &[fd, i64::from(how(op)), flags]);
                request.threaded = !open.is_nonblocking;
                request
            }
            Verb::Shutdown => Request::new(Call::Shutdown, &[fd, a]),
            // The behaviour of a call that waits for events of a file that is closed is undefined.
            Verb::Close if self.awaited.contains(&slot.file) => return None,
            Verb::Close => Request::new(Call::Close, &[fd, b]),
            Verb::Duplicate => {
                let target = self.slot(op.process, op.a as usize % SLOTS);
                let number = target.map_or(40 + a % SLOTS as i64, |target| target.fd);
                let replaces = op.b == 1 || op.b == 2;
                if target.is_some_and(|target| self.awaited.contains(&target.file)) {
                    return None;
                }
                if !replaces && target.is_some() {
                    return None;
                }
                Request::new(Call::Duplicate, &[fd, b, number])
            }
            Verb::Nonblock => Request::new(Call::Nonblocking, &[fd, a, b]),
            Verb::Unread if !is_set => Request::new(Call::Unread, &[fd]),
            Verb::SetOption => Request::new(Call::SetOption, &[fd, a, i64::from(op.b as i32)]),
            Verb::GetOption => Request::new(Call::GetOption, &[fd, a]),
            Verb::Name => Request::new(Call::Name, &[fd, a]),
            Verb::Flags => Request::new(Call::Flags, &[fd]),
            Verb::Pass if op.process < 2 && is_free(1 - op.process) && !is_set => {
                Request::new(Call::Pass, &[fd])
            }
            _ => return None,
        };
        let files = if op.verb == Verb::Accept { vec![slot.file] } else { Vec::new() };
        Some((request, files))
    }
}
