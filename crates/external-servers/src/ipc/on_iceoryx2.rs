//! iceoryx2: a publish-subscribe service for each direction, both sides polling. All files of the
//! library are in a directory of this measurement, which is removed at the end.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use iceoryx2::config::Config;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::{BackpressureAction, BackpressureInfo};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::PortFactory as _;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory;
use ipcload::{CpuPair, End, Error, Invitation, Load, Result, TIME_LIMIT, is_stopping};

/// Memory for messages in flight; the same as the default of a `fable` ring.
const BUFFER_BYTES: usize = 1 << 20;
/// Allowed numbers of messages in flight.
const BUFFER_MESSAGES: std::ops::RangeInclusive<usize> = 2..=1_024;
/// Polls of the subscriber between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 128;
/// Directory of POSIX shared memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// The service of each direction, by its publishing end: that of the first end, that of the second.
const SERVICES: [&str; 2] = ["iobench/first", "iobench/second"];

type Service = ipc::Service;

/// One end. Fields are dropped in this order.
pub(super) struct IceoryxEnd {
    publisher: Publisher<Service, [u8], ()>,
    subscriber: Subscriber<Service, [u8], ()>,
    outgoing: PortFactory<Service, [u8], ()>,
    _incoming: PortFactory<Service, [u8], ()>,
    _node: Node<Service>,
    _traces: Traces,
    is_connected: bool,
    shares_cpu: bool,
}

/// Creates the first end.
pub(super) fn create(load: &Load) -> Result<(IceoryxEnd, Invitation)> {
    let name = format!("iobench-external-{}", std::process::id());
    let directory = std::env::temp_dir().join(&name);
    fs::create_dir(&directory).map_err(Error::transport)?;
    let traces = Traces { name: name.clone(), directory, parent: None };
    let end = IceoryxEnd::open(load, traces, 0)?;
    Ok((end, Invitation { join: name, ..Invitation::default() }))
}

/// Creates the second end.
pub(super) fn join(load: &Load, name: &str) -> Result<IceoryxEnd> {
    let parent = Some(std::os::unix::process::parent_id());
    let directory = std::env::temp_dir().join(name);
    IceoryxEnd::open(load, Traces { name: name.to_owned(), directory, parent }, 1)
}

impl IceoryxEnd {
    fn open(load: &Load, traces: Traces, side: usize) -> Result<IceoryxEnd> {
        set_log_level(LogLevel::Fatal);
        let config = traces.config()?;
        let node = NodeBuilder::new()
            .config(&config)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .create::<Service>()
            .map_err(Error::transport)?;
        let outgoing = service(&node, SERVICES[side], load.bytes())?;
        let incoming = service(&node, SERVICES[1 - side], load.bytes())?;
        let publisher = outgoing
            .publisher_builder()
            .initial_max_slice_len(load.bytes())
            .set_backpressure_handler(wait_for_room)
            .create()
            .map_err(Error::transport)?;
        let subscriber = incoming.subscriber_builder().create().map_err(Error::transport)?;
        let CpuPair([first, second]) = load.cpus;
        Ok(IceoryxEnd {
            publisher,
            subscriber,
            outgoing,
            _incoming: incoming,
            _node: node,
            _traces: traces,
            is_connected: false,
            shares_cpu: first == second,
        })
    }

    /// Pauses between two polls, so that a reader on the same CPU can run.
    fn pause(&self) {
        if self.shares_cpu {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

fn service(
    node: &Node<Service>,
    name: &str,
    bytes: usize,
) -> Result<PortFactory<Service, [u8], ()>> {
    let (least, most) = (*BUFFER_MESSAGES.start(), *BUFFER_MESSAGES.end());
    let name = ServiceName::new(name).map_err(Error::transport)?;
    node.service_builder(&name)
        .publish_subscribe::<[u8]>()
        .max_publishers(1)
        .max_subscribers(1)
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size((BUFFER_BYTES / bytes).clamp(least, most))
        .open_or_create()
        .map_err(Error::transport)
}

/// Waits until there is room: messages must not be dropped.
fn wait_for_room(info: &BackpressureInfo) -> BackpressureAction {
    if is_stopping() {
        return BackpressureAction::DiscardDataAndFail;
    }
    // A reader on the same CPU could not make room otherwise.
    if info.retries % u64::from(LOOKS_PER_CLOCK) == u64::from(LOOKS_PER_CLOCK) - 1 {
        std::thread::yield_now();
    }
    BackpressureAction::Retry
}

impl End for IceoryxEnd {
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> Result<bool> {
        // A message that is published before the peer has subscribed is lost.
        if !self.is_connected {
            self.is_connected = self.outgoing.dynamic_config().number_of_subscribers() > 0;
            if !self.is_connected {
                std::thread::sleep(TIME_LIMIT / 4);
                return Ok(false);
            }
        }
        let mut sample = self.publisher.loan_slice_uninit(bytes).map_err(Error::transport)?;
        let payload = sample.payload_mut();
        // SAFETY: the memory consists of zero pages of the kernel at first, so all of it is
        // initialised; `fill` writes every byte of it as well.
        let sample = unsafe {
            fill(std::slice::from_raw_parts_mut(payload.as_mut_ptr().cast(), payload.len()));
            sample.assume_init()
        };
        match sample.send() {
            // No receiver: the subscriber is listed, but its connection does not exist yet.
            Ok(receivers) => Ok(receivers > 0),
            Err(error) => Err(Error::transport(error)),
        }
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn receive(&mut self, look: impl FnOnce(&[u8])) -> Result<bool> {
        let mut since = None;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if let Some(sample) = self.subscriber.receive().map_err(Error::transport)? {
                    look(sample.payload());
                    return Ok(true);
                }
                self.pause();
            }
            if since.get_or_insert_with(Instant::now).elapsed() > TIME_LIMIT {
                return Ok(false);
            }
        }
    }
}

/// Removes the files that the library leaves when a process is killed, and its directories.
struct Traces {
    name: String,
    directory: PathBuf,
    /// The id of the first process, or `None` in that process. The first process removes everything
    /// when both have ended; the second does so if the first has ended.
    parent: Option<u32>,
}

impl Traces {
    fn config(&self) -> Result<Config> {
        let mut config = Config::default();
        let path = self.directory.to_string_lossy();
        let path = Path::new(path.as_bytes()).map_err(Error::transport)?;
        config.global.set_root_path(&path);
        let prefix = format!("{}-", self.name);
        config.global.prefix = FileName::new(prefix.as_bytes()).map_err(Error::transport)?;
        Ok(config)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        let is_orphan = |parent| parent != std::os::unix::process::parent_id();
        if !self.parent.is_none_or(is_orphan) {
            return;
        }
        let prefix = format!("{}-", self.name);
        let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
        for entry in
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        {
            let _ = fs::remove_file(entry.path());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
