//! Serves reports on a UNIX socket, in its own thread.

use super::{
    ABSTRACT_PREFIX, ANSWER_TIME, QUESTION_BYTES, Report, TIME_LIMIT, is_trusted, peer_user,
};
use crate::config::Config;
use crate::engine::{Alarm, Board};
use crate::sandbox;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The reason why reports cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatError {
    /// The socket cannot be made.
    #[error(
        "cannot listen on the statistics socket {name}: {source}; set stat.socket to a path in a \
         directory that is writable, or stat.enabled to false"
    )]
    Socket {
        /// Its path or name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread for statistics: {0}; raise `ulimit -u`")]
    Thread(#[source] io::Error),
    /// The thread would keep all capabilities.
    #[error(
        "cannot drop capabilities of the thread for statistics: {0}; permit capset(2) in the \
         sandbox around the program, or set stat.enabled to false"
    )]
    Capabilities(#[source] io::Error),
}

/// The running thread; dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub(crate) struct Server {
    thread: Option<JoinHandle<()>>,
    stop: Arc<(Alarm, AtomicBool)>,
    path: Option<PathBuf>,
}

/// Clients at a time; the oldest one leaves for a further one.
const CLIENTS_MAX: usize = 64;

type Engines = Vec<(u16, Arc<Board>, Arc<Alarm>)>;

impl Server {
    /// Starts to serve: at the configured path, or without one at an abstract name of the process.
    pub(crate) fn start(config: &Config, engines: Engines) -> Result<Server, StatError> {
        let (path, has_filter) = (config.stat.socket.as_deref(), config.engine.seccomp);
        let (listener, name) = listen(path)?;
        let failed = |source| StatError::Socket { name: name.clone(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new((Alarm::new().map_err(failed)?, AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let (restricted, is_restricted) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("mtcp-stat".to_owned())
            .spawn(move || {
                let dropped = sandbox::drop_capabilities();
                let is_dropped = dropped.is_ok();
                let entered = if has_filter { sandbox::enter() } else { Ok(()) };
                // The receiver waits for it.
                let _ = restricted.send(dropped);
                if !is_dropped {
                    return;
                }
                match entered {
                    Ok(()) => serve(&listener, &engines, &stopped),
                    Err(error) => tracing::error!(%error, "no statistics are served"),
                }
            })
            .map_err(StatError::Thread)?;
        // The caller may restrict the process next, and then the thread could no longer drop its
        // capabilities. Without a message it has panicked.
        let dropped = is_restricted.recv().unwrap_or(Ok(()));
        let server = Server { thread: Some(thread), stop, path: path.map(Path::to_owned) };
        dropped.map(|()| server).map_err(StatError::Capabilities)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.1.store(true, Ordering::Release);
        self.stop.0.force();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has printed its message.
            let _ = thread.join();
        }
        if let Some(path) = &self.path {
            // Another process may have removed it before.
            let _ = fs::remove_file(path);
        }
    }
}

fn listen(path: Option<&Path>) -> Result<(UnixListener, String), StatError> {
    let Some(path) = path else { return listen_at_abstract_name() };
    // A socket without a listener is left from a process that was killed.
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

/// Listens at the abstract name of this process or, if another process has bound it, at one with a
/// random suffix, which no other user can know before: the start must not depend on other users.
fn listen_at_abstract_name() -> Result<(UnixListener, String), StatError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let usual = format!("{ABSTRACT_PREFIX}{}/{number}", std::process::id());
    let bind = |name: &str| {
        SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address))
    };
    let mut name = usual.clone();
    loop {
        match bind(&name) {
            Ok(listener) => return Ok((listener, format!("@{name}"))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && name == usual => {
                let suffix = sys::random::bytes()
                    .map(u64::from_ne_bytes)
                    .map_err(|source| StatError::Socket { name: format!("@{usual}"), source })?;
                name = format!("{usual}-{suffix:016x}");
                tracing::warn!(%usual, %name, "another process has the name for statistics");
            }
            Err(source) => return Err(StatError::Socket { name: format!("@{name}"), source }),
        }
    }
}

fn serve(listener: &UnixListener, engines: &Engines, stop: &(Alarm, AtomicBool)) {
    let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let mut clients: Vec<Client> = Vec::new();
    while !stop.1.load(Ordering::Acquire) {
        let mut entries = vec![
            entry(listener.as_raw_fd(), libc::POLLIN),
            entry(stop.0.descriptor(), libc::POLLIN),
        ];
        entries.extend(clients.iter().map(|it| entry(it.stream.as_raw_fd(), it.awaited())));
        let next = clients.iter().map(|client| client.until).min();
        let wait = next.map_or(-1, |until| {
            let wait = until.saturating_duration_since(Instant::now()).as_millis() + 1;
            i32::try_from(wait).unwrap_or(i32::MAX)
        });
        // SAFETY: the pointer is to so many valid entries.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, wait) };
        if let Ok((stream, _)) = listener.accept() {
            if clients.len() == CLIENTS_MAX {
                clients.remove(0);
            }
            clients.extend(Client::new(stream).ok());
        }
        // A client with an invalid request, or one that is gone, gets no answer.
        let goes_on = |client: &mut Client| {
            Instant::now() < client.until && client.proceed(engines).unwrap_or(false)
        };
        clients.retain_mut(goes_on);
    }
}

/// A client, for which no other one waits.
struct Client {
    stream: UnixStream,
    question: Vec<u8>,
    /// And how much of it was written.
    answer: Option<(Vec<u8>, usize)>,
    /// When it has taken too long to ask, or to read.
    until: Instant,
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        let refusal = &b"{\"error\":\"only its own user and root may ask\"}\n"[..];
        let answer = (!is_trusted(peer_user(&stream)?)).then(|| (refusal.to_owned(), 0));
        Ok(Client { stream, question: Vec::new(), answer, until: Instant::now() + TIME_LIMIT })
    }

    /// The events of poll(2) for which it waits.
    fn awaited(&self) -> libc::c_short {
        if self.answer.is_some() { libc::POLLOUT } else { libc::POLLIN }
    }

    /// Reads and writes as far as that is possible now; returns whether there is more to do.
    fn proceed(&mut self, engines: &Engines) -> io::Result<bool> {
        if self.answer.is_none() {
            let Some(()) = would_block(self.read_question())? else { return Ok(true) };
            self.answer = Some((answer_to(&self.question, engines)?, 0));
            self.until = Instant::now() + TIME_LIMIT;
        }
        let (answer, written) = self.answer.get_or_insert_default();
        while *written < answer.len() {
            let result = self.stream.write(&answer[*written..]);
            let Some(count) = would_block(result)? else { return Ok(true) };
            *written += count;
        }
        Ok(false)
    }

    /// Reads up to the end of the line, of the stream, or of the longest question.
    fn read_question(&mut self) -> io::Result<()> {
        let mut room = [0; QUESTION_BYTES];
        while self.question.len() < QUESTION_BYTES && !self.question.contains(&b'\n') {
            match self.stream.read(&mut room[self.question.len()..])? {
                0 => break,
                count => {
                    let at = self.question.len();
                    self.question.extend_from_slice(&room[at..at + count]);
                }
            }
        }
        Ok(())
    }
}

/// Returns `None` if a call would have to wait.
fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

fn answer_to(question: &[u8], engines: &Engines) -> io::Result<Vec<u8>> {
    let connections = match question.trim_ascii() {
        b"counters" => false,
        b"connections" => true,
        _ => return Ok(b"{\"error\":\"ask for counters or connections\"}\n".to_vec()),
    };
    let mut answer = serde_json::to_vec(&report(engines, connections))?;
    answer.push(b'\n');
    Ok(answer)
}

fn report(engines: &Engines, connections: bool) -> Report {
    for (_, board, alarm) in engines {
        board.ask(connections);
        alarm.call();
    }
    let end = Instant::now() + ANSWER_TIME;
    let program = fs::read("/proc/self/comm").unwrap_or_default();
    let program = String::from_utf8_lossy(&program);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stat::ask;
    use std::time::Duration;

    /// As long as it takes: a busy machine may run the test only after the silent ones' time.
    #[test]
    fn askers_that_say_nothing_hold_up_no_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("stat");
        let mut config = Config::default();
        config.stat.socket = Some(path.clone());
        let _server = Server::start(&config, Vec::new()).expect("a server");
        let name = path.to_str().expect("a name");
        let is_answered_meanwhile = || {
            let connect = || UnixStream::connect(&path).expect("it listens");
            let (nothing, mut half) = (connect(), connect());
            half.write_all(b"coun").expect("it is connected");
            assert_eq!(ask(name, false).expect("a report").process, std::process::id());
            let is_open = |mut silent: UnixStream| {
                silent.set_nonblocking(true).expect("a socket");
                let read = silent.read(&mut [0]);
                read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            };
            is_open(nothing) && is_open(half)
        };
        assert!(testkit::eventually(Duration::from_secs(60), is_answered_meanwhile));
    }

    #[test]
    fn a_question_is_short_and_known() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("stat");
        let mut config = Config::default();
        config.stat.socket = Some(path.clone());
        let _server = Server::start(&config, Vec::new()).expect("a server");
        for question in [&b"nonsense\n"[..], &[b'x'; QUESTION_BYTES], b"\n"] {
            let mut client = UnixStream::connect(&path).expect("it listens");
            client.write_all(question).expect("it is connected");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            assert!(answer.contains("ask for counters or connections"), "{answer}");
        }
    }
}
