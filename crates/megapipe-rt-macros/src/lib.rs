//! The attribute macro of `megapipe-rt`, which exports it by its feature `macros`.

mod expand;

use proc_macro::TokenStream;

/// Makes a function of an `async fn` without parameters, usually `main`, that runs its body in a
/// runtime.
///
/// The calling thread becomes the first core of the runtime and runs the body, as
/// `Runtime::block_on` does. The other cores run what `spawn_on` starts there. When the body has
/// its result, the runtime is dropped and with it all tasks that have not ended. For a server that
/// runs the same on each core, write a `main` without this attribute and call `Runtime::run`.
///
/// Arguments:
/// - `cores = N`: the number of cores, each with a thread. Default: the number of CPUs.
/// - `pinned = false`: the cores are not bound to CPUs. Default: `true`.
///
/// For other settings use `Runtime::builder`.
///
/// ```
/// #[megapipe_rt::main(cores = 2, pinned = false)]
/// async fn main() -> std::io::Result<()> {
///     let there = megapipe_rt::spawn_on(1, || async { megapipe_rt::core_index() });
///     assert_eq!(there.await?, 1);
///     Ok(())
/// }
/// ```
///
/// Anything else is an error of the compiler that says what to do:
///
/// ```compile_fail
/// #[megapipe_rt::main(threads = 4)]
/// async fn main() {}
/// ```
///
/// # Panics
/// The function panics if the runtime cannot be built; the message names cause and remedy.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::main(arguments.into(), function.into()).into()
}
