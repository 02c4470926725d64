//! The thread that answers questions.

use super::{ABSTRACT_PREFIX, ANSWER_TIME, PATIENCE, QUESTION_BYTES, Report};
use crate::engine::{Alarm, Board};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatError {
    /// The socket cannot be made.
    #[error("the statistics socket {name}: {source}; set [stat] socket to a path that can be made")]
    Socket {
        /// Its path or name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("the thread for statistics: {0}")]
    Thread(#[source] io::Error),
}

/// The running thread; dropping it ends it and removes the socket.
#[derive(Debug)]
pub(crate) struct Server {
    thread: Option<JoinHandle<()>>,
    stop: Arc<(Alarm, AtomicBool)>,
    path: Option<PathBuf>,
}

type Engines = Vec<(u16, Arc<Board>, Arc<Alarm>)>;

impl Server {
    /// Begins to answer: at the path, or without one at an abstract name of the process.
    pub(crate) fn start(path: Option<&Path>, engines: Engines) -> Result<Server, StatError> {
        let (listener, name) = listen(path)?;
        let failed = |source| StatError::Socket { name: name.clone(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new((Alarm::new().map_err(failed)?, AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("mtcp-stat".to_owned())
            .spawn(move || serve(&listener, &engines, &stopped))
            .map_err(StatError::Thread)?;
        Ok(Server { thread: Some(thread), stop, path: path.map(Path::to_owned) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.1.store(true, Ordering::Release);
        self.stop.0.force();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            // Somebody may have removed it before us.
            let _ = fs::remove_file(path);
        }
    }
}

fn listen(path: Option<&Path>) -> Result<(UnixListener, String), StatError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Some(path) = path else {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{ABSTRACT_PREFIX}{}/{number}", std::process::id());
        let listener = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address));
        let shown = format!("@{name}");
        return match listener {
            Ok(listener) => Ok((listener, shown)),
            Err(source) => Err(StatError::Socket { name: shown, source }),
        };
    };
    // A socket that nobody answers at is left from a process that was killed.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        let _ = fs::remove_file(path);
    }
    let name = path.display().to_string();
    match UnixListener::bind(path) {
        Ok(listener) => Ok((listener, name)),
        Err(source) => Err(StatError::Socket { name, source }),
    }
}

fn serve(listener: &UnixListener, engines: &Engines, stop: &(Alarm, AtomicBool)) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    while !stop.1.load(Ordering::Acquire) {
        let mut entries = [entry(listener.as_raw_fd()), entry(stop.0.descriptor())];
        // SAFETY: two valid entries.
        unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) };
        if let Ok((stream, _)) = listener.accept() {
            // Who does not ask properly, or goes away, gets no answer.
            let _ = answer(stream, engines);
        }
    }
}

fn answer(mut stream: UnixStream, engines: &Engines) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !is_permitted(&stream)? {
        return stream.write_all(b"{\"error\":\"only its own user and root may ask\"}\n");
    }
    let mut question = Vec::new();
    BufReader::new((&stream).take(QUESTION_BYTES)).read_until(b'\n', &mut question)?;
    let connections = match question.trim_ascii() {
        b"counters" => false,
        b"connections" => true,
        _ => return stream.write_all(b"{\"error\":\"ask for counters or connections\"}\n"),
    };
    let mut answer = serde_json::to_vec(&report(engines, connections))?;
    answer.push(b'\n');
    stream.write_all(&answer)
}

fn report(engines: &Engines, connections: bool) -> Report {
    for (_, board, alarm) in engines {
        board.ask(connections);
        alarm.call();
    }
    let end = Instant::now() + ANSWER_TIME;
    let program = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let mut report = Report {
        process: std::process::id(),
        program: program.trim_end().to_owned(),
        cores: Vec::new(),
        silent: Vec::new(),
    };
    for (core, board, _) in engines {
        match board.wait(end) {
            Some(core) => report.cores.push(core),
            None => report.silent.push(*core),
        }
    }
    report
}

/// See SO_PEERCRED in unix(7).
fn is_permitted(stream: &UnixStream) -> io::Result<bool> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure and its length are valid.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        )
    };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: geteuid takes nothing and cannot fail.
    Ok(peer.uid == 0 || peer.uid == unsafe { libc::geteuid() })
}
