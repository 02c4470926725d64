//! Under unmodified programs: TCP connections between two of them on one host go through memory.
