//! What a client may cost.

use std::time::Duration;

/// Limits of time, memory and connections, for servers that anybody may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the first byte of a request over HTTP/1 to the end of its header, and from the
    /// connection's begin to its first byte. Usually 30 s. `None`: no limit, so that clients which
    /// send nothing, or a header without end, keep their connections.
    pub header: Option<Duration>,
    /// Between an answer and the first byte of the next request (keep-alive). A connection of
    /// HTTP/2 without a stream is told to end (`GOAWAY`), and closed after this time once more if
    /// the client does not react. Usually 75 s, as nginx has it: longer than the 60 s after which
    /// most load balancers close connections that they do not use, because one that uses a
    /// connection while the server closes it reports an error to its client. `None`: no limit, as
    /// with `axum::serve`.
    pub idle: Option<Duration>,
    /// Between two pieces of a request's body for which the service waits, until it answers. Then
    /// the body fails with [`Elapsed`](crate::Elapsed). Usually 60 s. `None`: no limit.
    pub body: Option<Duration>,
    /// How long a client may take nothing while it has something to take: bytes of the connection,
    /// or of the bodies of HTTP/2's streams (window updates). Then the connection is closed; it
    /// may take up to twice the time until that is noticed. Usually 60 s. `None`: no limit.
    pub send: Option<Duration>,
    /// Open connections of one listener, so of each core. Further clients wait in the kernel's
    /// accept queue, except for 128 that were accepted before. Usually 65,536.
    pub connections: usize,
    /// Bytes of bodies of answers that a connection may hold before further requests wait. They
    /// are counted when the service has handed them over, so the requests that were answered
    /// together (with HTTP/2 up to 200) can hold more. Usually 4 MiB.
    pub output: usize,
    /// Bytes of bodies of answers that all connections of a core hold, with the output of all its
    /// streams that the kernel has not taken. If there are more, connections whose clients have
    /// taken nothing for the longest time are closed. Usually 256 MiB.
    pub core_output: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            header: Some(Duration::from_secs(30)),
            idle: Some(Duration::from_secs(75)),
            body: Some(Duration::from_secs(60)),
            send: Some(Duration::from_secs(60)),
            connections: 65_536,
            output: 4 << 20,
            core_output: 256 << 20,
        }
    }
}
