//! The functions of the C library that preload libraries define under their own names.
//!
//! A hook is written once: its name, its signature, and what any library does. Hooks of one kind
//! are a family, a module here. What a library does in its own way is the family's trait, whose
//! functions give `None` for what is not the library's; the hook then calls the next definition
//! ([`crate::real`]). In a library, `preload::transfers!(Library)` defines the hooks of the family
//! `transfers` over the trait that `Library` implements. Nothing is chosen at run time: each hook
//! is compiled for its library, and what a trait's function does is part of it.
//!
//! All arguments are the application's, and have the contract of the C function.

/// Writes the functions of a family, generic over the library, and the macro of the family's name
/// that defines them under their names in a library.
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
                // SAFETY: promised by the caller.
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
                            // SAFETY: the arguments are the application's.
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

/// What the signatures of hooks are made of.
#[doc(hidden)]
pub mod types {
    pub use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
    pub use libc::{
        epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t,
        sockaddr, socklen_t, ssize_t, timespec, timeval,
    };
}
