//! Neighbour discovery (RFC 4861).
