//! Converts strings, structs and timeouts between C and Rust.

use crate::failure::Failure;
use libc::c_char;
use std::ffi::CStr;
use std::ptr;
use std::time::Duration;

/// The largest struct that a caller may pass to be filled.
const STRUCT_BYTES_MAX: usize = 1 << 16;

/// Converts C's time-out; a negative one is without limit.
pub(crate) fn duration_of(timeout_ms: libc::c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// Returns the string that C points to.
///
/// # Safety
///
/// `text` must be null or point to a string that stays for as long as the result is used.
pub(crate) unsafe fn str_from_c<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the caller guarantees a valid string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::invalid("the text is not UTF-8: encode names and paths in UTF-8"))
}

/// Copies a string into an array for C, cut at a character if it does not fit.
pub(crate) fn fit<const ROOM: usize>(str_from_c: &str) -> [c_char; ROOM] {
    let ends = str_from_c.char_indices().map(|(start, letter)| start + letter.len_utf8());
    let end = ends.take_while(|end| *end < ROOM).last().unwrap_or(0);
    let mut room = [0; ROOM];
    for (to, from) in room.iter_mut().zip(str_from_c[..end].bytes()) {
        *to = from as c_char;
    }
    room
}

/// Copies a struct of which the caller's version has `bytes` bytes: fields that this library does
/// not have are set to 0, fields that the caller does not have are left out.
///
/// # Safety
///
/// `target` must be null or point to that many writable bytes.
pub(crate) unsafe fn copy_sized<T: Copy>(
    value: &T,
    target: *mut T,
    bytes: usize,
) -> Result<(), Failure> {
    if target.is_null() {
        return Err(Failure::NULL);
    }
    if bytes > STRUCT_BYTES_MAX {
        return Err(Failure::invalid("bytes must be the size of the struct: pass sizeof *options"));
    }
    // SAFETY: the caller guarantees room for `bytes` bytes, and no more than the value has are
    // copied.
    unsafe {
        ptr::write_bytes(target.cast::<u8>(), 0, bytes);
        let known = bytes.min(size_of::<T>());
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), target.cast::<u8>(), known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_at_a_character_and_end_with_a_zero() {
        let bytes = |text: [c_char; 4]| text.map(|byte| byte as u8);
        assert_eq!(bytes(fit("ab")), *b"ab\0\0");
        assert_eq!(bytes(fit("abcdef")), *b"abc\0");
        assert_eq!(bytes(fit("abä")), *b"ab\0\0");
    }
}
