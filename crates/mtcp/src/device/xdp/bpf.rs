//! Wraps bpf(2): maps, the program, and the link that attaches it to an interface.

use super::error::{XdpError, failed, lacks_perfmon};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Kinds of maps (linux/bpf.h).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum MapKind {
    Hash = 1,
    XskMap = 17,
}

const COMMAND_MAP_CREATE: libc::c_int = 0;
const COMMAND_MAP_UPDATE: libc::c_int = 2;
const COMMAND_MAP_DELETE: libc::c_int = 3;
const COMMAND_PROGRAM_LOAD: libc::c_int = 5;
const COMMAND_LINK_CREATE: libc::c_int = 28;
const COMMAND_LINK_DETACH: libc::c_int = 34;
/// Allocates the entries of a hash map when they are added, so that a large limit costs nothing.
const MAP_NO_PREALLOCATION: u32 = 1;
const PROGRAM_KIND_XDP: u32 = 6;
const PROGRAM_FLAG_FRAGMENTS: u32 = 1 << 5;
const ATTACH_XDP: u32 = 37;
const LINK_GENERIC: u32 = 1 << 1;
const LINK_NATIVE: u32 = 1 << 2;
const LICENCE: &CStr = c"MIT";
const LOG_BYTES: usize = 64 * 1024;
const REMEDY: &str = "the kernel needs CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS";

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is the part of `union bpf_attr` that belongs to the command. All addresses in it
/// are of live memory with the sizes that the command expects.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the caller guarantees valid attributes; their size is passed too.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Calls bpf(2) as [`bpf`], for commands that return a descriptor.
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_descriptor<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees valid attributes. The kernel returns a new descriptor without
    // another owner, which is close-on-exec.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attributes)? as libc::c_int)) }
}

/// A map from `K` to 32-bit values.
#[derive(Debug)]
pub(super) struct Map<K> {
    descriptor: OwnedFd,
    key: std::marker::PhantomData<fn(K)>,
}

impl<const N: usize> Map<[u8; N]> {
    /// Creates an empty map.
    pub(super) fn new(kind: MapKind, max_entries: u32) -> Result<Self, XdpError> {
        let flags = if matches!(kind, MapKind::Hash) { MAP_NO_PREALLOCATION } else { 0 };
        let mut attributes = MapCreate {
            kind: kind as u32,
            key_bytes: N as u32,
            value_bytes: size_of::<u32>() as u32,
            max_entries,
            flags,
        };
        // SAFETY: these are the attributes of this command, and they contain no address.
        let descriptor = unsafe { bpf_descriptor(COMMAND_MAP_CREATE, &mut attributes) }
            .map_err(failed("create a BPF map", REMEDY))?;
        Ok(Map { descriptor, key: std::marker::PhantomData })
    }

    /// The descriptor by which a program refers to the map.
    pub(super) fn descriptor(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Adds or replaces an entry.
    pub(super) fn set(&self, key: &[u8; N], value: u32) -> io::Result<()> {
        let mut attributes = self.element(key);
        attributes.value = (&raw const value) as u64;
        // SAFETY: key and value live until the end of the call and have the sizes of the map.
        unsafe { bpf(COMMAND_MAP_UPDATE, &mut attributes) }.map(|_| ())
    }

    /// Removes an entry; `ENOENT` if there is none.
    pub(super) fn remove(&self, key: &[u8; N]) -> io::Result<()> {
        // SAFETY: the key lives until the end of the call and has the size of the map's keys.
        unsafe { bpf(COMMAND_MAP_DELETE, &mut self.element(key)) }.map(|_| ())
    }

    fn element(&self, key: &[u8; N]) -> MapElement {
        let map = self.descriptor.as_raw_fd() as u32;
        MapElement { map, padding: 0, key: (&raw const *key) as u64, value: 0, flags: 0 }
    }
}

/// Loads an XDP program. A program that accepts frames in several buffers needs Linux 5.18.
pub(super) fn load_program(
    code: &[[u8; 8]],
    takes_several_buffers: bool,
) -> Result<OwnedFd, XdpError> {
    let flags = if takes_several_buffers { PROGRAM_FLAG_FRAGMENTS } else { 0 };
    match load(code, flags, &mut []) {
        Ok(program) => Ok(program),
        Err(source) if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => {
            if let Some(error) = lacks_perfmon(&source) {
                return Err(error);
            }
            // The verifier writes a log only on request, because that is slower.
            let mut log = vec![0; LOG_BYTES];
            load(code, flags, &mut log).map_err(|source| {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                XdpError::Verifier { source, log: String::from_utf8_lossy(&log[..end]).into() }
            })
        }
        Err(source) => Err(failed("load the XDP program", REMEDY)(source)),
    }
}

fn load(code: &[[u8; 8]], flags: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attributes = ProgramLoad {
        kind: PROGRAM_KIND_XDP,
        instruction_count: code.len() as u32,
        instructions: code.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: log.len() as u32,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags,
        name: *b"megapipe_xdp\0\0\0\0",
        interface: 0,
        attach: ATTACH_XDP,
    };
    // SAFETY: instructions, licence and log live until the end of the call; the sizes are correct.
    unsafe { bpf_descriptor(COMMAND_PROGRAM_LOAD, &mut attributes) }
}

/// Attaches a program to an interface.
///
/// The kernel detaches the program with the last descriptor of the link, so at the latest when the
/// process ends. A child that was forked at the wrong moment may hold the descriptor as well;
/// therefore `drop` detaches explicitly.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// Attaches a program.
    pub(super) fn new(program: &OwnedFd, interface: u32, native: bool) -> io::Result<Link> {
        let mut attributes = LinkCreate {
            program: program.as_raw_fd() as u32,
            interface,
            attach: ATTACH_XDP,
            flags: if native { LINK_NATIVE } else { LINK_GENERIC },
        };
        // SAFETY: these are the attributes of this command, and they contain no address.
        unsafe { bpf_descriptor(COMMAND_LINK_CREATE, &mut attributes) }.map(Link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut link = self.0.as_raw_fd() as u32;
        // The interface may be gone already.
        // SAFETY: the only attribute of this command is a descriptor.
        let _ = unsafe { bpf(COMMAND_LINK_DETACH, &mut link) };
    }
}

/// Runs the program on a frame, as if it had arrived on queue 0 of the loopback device in the
/// calling thread's namespace; returns the program's action.
#[cfg(test)]
pub(super) fn test_run(program: &OwnedFd, frame: &[u8]) -> io::Result<u32> {
    const COMMAND_TEST_RUN: libc::c_int = 10;
    #[repr(C)]
    struct TestRun {
        program: u32,
        verdict: u32,
        input_bytes: u32,
        output_bytes: u32,
        input: u64,
        output: u64,
        repeat: u32,
        duration_ns: u32,
    }
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        verdict: 0,
        input_bytes: frame.len() as u32,
        output_bytes: 0,
        input: frame.as_ptr() as u64,
        output: 0,
        repeat: 1,
        duration_ns: 0,
    };
    // SAFETY: the frame lives until the end of the call; the kernel writes only the attributes.
    unsafe { bpf(COMMAND_TEST_RUN, &mut attributes) }?;
    Ok(attributes.verdict)
}
