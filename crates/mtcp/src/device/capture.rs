//! Writes the frames that pass through a device into a file for tcpdump and similar programs, in
//! the pcap format (draft-ietf-opsawg-pcap) with nanoseconds.
//!
//! Frames that the device will cut, or whose checksum it will complete, are written as the stack
//! made them.

use super::{Capabilities, Device, DeviceCounters, Link, Received, Transmit};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINK_ETHERNET: u32 = 1;
const LINK_RAW_IP: u32 = 101;
const FILE_HEADER_BYTES: u64 = 24;
const RECORD_HEADER_BYTES: usize = 16;
const BUFFER_BYTES: usize = 256 * 1024;

/// The limits of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLimits {
    /// Bytes of each frame that are written.
    pub snap_bytes: u32,
    /// Most bytes of the file; the capture ends when the next frame would not fit.
    pub file_bytes: u64,
}

impl Default for CaptureLimits {
    fn default() -> CaptureLimits {
        CaptureLimits { snap_bytes: 65_535, file_bytes: 1 << 30 }
    }
}

/// The state of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStatus {
    /// Whether it is still running.
    pub running: bool,
    /// Frames that were written.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The errno for which writing failed.
    pub failure: Option<i32>,
}

#[derive(Default)]
struct Shared {
    /// Increases with each command, so that the device takes the lock only if there is a new one.
    orders: AtomicU32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The writer that the device uses from its next turn on, if any.
    next: Option<Writer>,
    status: CaptureStatus,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts and stops a device's capture, from any thread.
#[derive(Clone)]
pub struct CaptureControl {
    shared: Arc<Shared>,
    link: Link,
}

impl CaptureControl {
    /// Captures into a file from the device's next turn on, and replaces a running capture. Only
    /// the user of this process may read the file (mode 600), because it contains all data of the
    /// connections. An earlier capture at the path is overwritten.
    ///
    /// # Errors
    /// The errors of open(2) and write(2): `ELOOP` if the path is a symbolic link. An error without
    /// an errno if the file belongs to another user, has another name (a hard link) or is neither a
    /// regular file nor a character device.
    pub fn start(&self, path: &Path, limits: CaptureLimits) -> io::Result<()> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, create_private(path)?);
        let link = if self.link == Link::Ethernet { LINK_ETHERNET } else { LINK_RAW_IP };
        let version: [u16; 2] = [2, 4];
        file.write_all(&MAGIC_NANOSECONDS.to_ne_bytes())?;
        version.iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
        let rest = [0, 0, limits.snap_bytes, link];
        rest.iter().try_for_each(|number| file.write_all(&number.to_ne_bytes()))?;
        let status =
            CaptureStatus { running: true, bytes: FILE_HEADER_BYTES, ..CaptureStatus::default() };
        self.order(Some(Writer { file, limits, status }), status);
        Ok(())
    }

    /// Ends the capture; the file is complete after the device's next turn.
    pub fn stop(&self) {
        let status = CaptureStatus { running: false, ..self.status() };
        self.order(None, status);
    }

    /// The status of the capture at the end of the device's last turn.
    pub fn status(&self) -> CaptureStatus {
        self.shared.state().status
    }

    fn order(&self, next: Option<Writer>, status: CaptureStatus) {
        let mut state = self.shared.state();
        *state = State { next, status };
        self.shared.orders.fetch_add(1, Ordering::Release);
    }
}

/// Opens an empty file that only its owner may read. Follows no symbolic link, and changes no file
/// of another user: the path may be in a directory where others create files, such as /tmp.
fn create_private(path: &Path) -> io::Result<File> {
    // Without O_TRUNC: the file is emptied after the checks. O_NONBLOCK: a FIFO must not block.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let found = file.metadata()?;
    if found.file_type().is_char_device() {
        return Ok(file);
    }
    sys::output_file::check_own(&found)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(file)
}

struct Writer {
    file: BufWriter<File>,
    limits: CaptureLimits,
    status: CaptureStatus,
}

impl Writer {
    fn write(&mut self, frame: &[u8]) {
        if !self.status.running {
            return;
        }
        let kept = frame.len().min(self.limits.snap_bytes as usize);
        let bytes = (RECORD_HEADER_BYTES + kept) as u64;
        if self.status.bytes + bytes > self.limits.file_bytes {
            self.status.running = false;
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut header = [0; RECORD_HEADER_BYTES];
        let numbers = [now.as_secs() as u32, now.subsec_nanos(), kept as u32, frame.len() as u32];
        for (to, number) in header.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        let written =
            self.file.write_all(&header).and_then(|()| self.file.write_all(&frame[..kept]));
        self.note(written);
        self.status.frames += 1;
        self.status.bytes += bytes;
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.status.running = false;
            self.status.failure = error.raw_os_error();
        }
    }
}

/// A device with a capture; see [`CaptureControl`].
pub struct CaptureDevice {
    inner: Box<dyn Device>,
    shared: Arc<Shared>,
    /// The number of commands that were processed.
    orders: u32,
    writer: Option<Writer>,
    room_bytes: Option<usize>,
}

impl CaptureDevice {
    /// Wraps a device; nothing is captured before [`CaptureControl::start`].
    pub fn new(inner: Box<dyn Device>) -> (CaptureDevice, CaptureControl) {
        let shared = Arc::new(Shared::default());
        let control = CaptureControl { shared: shared.clone(), link: inner.capabilities().link };
        (CaptureDevice { inner, shared, orders: 0, writer: None, room_bytes: None }, control)
    }

    /// Executes new commands; costs one load if there is none.
    #[inline]
    fn process_commands(&mut self) {
        let orders = self.shared.orders.load(Ordering::Acquire);
        if orders != self.orders {
            self.orders = orders;
            // Dropping the old writer completes its file.
            self.writer = self.shared.state().next.take();
        }
    }

    /// Flushes the file, so that it can be read while the capture continues.
    fn publish(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let written = writer.file.flush();
        writer.note(written);
        let mut state = self.shared.state();
        // A newer command has a status of its own.
        if self.shared.orders.load(Ordering::Relaxed) == self.orders {
            state.status = writer.status;
        }
    }
}

impl Device for CaptureDevice {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.inner.hardware_address()
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(&[u8], Received),
    ) -> io::Result<usize> {
        self.process_commands();
        let Some(writer) = &mut self.writer else { return self.inner.receive(limit, take) };
        let frames = self.inner.receive(limit, &mut |frame, received| {
            writer.write(frame);
            take(frame, received);
        });
        self.publish();
        frames
    }

    fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.room_bytes = None;
        let room = self.inner.room(bytes)?;
        self.room_bytes = Some(bytes);
        Some(room)
    }

    fn commit(&mut self, frame: Transmit) {
        // The device returns the same room again, with the frame in it.
        if let Some(writer) = &mut self.writer
            && let Some(bytes) = self.room_bytes.take()
            && let Some(written) = self.inner.room(bytes).and_then(|room| room.get(..frame.bytes))
        {
            writer.write(written);
        }
        self.inner.commit(frame);
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.process_commands();
        self.publish();
        self.inner.flush()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.inner.prepare_to_sleep()
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::{MemoryDevice, MemoryOptions};
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    fn send(device: &mut dyn Device, frame: &[u8]) {
        device.room(frame.len()).unwrap().copy_from_slice(frame);
        device.commit(Transmit { bytes: frame.len(), ..Transmit::default() });
        device.flush().unwrap();
    }

    /// Parses a capture file: the captured bytes and the lengths of the frames.
    fn read(path: &Path) -> (u32, Vec<(Vec<u8>, u32)>) {
        let bytes = fs::read(path).unwrap();
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(number(0), MAGIC_NANOSECONDS);
        let mut frames = Vec::new();
        let mut at = 24;
        while at < bytes.len() {
            assert!(number(at) > 1_500_000_000 && number(at + 4) < 1_000_000_000);
            let kept = number(at + 8) as usize;
            frames.push((bytes[at + 16..at + 16 + kept].to_vec(), number(at + 12)));
            at += 16 + kept;
        }
        (number(20), frames)
    }

    #[test]
    fn a_capture_is_switched_on_and_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("frames.pcap");
        let (left, mut right) = MemoryDevice::pair(MemoryOptions::default()).unwrap();
        let (mut device, control) = CaptureDevice::new(Box::new(left));
        send(&mut device, &[1; 30]);
        control.start(&path, CaptureLimits { snap_bytes: 20, ..Default::default() }).unwrap();
        device.flush().unwrap();
        send(&mut device, &[2; 30]);
        send(&mut right, &[3; 10]);
        let mut came = Vec::new();
        device.receive(9, &mut |frame, _| came.push(frame.to_vec())).unwrap();
        assert_eq!(came, [[3; 10]]);
        assert_eq!(control.status().frames, 2);
        control.stop();
        send(&mut right, &[4; 10]);
        device.receive(9, &mut |_, _| ()).unwrap();
        assert!(!control.status().running);
        let expected = vec![(vec![2; 20], 30), (vec![3; 10], 10)];
        assert_eq!(read(&path), (LINK_RAW_IP, expected));
        let mut sent = Vec::new();
        right.receive(9, &mut |frame, _| sent.push(frame.to_vec())).unwrap();
        assert_eq!(sent, [[1; 30], [2; 30]], "capturing changes nothing");
    }

    /// Starts a capture at a path, and returns its error.
    fn start(path: &Path) -> io::Result<()> {
        let (device, _other) = MemoryDevice::pair(MemoryOptions::default()).unwrap();
        CaptureDevice::new(Box::new(device)).1.start(path, CaptureLimits::default())
    }

    #[test]
    fn only_the_user_of_the_process_can_read_a_capture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("frames.pcap");
        for before in [None, Some("an earlier capture that anyone may read")] {
            if let Some(text) = before {
                fs::write(&path, text).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            }
            start(&path).unwrap();
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.mode() & 0o7777, found.len()), (0o600, FILE_HEADER_BYTES));
        }
    }

    #[test]
    fn a_capture_overwrites_no_file_behind_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, path) = (directory.path().join("victim"), directory.path().join("a.pcap"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert_eq!(start(&path).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        fs::remove_file(&path).unwrap();
        fs::hard_link(&victim, &path).unwrap();
        assert!(start(&path).unwrap_err().to_string().contains("hard link"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn a_capture_takes_no_file_of_another_user() {
        if !testkit::is_root() {
            let reason = "needs root to give a file to another user";
            return testkit::skip("a_capture_takes_no_file_of_another_user", reason);
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("frames.pcap");
        fs::write(&path, "planted").unwrap();
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        assert!(start(&path).unwrap_err().to_string().contains("belongs to user 12345"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "planted");
    }

    #[test]
    fn a_file_is_bounded_and_a_full_disk_ends_the_capture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("frames.pcap");
        let options = MemoryOptions { link: Link::Ethernet, ..MemoryOptions::default() };
        let (left, mut right) = MemoryDevice::pair(options).unwrap();
        let (mut device, control) = CaptureDevice::new(Box::new(left));
        let limits = CaptureLimits { file_bytes: 24 + 3 * 80, ..CaptureLimits::default() };
        control.start(&path, limits).unwrap();
        for _ in 0..10 {
            device.flush().unwrap();
            send(&mut device, &[9; 64]);
        }
        let status = control.status();
        assert_eq!((status.running, status.frames, status.bytes), (false, 3, 24 + 240));
        assert_eq!(read(&path), (LINK_ETHERNET, vec![(vec![9; 64], 64); 3]));
        control.start(Path::new("/dev/full"), CaptureLimits::default()).unwrap();
        device.flush().unwrap();
        send(&mut device, &[9; 64]);
        assert_eq!(control.status().failure, Some(libc::ENOSPC));
        assert_eq!(right.receive(99, &mut |_, _| ()).unwrap(), 11, "the frames went on");
    }
}
