//! The servers' answers and their work per request; shared by all servers.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::exchange::{Service, Work};
use crate::server::shared::Counters;
use crate::sys::cpuclock;

/// Steps of arithmetic between two readings of the clock, a fraction of a microsecond.
const BURN_STEPS: u64 = 200;

/// How the stream is split into requests, and the answer to each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Every read is a request and is sent back.
    Raw,
    /// Requests of `request_bytes`, each of which is sent back when it is complete.
    Echo { request_bytes: usize },
    /// Requests of `request_bytes`, each of which is answered with the same bytes.
    Filler { request_bytes: usize, bytes: &'static [u8] },
}

/// The service of one server process; its threads share it and only read it.
pub(crate) struct Responder {
    reply: Reply,
    work: Work,
    /// Set when the server ends, so that queued requests do not delay the end.
    stopping: AtomicBool,
}

impl Responder {
    /// Creates the filler once and never frees it, so that no write has to count references to it.
    pub(crate) fn new(service: Service) -> Responder {
        let reply = match service.exchange {
            None => Reply::Raw,
            Some(exchange) if exchange.is_echo() => {
                Reply::Echo { request_bytes: exchange.request_bytes }
            }
            Some(exchange) => Reply::Filler {
                request_bytes: exchange.request_bytes,
                bytes: Box::leak(exchange.filler().into_boxed_slice()),
            },
        };
        Responder { reply, work: service.work, stopping: AtomicBool::new(false) }
    }

    pub(crate) fn reply(&self) -> Reply {
        self.reply
    }

    /// Returns whether each answer needs work, so that answers must not be sent together.
    pub(crate) fn works(&self) -> bool {
        self.work != Work::None
    }

    /// Makes `work` return false from now on.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Does the work for one request; false if the server is ending.
    pub(crate) fn work(&self, counters: &mut Counters) -> bool {
        match self.work {
            Work::None => return true,
            Work::Burn(time) => self.burn(time.as_nanos() as u64),
            Work::Sleep(time) => {
                counters.system_calls += 1;
                thread::sleep(time);
            }
        }
        !self.stopping.load(Ordering::Relaxed)
    }

    /// Computes for a time of the thread's CPU clock, so that time without the CPU does not count.
    /// The calls that read this clock count as computing and not as system calls of the server.
    fn burn(&self, time_ns: u64) {
        let until_ns = cpuclock::thread_ns() + time_ns;
        let mut value = 1_u64;
        while cpuclock::thread_ns() < until_ns && !self.stopping.load(Ordering::Relaxed) {
            for step in 0..BURN_STEPS {
                value = black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn burning_takes_cpu_time_and_sleeping_takes_time() {
        let mut counters = Counters::default();
        let time = Duration::from_millis(3);
        let service = |work| Responder::new(Service { exchange: None, work });
        let before_ns = cpuclock::thread_ns();
        assert!(service(Work::Burn(time)).work(&mut counters));
        assert!(cpuclock::thread_ns() - before_ns >= 3_000_000);
        let begun = std::time::Instant::now();
        assert!(service(Work::Sleep(time)).work(&mut counters));
        assert!(begun.elapsed() >= time);
        assert_eq!(counters.system_calls, 1);
    }

    #[test]
    fn a_server_that_ends_does_not_go_on_burning() {
        let work = Work::Burn(Duration::from_secs(1));
        let responder = Responder::new(Service { exchange: None, work });
        responder.stop();
        let before_ns = cpuclock::thread_ns();
        assert!(!responder.work(&mut Counters::default()));
        assert!(cpuclock::thread_ns() - before_ns < 500_000_000);
    }
}
