//! Driving a context that several threads share behind a lock: publishes commands to the engine's
//! thread, takes its events, and says whether sleeping threads must be woken.

use super::Context;

impl Context {
    /// Shows an engine with a thread of its own what was asked for since the last turn: data, ends
    /// and resets leave now. Costs next to nothing if there is nothing to show.
    pub fn publish(&mut self) {
        self.port.publish();
    }

    /// Takes what an engine with a thread of its own has told, without a system call if that is
    /// nothing. In the mode `complete` only [`Context::turn`] brings news.
    pub fn look(&mut self) {
        if self.port.look() {
            self.news = true;
            self.take_events();
        }
    }

    /// Whether events were taken since the last time, by whatever call: some may be for another
    /// thread.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// For threads that sleep after [`Context::prepare_to_sleep`]: whether a call since has
    /// ended what that prepared, so that they would not be woken.
    pub fn sleepers_are_disturbed(&self) -> bool {
        self.port.is_disturbed()
    }
}
