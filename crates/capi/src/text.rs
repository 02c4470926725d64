//! Words and structs on their way between C and Rust.

use crate::failure::Failure;
use libc::c_char;
use std::ffi::CStr;
use std::ptr;
use std::time::Duration;

/// The longest struct that a caller may want filled.
const STRUCT_BYTES_MAX: usize = 1 << 16;

/// C's time-out: below 0 for ever.
pub(crate) fn duration_of(timeout_ms: libc::c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// The words that C points to.
///
/// # Safety
///
/// `text` must be null or point to a string that stays for as long as the result is used.
pub(crate) unsafe fn words<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the caller vouches for the string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid("the text is not UTF-8"))
}

/// Words in an array of C's, cut at a character if they do not fit.
pub(crate) fn fit<const ROOM: usize>(words: &str) -> [c_char; ROOM] {
    let ends = words.char_indices().map(|(start, letter)| start + letter.len_utf8());
    let end = ends.take_while(|end| *end < ROOM).last().unwrap_or(0);
    let mut room = [0; ROOM];
    for (to, from) in room.iter_mut().zip(words[..end].bytes()) {
        *to = from as c_char;
    }
    room
}

/// Copies a struct whose size the caller believes to be `bytes`: what this version does not know
/// is set to 0, what the caller does not know is left out.
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
        return Err(Failure::invalid("bytes must be the size of the struct"));
    }
    // SAFETY: the caller has room for `bytes` bytes, and no more than the value has are copied.
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
