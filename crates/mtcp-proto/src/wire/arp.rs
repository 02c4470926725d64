//! Address resolution (RFC 826).
