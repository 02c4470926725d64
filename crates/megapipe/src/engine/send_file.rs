//! Sends a part of a file, one chunk at a time.
//!
//! The reads are operations on the file's own endpoint with the tag of the request. So every driver
//! executes them as other reads of files, without blocking the thread on a disk.

use super::{Command, Engine};
use crate::driver::{Full, Outcome};
use crate::slab::Key;

impl Engine {
    /// Submits the read of the next chunk of the file.
    pub(super) fn start_file_read(&mut self, id: Key) -> Result<(), Full> {
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        if self.members.get(request.handle).is_none() {
            // The handle ended while the request waited.
            self.requests.remove(id);
            return Ok(());
        }
        let Command::SendFile(part) = &mut request.command else { return Ok(()) };
        match self.members.get(part.file).filter(|file| file.leaving.is_none()) {
            Some(file) => self.driver.submit(id.tag(), file.object, part.operation())?,
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

    /// Interprets the result of reading a chunk. The end of the file is an error. A read for which
    /// the kernel has no thread is executed here.
    pub(super) fn judge_file_read(&mut self, id: Key, result: i32) -> i32 {
        let Some(request) = self.requests.get_mut(id) else { return result };
        let Command::SendFile(part) = &mut request.command else { return result };
        let leaving = self.members.get(request.handle).and_then(|member| member.leaving.as_ref());
        let aborted = leaving.is_some_and(|leaving| leaving.is_aborted());
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
