//! Defines hooks: the functions of the C library that preload libraries interpose.
//!
//! A hook is written once: its name, its signature, and what it does in every library. Hooks of one
//! kind are a family, a module here. The family has a trait with the parts that differ between
//! libraries. Its functions return `None` for a descriptor that is not the library's; the hook then
//! calls the real function ([`crate::real`]). In a library, `preload::transfers!(Library)` defines
//! the hooks of the family `transfers` with the trait that `Library` implements. There is no
//! dispatch at run time: each hook is compiled for its library, and the trait's functions can be
//! inlined.
//!
//! All arguments are the application's, and have the contract of the C function.

/// Defines the functions of a family, generic over the library, and the macro with the family's
/// name that defines the hooks in a library.
macro_rules! family {
    ($dollar:tt $family:ident $library:ident: $trait:ident;
     $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty { $($body:tt)* })*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As for the function of the C library.
            #[allow(non_snake_case)]
            #[inline]
            pub unsafe fn $name<$library: $trait>($($argument: $kind),*) -> $result {
                // SAFETY: the caller guarantees this.
                unsafe { $($body)* }
            }
        )*

        #[doc = concat!("Defines the hooks of the family `", stringify!($family), "`.")]
        #[macro_export]
        macro_rules! $family {
            ($dollar library:ty) => {
                const _: () = {
                    #[allow(unused_imports)]
                    use $crate::hooks::types::*;
                    $(
                        #[unsafe(no_mangle)]
                        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                            // SAFETY: the application keeps the contract of the C function.
                            unsafe {
                                $crate::hooks::$family::$name::<$dollar library>($($argument),*)
                            }
                        }
                    )*
                };
            };
        }
    };
}

pub mod descriptors;
pub mod messages;
pub mod options;
pub mod readiness;
mod select;
pub mod sockets;
pub mod system_calls;
pub mod transfers;

/// The types in the signatures of hooks.
#[doc(hidden)]
pub mod types {
    pub use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
    pub use libc::{
        epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t,
        sockaddr, socklen_t, ssize_t, timespec, timeval,
    };
}
