//! Detects programs that a preload library does not support.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The reason why the library would have no effect on a program, or would miss some of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It has no dynamic loader that could load the library.
    Static,
    /// It is a Go program, which calls the kernel directly.
    Go,
    /// It runs with more rights than its user, so the loader ignores LD_PRELOAD.
    SetUserId,
    /// It is for another architecture than the library.
    OtherMachine,
    /// It uses another C library than the one whose functions the library interposes.
    OtherLibc,
    /// It calls io_uring in the kernel directly.
    IoUring,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Obstacle::Static => "is statically linked",
            Obstacle::Go => "is a Go program, which calls the kernel itself",
            Obstacle::SetUserId => {
                "has set-user-ID, set-group-ID or capabilities, with which the loader ignores \
                 LD_PRELOAD"
            }
            Obstacle::OtherMachine => "is for another processor architecture",
            Obstacle::OtherLibc => "uses another C library than glibc",
            Obstacle::IoUring => "calls io_uring directly",
        })
    }
}

/// Returns the remedy for a failed execve(2) of the program that a user named.
pub fn execute_remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "install it, or give its path: the search path is $PATH",
        std::io::ErrorKind::PermissionDenied => "make it executable (chmod +x), or name a program",
        _ => "name a program or script for this machine",
    }
}

/// The largest program that is looked at as a whole.
const PROGRAM_BYTES_MAX: u64 = 1 << 30;
/// How many scripts may name each other as interpreters; the kernel's limit is the same.
const SCRIPTS_MAX: u32 = 4;

/// Finds a program in the search path; a name with a slash is returned as it is.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| {
        file.metadata()
            .is_ok_and(|status| status.is_file() && status.permissions().mode() & 0o111 != 0)
    })
}

/// Returns why the library does not support a program; for a script, its interpreter is examined. A
/// file that cannot be read is no obstacle: executing it reports the error.
pub fn obstacle(program: &Path) -> Option<Obstacle> {
    let mut program = program.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        let status = program.metadata().ok()?;
        let special = status.permissions().mode() & 0o6000 != 0 || has_capabilities(&program);
        let mut content = Vec::new();
        File::open(&program).ok()?.take(PROGRAM_BYTES_MAX).read_to_end(&mut content).ok()?;
        if let Some(interpreter) = interpreter(&content) {
            program = interpreter;
            continue;
        }
        return if special { Some(Obstacle::SetUserId) } else { of_image(&content) };
    }
    None
}

/// Returns the program that a script names in its first line.
fn interpreter(content: &[u8]) -> Option<PathBuf> {
    let line = content.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = words.next()?;
    if first.ends_with(b"/env")
        && let Some(name) = words.find(|word| !word.starts_with(b"-"))
    {
        return find(OsStr::from_bytes(name));
    }
    Some(PathBuf::from(OsStr::from_bytes(first)))
}

fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(program.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability";
    // SAFETY: both strings are C strings, and a null buffer of size 0 requests no value.
    let size = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    size > 0
}

/// An executable image (elf(5)), of 64 bits and this machine's byte order.
struct Image<'a>(&'a [u8]);

/// One segment of an image.
struct Segment<'a> {
    kind: u32,
    flags: u32,
    content: &'a [u8],
}

impl<'a> Image<'a> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn segment(&self, index: usize) -> Option<Segment<'a>> {
        let table = usize::try_from(u64::from_ne_bytes(self.bytes(32)?)).ok()?;
        let size = usize::from(u16::from_ne_bytes(self.bytes(54)?));
        let at = table.checked_add(index.checked_mul(size)?)?;
        let start = usize::try_from(u64::from_ne_bytes(self.bytes(at.checked_add(8)?)?)).ok()?;
        let length = usize::try_from(u64::from_ne_bytes(self.bytes(at.checked_add(32)?)?)).ok()?;
        Some(Segment {
            kind: u32::from_ne_bytes(self.bytes(at)?),
            flags: u32::from_ne_bytes(self.bytes(at.checked_add(4)?)?),
            content: self.0.get(start..start.checked_add(length)?).unwrap_or_default(),
        })
    }

    fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        let count = self.bytes(56).map_or(0, u16::from_ne_bytes);
        (0..usize::from(count)).map_while(|index| self.segment(index))
    }
}

const PT_INTERP: u32 = 3;
const PF_X: u32 = 1;

fn of_image(content: &[u8]) -> Option<Obstacle> {
    if !content.starts_with(b"\x7fELF") {
        return None;
    }
    let machine = u16::from_ne_bytes(Image(content).bytes(18)?);
    let ours = if cfg!(target_arch = "x86_64") { libc::EM_X86_64 } else { libc::EM_AARCH64 };
    if content.get(4) != Some(&2) || machine != ours {
        return Some(Obstacle::OtherMachine);
    }
    let image = Image(content);
    if contains(content, b"\xff Go buildinf:") {
        return Some(Obstacle::Go);
    }
    let Some(loader) = image.segments().find(|segment| segment.kind == PT_INTERP) else {
        return Some(Obstacle::Static);
    };
    if contains(loader.content, b"musl") {
        return Some(Obstacle::OtherLibc);
    }
    let mut code = image.segments().filter(|segment| segment.flags & PF_X != 0);
    code.any(|segment| enters_io_uring(segment.content)).then_some(Obstacle::IoUring)
}

fn contains(content: &[u8], wanted: &[u8]) -> bool {
    content.windows(wanted.len()).any(|window| window == wanted)
}

/// Returns whether machine code loads the number of io_uring_setup(2) and makes a system call right
/// after.
fn enters_io_uring(code: &[u8]) -> bool {
    const LOAD: &[u8] = b"\xb8\xa9\x01\x00\x00";
    const ENTER: &[u8] = b"\x0f\x05";
    const NEAR_BYTES: usize = 24;
    let mut rest = code;
    while let Some(at) = rest.windows(LOAD.len()).position(|window| window == LOAD) {
        rest = &rest[at + LOAD.len()..];
        if contains(&rest[..rest.len().min(NEAR_BYTES)], ENTER) {
            return true;
        }
    }
    false
}
