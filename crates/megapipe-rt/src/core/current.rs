//! The core whose tasks the calling thread runs.

use super::Core;
use std::cell::RefCell;
use std::rc::Rc;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// Restores the former core when it is dropped.
pub(crate) struct Entered(Option<Rc<Core>>);

/// Makes the core the current one of the calling thread.
pub(crate) fn enter(core: &Rc<Core>) -> Entered {
    Entered(CURRENT.replace(Some(Rc::clone(core))))
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(CURRENT.replace(self.0.take()));
    }
}

/// Calls the closure with the current core; returns `None` outside of a runtime. The closure must
/// not call foreign code.
pub(crate) fn with_current<T>(call: impl FnOnce(&Rc<Core>) -> T) -> Option<T> {
    let called = CURRENT.try_with(|current| current.borrow().as_ref().map(call));
    called.ok().flatten()
}

/// Returns the current core.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub(crate) fn current(caller: &str) -> Rc<Core> {
    match with_current(Rc::clone) {
        Some(core) => core,
        None => panic!(
            "{caller} was called outside of a runtime: call it in Runtime::block_on, or in a task \
             of a runtime"
        ),
    }
}
