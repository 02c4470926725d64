//! Submits the writes of a script.

use crate::arrive::NO_MARK;
use crate::link::{FILE_BYTES, Link};
use crate::operate::{called, refusal};
use crate::run::{Call, Run};
use crate::script::{LinkKind, Op, Verb};
use crate::semantics::What;
use fuzzkit::pattern;
use megapipe::{Buffer, Handle, Message};
use std::fs::File;
use std::sync::Arc;

impl Run<'_> {
    pub(crate) fn write(&mut self, op: Op, handle: Handle) -> Call {
        let kind = self.links[op.member / 2].kind;
        let is_read_only = kind == LinkKind::PipeIn;
        let suits = match op.verb {
            Verb::WriteLease => kind.is_tcp() || kind == LinkKind::Unix,
            Verb::SendTo => kind.is_datagrams(),
            Verb::WriteAt => kind == LinkKind::File,
            Verb::SendMessage => kind.is_messages() || kind.is_tcp() || kind == LinkKind::Unix,
            _ => true,
        };
        if is_read_only || !suits || (op.verb == Verb::WriteLease && self.leases.is_empty()) {
            return Call::Skipped;
        }
        if kind == LinkKind::File {
            return self.write_file(op, handle);
        }
        let parts = if op.verb == Verb::WriteVectored { op.b.max(1) as usize } else { 1 };
        let total = op.a as usize * parts;
        let outbound = &mut self.links[op.member / 2].outbound;
        let (bytes, buffer) = match op.verb {
            Verb::WriteLease => {
                let lease = self.leases.remove(0);
                (lease.to_vec(), Buffer::from(lease))
            }
            _ => {
                let bytes = if kind.is_messages() {
                    outbound.next_message(total)
                } else {
                    outbound.next_bytes(total)
                };
                let buffer = if op.b == 1 && op.verb != Verb::WriteVectored {
                    Buffer::from(Arc::<[u8]>::from(&bytes[..]))
                } else {
                    Buffer::from(bytes.clone())
                };
                (bytes, buffer)
            }
        };
        let segment = outbound.file(op.member, bytes);
        self.links[op.member / 2].state.has_written = true;
        let call = self.file_write(op, handle, buffer, segment);
        if call != Call::Done {
            let link = &mut self.links[op.member / 2];
            link.outbound.segments[segment].delivery = crate::model::Delivery::Known(0);
        }
        call
    }

    fn file_write(&mut self, op: Op, handle: Handle, buffer: Buffer, segment: usize) -> Call {
        let target = self.links[op.member / 2].target.as_ref().map(|(address, _)| address.clone());
        let room = buffer.len();
        let mark = match op.verb {
            Verb::WriteLease => NO_MARK,
            _ => buffer.as_ptr() as u64,
        };
        let (what, error, mark) = match (op.verb, target) {
            (Verb::SendTo, Some(target)) => {
                (What::SendTo, refusal(self.channel.send_to(handle, buffer, target)), mark)
            }
            (Verb::WriteVectored, _) => {
                let part = (room / op.b.max(1) as usize).max(1);
                let buffers: Vec<Buffer> =
                    buffer.chunks(part).map(|part| part.to_vec().into()).collect();
                let mark = buffers.first().map_or(0, |first| first.as_ptr() as u64);
                (What::WriteVectored, refusal(self.channel.write_vectored(handle, buffers)), mark)
            }
            (Verb::WriteMore, _) => {
                (What::Write, refusal(self.channel.write_more(handle, buffer)), mark)
            }
            (Verb::SendMessage, _) => {
                let carries = op.b == 1 && room > 0 && self.is_unix(op.member);
                let mut message = Message::new(buffer);
                if carries && let Ok(descriptor) = File::open("/dev/null") {
                    message = message.with_descriptor(descriptor);
                }
                (What::SendMessage, refusal(self.channel.send_message(handle, message)), mark)
            }
            _ => (What::Write, refusal(self.channel.write(handle, buffer)), mark),
        };
        if error.is_none() {
            self.filed(op, what, |request| {
                (request.mark, request.room, request.segment) = (mark, room, Some(segment));
            });
        }
        called(error)
    }

    /// Sends a part of the first file of the script.
    pub(crate) fn send_file(&mut self, op: Op, handle: Handle) -> Call {
        let is_file = |link: &Link| link.kind == LinkKind::File;
        let Some(of) = self.links.iter().position(is_file) else { return Call::Skipped };
        let Some(file) = self.members[2 * of].handle else { return Call::Skipped };
        let (count, offset) = (op.a as usize, u64::from(op.b));
        let result = self.channel.send_file(handle, file, offset, count);
        if result.is_ok() {
            let there = FILE_BYTES.saturating_sub(op.b as usize).min(count);
            let bytes = pattern::bytes(self.links[of].inbound.stream, offset, there);
            let link = &mut self.links[op.member / 2];
            link.state.has_written = true;
            let segment = link.outbound.file(op.member, bytes);
            self.filed(op, What::SendFile, |request| {
                (request.room, request.offset) = (count, offset);
                (request.segment, request.file) = (Some(segment), Some(file));
            });
        }
        called(result.err())
    }

    fn is_unix(&self, member: usize) -> bool {
        let unix = [LinkKind::Unix, LinkKind::Seqpacket, LinkKind::UnixDatagram];
        unix.contains(&self.links[member / 2].kind)
    }

    /// Writes the bytes that the file already has there, so that every read finds the same.
    fn write_file(&mut self, op: Op, handle: Handle) -> Call {
        let is_idle = !self.members[op.member].pending.iter().any(|id| {
            let what = self.requests[*id].what;
            what.takes_data() || what.writes()
        });
        let link = &self.links[op.member / 2];
        let stream = link.inbound.stream;
        let at_offset = op.verb == Verb::WriteAt;
        let position = if at_offset { Some(u64::from(op.b)) } else { link.position };
        let Some(position) = position.filter(|_| at_offset || is_idle) else {
            return Call::Skipped;
        };
        let count = (op.a as usize).min(FILE_BYTES.saturating_sub(position as usize));
        if count == 0 {
            return Call::Skipped;
        }
        let bytes = pattern::bytes(stream, position, count);
        let mark = bytes.as_ptr() as u64;
        let (what, error) = if at_offset {
            (What::WriteAt, refusal(self.channel.write_at(handle, bytes, position)))
        } else if op.verb == Verb::WriteMore {
            (What::Write, refusal(self.channel.write_more(handle, bytes)))
        } else {
            (What::Write, refusal(self.channel.write(handle, bytes)))
        };
        if error.is_none() {
            self.filed(op, what, |request| {
                (request.mark, request.room, request.offset) = (mark, count, position);
            });
        }
        called(error)
    }
}
