//! Sends a part of a file: directly while the driver can, else one chunk at a time.
//!
//! A driver sends directly what is in the page cache, if the socket is non-blocking. Otherwise a
//! chunk is read and written. The reads are operations on the file's own endpoint with the tag of
//! the request. So every driver executes them as other reads of files, without blocking the thread
//! on a disk.

use super::{Command, Engine, FileStep};
use crate::driver::{Full, Outcome};
use crate::slab::Key;

impl Engine {
    /// Submits the next operation that takes bytes of the file.
    pub(super) fn start_file_part(&mut self, id: Key) -> Result<(), Full> {
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        let Some(object) = self.members.get(request.handle).map(|member| member.object) else {
            // The handle ended while the request waited.
            self.requests.remove(id);
            return Ok(());
        };
        let Command::SendFile(part) = &mut request.command else { return Ok(()) };
        match self.members.get(part.file).filter(|file| file.leaving.is_none()) {
            Some(file) => {
                let source = self.driver.raw_descriptor(file.object);
                match source.filter(|_| part.step() == FileStep::Direct) {
                    Some(source) => self.driver.submit(id.tag(), object, part.direct(source))?,
                    None => {
                        part.read_next();
                        self.driver.submit(id.tag(), file.object, part.operation())?;
                    }
                }
            }
            None => self.ready.push_back(Outcome::plain(id.tag(), -libc::EBADF)),
        }
        if let Some(member) = self.members.get_mut(request.handle) {
            member.note_begun(request);
        }
        let (key, lane) = (request.handle, request.lane);
        self.counters.operations += 1;
        self.extend_deadline(key, lane);
        Ok(())
    }

    /// Interprets the result of an operation that takes bytes of the file, for the request.
    pub(super) fn judge_file_part(&mut self, id: Key, result: i32) -> i32 {
        let Some(request) = self.requests.get_mut(id) else { return result };
        let Command::SendFile(part) = &mut request.command else { return result };
        let leaving =
            self.members.get_mut(request.handle).and_then(|member| member.leaving.as_deref_mut());
        let aborted = leaving.as_ref().is_some_and(|leaving| leaving.is_aborted());
        let again = if aborted { -libc::ECANCELED } else { -libc::EINTR };
        match (part.step(), result) {
            (FileStep::Direct, 1..) => {
                if let Some(leaving) = leaving {
                    leaving.note_progress(self.config.close_timeout);
                }
                request.progress += result as usize;
                if part.skip(result as usize) { again } else { 0 }
            }
            (FileStep::Direct, result) if result == -libc::EOPNOTSUPP => {
                part.read_next();
                again
            }
            (FileStep::Read, result) => self.judge_file_read(id, result, aborted),
            (_, result) => result,
        }
    }

    /// Interprets the result of reading a chunk. The end of the file is an error. A read for which
    /// the kernel has no thread is executed here.
    fn judge_file_read(&mut self, id: Key, result: i32, aborted: bool) -> i32 {
        let Some(request) = self.requests.get_mut(id) else { return result };
        let Command::SendFile(part) = &mut request.command else { return result };
        match result {
            // The bytes that were read are not sent.
            _ if request.cancelled || aborted => {
                if result < 0 {
                    result
                } else {
                    -libc::ECANCELED
                }
            }
            0 => -libc::ENODATA,
            result if result == -libc::ECANCELED => {
                match self.members.get(part.file).filter(|file| file.leaving.is_none()) {
                    Some(file) => match self.driver.run_inline(file.object, &part.operation()) {
                        0 => -libc::ENODATA,
                        read => read,
                    },
                    None => -libc::EBADF,
                }
            }
            result => result,
        }
    }
}
