//! Writes the files that a user names for a command's results.
//!
//! Only a regular file, or a name that does not exist yet, is replaced: the new file is written
//! beside it and renamed. A symbolic link stays, and what it leads to is written. Everything else,
//! such as a FIFO or a device, is opened and written to. `-` is standard output; a path that leads
//! to a descriptor of this process, such as `/dev/stdout` or `/dev/fd/5`, is that descriptor:
//! opened by its path a regular file would be written from its start, over what is there already.
//!
//! A symbolic link that another user made in a directory where others may create files, such as
//! `/tmp`, is refused: it would choose the file. The kernel refuses it as well, in directories with
//! the sticky bit and if `fs.protected_symlinks` is set.

use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// The name of standard output and, for logs, of standard error.
const STANDARD_STREAM: &str = "-";
/// Symbolic links that are followed; the kernel's limit is the same.
const LINKS_MAX: usize = 40;

/// A file for results, which can be written to when they exist.
#[derive(Debug)]
pub struct OutputFile(Place);

#[derive(Debug)]
enum Place {
    /// A descriptor of this process, and its duplicate.
    Descriptor(RawFd, File),
    /// Something that exists and is no regular file.
    Special(PathBuf),
    /// A regular file or a name that does not exist; no symbolic link.
    Regular(PathBuf),
}

impl OutputFile {
    /// Finds what the path leads to and checks that it can be written: a regular file is created
    /// beside it and removed. Changes nothing else.
    ///
    /// # Errors
    /// The path is a directory or another user's link, or a file cannot be created there.
    pub fn prepare(path: &Path) -> io::Result<OutputFile> {
        if path == Path::new(STANDARD_STREAM) {
            return duplicate(libc::STDOUT_FILENO);
        }
        let path = resolve(path)?;
        if let Some(fd) = own_descriptor(&path) {
            return duplicate(fd);
        }
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            // Links of /proc lead to open files, which have no name there that could be replaced.
            Ok(found) if !found.is_file() || path.starts_with("/proc") => {
                Ok(OutputFile(Place::Special(path)))
            }
            _ => {
                drop(Draft::create(&path)?);
                Ok(OutputFile(Place::Regular(path)))
            }
        }
    }

    /// Returns whether standard output is written to, by any name.
    pub fn is_standard_output(&self) -> bool {
        matches!(self.0, Place::Descriptor(libc::STDOUT_FILENO, _))
    }

    /// Returns whether a regular file is made, beside which others can be.
    pub fn is_regular(&self) -> bool {
        matches!(self.0, Place::Regular(_))
    }

    /// Returns whether the path leads to the file that would be written.
    pub fn is(&self, path: &Path) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        let own = match &self.0 {
            Place::Descriptor(_, file) => file.metadata(),
            Place::Special(path) | Place::Regular(path) => fs::metadata(path),
        };
        let both = own.and_then(|own| Ok((identity(own), identity(fs::metadata(path)?))));
        both.is_ok_and(|(own, other)| own == other)
    }

    /// Writes the whole content. A regular file is replaced by it in one step, with the permissions
    /// and the owner that it has. One with several names is written in place, so that all show the
    /// content; where others may create files, its other names keep the former content instead.
    ///
    /// # Errors
    /// Those of the system calls; a regular file with one name is unchanged then.
    pub fn write(self, content: &[u8]) -> io::Result<()> {
        match self.0 {
            Place::Descriptor(_, mut file) => file.write_all(content),
            Place::Special(path) => open(&path)?.write_all(content),
            Place::Regular(path) if has_several_names(&path) => open(&path)?.write_all(content),
            Place::Regular(path) => Draft::create(&path)?.replace(&path, content),
        }
    }

    /// Opens the file for content that comes bit by bit. A regular file is emptied.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn open(self) -> io::Result<File> {
        match self.0 {
            Place::Descriptor(_, file) => Ok(file),
            Place::Special(path) | Place::Regular(path) => open(&path),
        }
    }
}

/// Checks a file to which a program shall append, and creates it. Returns the path by which the
/// program opens it, with `O_NOFOLLOW` unless it starts with `/proc`; `-`, which is standard error,
/// stays.
///
/// # Errors
/// As [`OutputFile::prepare`]; a FIFO without a reader is `ENXIO`.
pub fn prepare_log(path: &Path) -> io::Result<PathBuf> {
    if path == Path::new(STANDARD_STREAM) {
        return Ok(path.to_owned());
    }
    let path = resolve(path)?;
    if let Some(fd) = own_descriptor(&path) {
        // The children of the program have numbers of their own.
        return Ok(PathBuf::from(format!("/proc/self/fd/{fd}")));
    }
    append(&path).map(|_| path)
}

/// Opens a file whose path [`prepare_log`] returned. Waits for no reader of a FIFO.
///
/// # Errors
/// Those of open(2).
pub fn append(path: &Path) -> io::Result<File> {
    let no_follow = if path.starts_with("/proc") { 0 } else { libc::O_NOFOLLOW };
    let flags = no_follow | libc::O_NONBLOCK | libc::O_NOCTTY;
    OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)
}

/// Opens a regular file of this user for reading and writing, or creates it, for what a program
/// keeps beside the files that a user named. Follows no symbolic link, and changes no file that has
/// another owner or another name: the directory may be one where others create files.
///
/// # Errors
/// Those of open(2); the file is none of this user's alone.
pub fn open_own(path: &Path) -> io::Result<File> {
    // O_NONBLOCK: opening a FIFO must not wait.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    check_own(&file.metadata()?)?;
    Ok(file)
}

/// Refuses what is no regular file of this user with one name.
///
/// # Errors
/// The reason, without the name of the file.
pub fn check_own(found: &Metadata) -> io::Result<()> {
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let user = geteuid().as_raw();
    if found.uid() != user {
        let owner = found.uid();
        let text = format!("it belongs to user {owner}, and this program runs as user {user}");
        return Err(io::Error::other(text));
    }
    if found.nlink() != 1 {
        return Err(io::Error::other("it is a hard link to a file with another name"));
    }
    Ok(())
}

/// Returns whether others than the owner may create files in the directory of a resolved path.
fn is_shared_directory(path: &Path) -> bool {
    let found = path.parent().map(fs::metadata);
    found.is_none_or(|found| found.is_ok_and(|found| found.mode() & 0o022 != 0))
}

fn has_several_names(path: &Path) -> bool {
    !is_shared_directory(path) && fs::metadata(path).is_ok_and(|found| found.nlink() > 1)
}

/// Refuses a symbolic link that another user made where others may create files.
fn check_link(link: &Path) -> io::Result<()> {
    let owner = fs::symlink_metadata(link)?.uid();
    let user = geteuid().as_raw();
    if owner == user || owner == 0 || !is_shared_directory(link) {
        return Ok(());
    }
    let text = format!(
        "{} is a link of user {owner} in a directory where others may create files",
        link.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

fn duplicate(fd: RawFd) -> io::Result<OutputFile> {
    // SAFETY: the descriptor is used only for this call, which fails if it is closed.
    let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?.into();
    Ok(OutputFile(Place::Descriptor(fd, file)))
}

/// Returns the path without symbolic links, except those of /proc. The file need not exist.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = fs::canonicalize(parent.unwrap_or(Path::new(".")))?;
        let whole = parent.join(name);
        match fs::read_link(&whole) {
            Ok(target) if !whole.starts_with("/proc") => {
                check_link(&whole)?;
                path = parent.join(target);
            }
            _ => return Ok(whole),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns the number of the descriptor that a resolved path names.
fn own_descriptor(path: &Path) -> Option<RawFd> {
    let own = fs::canonicalize("/proc/self/fd").ok()?;
    let name = path.strip_prefix(own).ok()?;
    name.to_str()?.parse().ok()
}

/// A new file beside another one, which is removed unless it replaces that.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    fn create(target: &Path) -> io::Result<Draft> {
        // A name may be taken: a killed process of the same number, as in a container, left it.
        for attempt in 0_u32.. {
            let mut name = OsString::from(target.file_name().unwrap_or_default());
            name.push(format!(".{}-{attempt}.tmp", std::process::id()));
            let path = target.with_file_name(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return opened.map(|file| Draft { file, path }),
            }
        }
        unreachable!("a directory has fewer files")
    }

    fn replace(mut self, target: &Path, content: &[u8]) -> io::Result<()> {
        if let Ok(found) = fs::metadata(target) {
            // Only root can give a file to its former owner.
            let _ = fchown(&self.file, Some(found.uid()), Some(found.gid()));
            self.file.set_permissions(found.permissions())?;
        }
        self.file.write_all(content)?;
        self.file.sync_all()?;
        fs::rename(&self.path, target)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename the name no longer exists.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::process::{Command, Stdio};

    use super::*;

    fn write(path: &Path, content: &str) -> io::Result<()> {
        OutputFile::prepare(path)?.write(content.as_bytes())
    }

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_regular_file_is_replaced_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let prepared = OutputFile::prepare(&path).unwrap();
        assert_eq!(names(directory.path()), 0, "preparing leaves nothing behind");
        prepared.write(b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut reader = File::open(&path).unwrap();
        write(&path, "new").unwrap();
        let mut before = String::new();
        reader.read_to_string(&mut before).unwrap();
        assert_eq!((before.as_str(), fs::read_to_string(&path).unwrap().as_str()), ("old", "new"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(directory.path()), 1);
        for wrong in [directory.path().to_owned(), directory.path().join("missing/file")] {
            assert!(OutputFile::prepare(&wrong).is_err(), "{}", wrong.display());
        }
    }

    #[test]
    fn what_killed_runs_left_is_in_no_way() {
        let directory = tempfile::tempdir().unwrap();
        let left = format!("file.{}-0.tmp", std::process::id());
        fs::write(directory.path().join(&left), "half").unwrap();
        write(&directory.path().join("file"), "new").unwrap();
        assert_eq!(fs::read_to_string(directory.path().join("file")).unwrap(), "new");
    }

    #[test]
    fn symbolic_links_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "old").unwrap();
        for (target, link) in [("file", "to-file"), ("missing", "dangling"), ("to-file", "twice")] {
            symlink(target, path(link)).unwrap();
            write(&path(link), link).unwrap();
            assert!(path(link).is_symlink(), "{link}");
            assert_eq!(fs::read_to_string(path(link)).unwrap(), link);
        }
        symlink("round", path("round")).unwrap();
        assert_eq!(write(&path("round"), "").unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn a_file_with_two_names_keeps_both_unless_others_could_have_made_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        write(&path("one"), "old").unwrap();
        fs::hard_link(path("one"), path("two")).unwrap();
        assert!(OutputFile::prepare(&path("one")).unwrap().is(&path("two")));
        write(&path("one"), "new").unwrap();
        assert_eq!(fs::read_to_string(path("two")).unwrap(), "new");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        write(&path("one"), "last").unwrap();
        assert_eq!(fs::read_to_string(path("two")).unwrap(), "new");
        assert!(!OutputFile::prepare(&path("one")).unwrap().is(&path("two")));
    }

    #[test]
    fn no_link_of_another_user_in_a_shared_directory_is_followed() {
        if !geteuid().is_root() {
            let test = "no_link_of_another_user_in_a_shared_directory_is_followed";
            return testkit::skip(test, "only root can give a link to another user");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("target", path("link")).unwrap();
        std::os::unix::fs::lchown(path("link"), Some(65_534), None).unwrap();
        prepare_log(&path("link")).unwrap();
        write(&path("link"), "written").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        for error in [write(&path("link"), "new"), prepare_log(&path("link")).map(drop)] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("link of user 65534"), "{error}");
        }
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "written");
        // The owner stays that of the former file.
        std::os::unix::fs::chown(path("target"), Some(65_534), None).unwrap();
        write(&path("target"), "new").unwrap();
        assert_eq!(fs::metadata(path("target")).unwrap().uid(), 65_534);
    }

    #[test]
    fn a_file_that_is_kept_beside_results_is_this_users_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        open_own(&path("own")).unwrap().write_all(b"kept").unwrap();
        assert_eq!(io::read_to_string(open_own(&path("own")).unwrap()).unwrap(), "kept");
        symlink("own", path("link")).unwrap();
        assert_eq!(open_own(&path("link")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        fs::hard_link(path("own"), path("second")).unwrap();
        let error = open_own(&path("second")).unwrap_err().to_string();
        assert!(error.contains("hard link"), "{error}");
        let error = open_own(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_log_waits_for_no_reader_and_follows_no_new_link() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let made = Command::new("mkfifo").arg(path("fifo")).status().unwrap();
        assert!(made.success());
        assert_eq!(prepare_log(&path("fifo")).unwrap_err().raw_os_error(), Some(libc::ENXIO));
        let log = prepare_log(&path("log")).unwrap();
        append(&log).unwrap().write_all(b"one ").unwrap();
        append(&log).unwrap().write_all(b"two").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "one two");
        fs::remove_file(&log).unwrap();
        symlink("other", &log).unwrap();
        assert_eq!(append(&log).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        let own = prepare_log(Path::new("/dev/stderr")).unwrap();
        assert_eq!(own, Path::new("/proc/self/fd/2"));
        assert_eq!(prepare_log(Path::new("-")).unwrap(), Path::new("-"));
    }

    #[test]
    fn devices_and_fifos_are_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        symlink("/dev/null", path("null")).unwrap();
        symlink("/dev/full", path("full")).unwrap();
        write(&path("null"), "new").unwrap();
        let full = write(&path("full"), "new").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let fifo = path("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read_to_string(fifo).unwrap()
        });
        write(&fifo, "new").unwrap();
        assert_eq!(reader.join().unwrap(), "new");
        assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }

    /// A path to a descriptor continues at its position and replaces nothing.
    #[test]
    fn paths_to_descriptors_are_the_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"before ").unwrap();
        let link = directory.path().join("link");
        symlink(format!("/dev/fd/{}", file.as_raw_fd()), &link).unwrap();
        write(&link, "written ").unwrap();
        file.write_all(b"after").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before written after");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    /// The file of another process's descriptor has no name here; it is written in place.
    #[test]
    fn descriptors_of_other_processes_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut holder = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(File::create(&path).unwrap())
            .spawn()
            .unwrap();
        let mut reader = File::open(&path).unwrap();
        write(Path::new(&format!("/proc/{}/fd/1", holder.id())), "new").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(text, "new");
    }

    #[test]
    fn standard_output_has_two_names() {
        for name in ["-", "/dev/stdout"] {
            let prepared = OutputFile::prepare(Path::new(name)).unwrap();
            assert!(prepared.is_standard_output() && !prepared.is_regular(), "{name}");
        }
        let null = OutputFile::prepare(Path::new("/dev/null")).unwrap();
        assert!(!null.is_standard_output() && !null.is_regular());
    }
}
