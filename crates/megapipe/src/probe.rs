//! What the kernel offers a channel, found by trying.
pub(crate) fn ring_error_advice(error: &std::io::Error) -> (String, &'static str) {
    (error.to_string(), "")
}
