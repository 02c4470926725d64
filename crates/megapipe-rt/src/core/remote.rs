//! What other threads know of a core.

use super::{Core, with_current};
use crate::inbox::{Inbox, Sent};
use crate::record::LastPolled;
use crate::task::{Schedule, TaskKey};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A call on a core's thread.
type Call = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// A message to a core.
pub(crate) enum Message {
    /// Puts a task into the queue.
    Wake(TaskKey),
    /// Calls the closure on the core's thread.
    Run(Call),
}

/// Sends messages to a core, from any thread.
pub(crate) struct Remote {
    /// The core's number, unique in the process.
    pub(crate) id: u64,
    pub(crate) inbox: Inbox<Message>,
    pub(crate) last_polled: LastPolled,
    waker: megapipe::Waker,
}

impl fmt::Debug for Remote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    pub(crate) fn new(waker: megapipe::Waker) -> Arc<Remote> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Remote { id, inbox: Inbox::new(), last_polled: LastPolled::default(), waker })
    }

    /// Sends a message, and wakes the core if it sleeps. Returns false, and drops the message, if
    /// the core has ended.
    pub(crate) fn send(&self, message: Message) -> bool {
        match self.inbox.send(message) {
            Ok(Sent::Wake) => self.waker.wake(),
            Ok(Sent::Seen) => {}
            Err(_) => return false,
        }
        true
    }

    /// Calls the closure on the core's thread.
    pub(crate) fn run(&self, call: impl FnOnce(&Rc<Core>) + Send + 'static) -> bool {
        self.send(Message::Run(Box::new(call)))
    }
}

impl Schedule for Remote {
    /// On the core's own thread this takes no lock.
    fn schedule(&self, key: TaskKey) {
        let here = with_current(|core| {
            let here = std::ptr::eq(&*core.remote, self);
            if here {
                core.push_ready(key);
            }
            here
        });
        if here != Some(true) {
            self.send(Message::Wake(key));
        }
    }
}
