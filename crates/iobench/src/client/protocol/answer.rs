//! Parses an answer that arrives in pieces: a head up to its terminator, then a body that is known
//! in advance.

use crate::client::protocol::{Complaint, Fed, Intake, compare};

/// Longest head that is accepted; no server under test sends a longer one.
const MOST_HEAD_BYTES: usize = 8 * 1024;
/// Bytes of a wrong answer that are shown.
const MOST_SHOWN_BYTES: usize = 80;

/// The progress of an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// The part of an incomplete head that has arrived.
    head: Vec<u8>,
    /// Bytes of the body that have arrived, once the head is complete.
    body: Option<u64>,
}

impl Answer {
    /// Prepares for the next answer; keeps the allocated memory.
    pub(crate) fn reset(&mut self) {
        self.head.clear();
        self.body = None;
    }

    /// Receives everything that has arrived: no request follows before the answer is complete.
    pub(super) const INTAKE: Intake = Intake { most_bytes: usize::MAX, is_seen: true };

    pub(crate) fn is_in_body(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the head without its terminator, and how many of `bytes` belong to both; `None`
    /// while it is incomplete, in which case all bytes are taken.
    pub(crate) fn head<'a>(
        &'a mut self,
        bytes: &'a [u8],
        terminator: &[u8],
    ) -> Result<Option<(&'a [u8], usize)>, Complaint> {
        let before = self.head.len();
        if before == 0
            && let Some(at) = find(bytes, terminator)
        {
            return Ok(Some((&bytes[..at], at + terminator.len())));
        }
        let room = MOST_HEAD_BYTES + 1 - before;
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        match find(&self.head, terminator) {
            Some(at) => Ok(Some((&self.head[..at], at + terminator.len() - before))),
            None if self.head.len() > MOST_HEAD_BYTES => {
                Err(Complaint(format!("has a head without an end: {}", shown(&self.head))))
            }
            None => Ok(None),
        }
    }

    /// Ends the head and begins the body.
    pub(crate) fn begin_body(&mut self) {
        self.head.clear();
        self.body = Some(0);
    }

    /// Compares a piece of the body with the expected bytes, which `expected` returns piece by
    /// piece from a position on.
    pub(crate) fn body<'e>(
        &mut self,
        bytes: &[u8],
        length: u64,
        expected: impl Fn(u64) -> &'e [u8],
    ) -> Result<Fed, Complaint> {
        let mut at = self.body.unwrap_or(0);
        let mut used = 0;
        while at < length && used < bytes.len() {
            let piece = expected(at);
            let left = usize::try_from(length - at).unwrap_or(usize::MAX);
            let count = piece.len().min(bytes.len() - used).min(left);
            compare(&bytes[used..used + count], &piece[..count], at)?;
            used += count;
            at += count as u64;
        }
        self.body = Some(at);
        Ok(Fed { used, complete: at == length })
    }
}

/// Returns the position of `wanted` in `bytes`, if there is one.
pub(super) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let (last, _) = wanted.split_last()?;
    let mut from = wanted.len() - 1;
    // The last byte is a line feed, which is rare, so whole terminators are seldom compared.
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| byte == last) {
        let end = from + at + 1;
        if bytes[..end].ends_with(wanted) {
            return Some(end - wanted.len());
        }
        from = end;
    }
    None
}

/// Returns the first bytes as printable text.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let beginning = &bytes[..bytes.len().min(MOST_SHOWN_BYTES)];
    format!("`{}`", beginning.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminators_are_found_wherever_they_are() {
        assert_eq!(find(b"\r\n\r\n", b"\r\n\r\n"), Some(0));
        assert_eq!(find(b"a\nb\r\n\r\nc", b"\r\n\r\n"), Some(3));
        assert_eq!(find(b"\n\n\r\n\r", b"\r\n\r\n"), None);
        assert_eq!(find(b"", b"\r\n"), None);
        assert_eq!(find(b"x\r\n", b"\r\n"), Some(1));
    }

    #[test]
    fn heads_are_bounded() {
        let mut answer = Answer::default();
        assert_eq!(answer.head(&[b'x'; MOST_HEAD_BYTES], b"\r\n"), Ok(None));
        let complaint = answer.head(b"xx", b"\r\n").unwrap_err();
        assert!(complaint.0.contains("without an end"), "{complaint:?}");
    }
}
