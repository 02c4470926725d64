//! One connection: an idea a file.

pub(crate) mod congestion;
pub(crate) mod connection;
pub(crate) mod rack;
pub(crate) mod reassembly;
pub(crate) mod rtt;
pub(crate) mod scoreboard;

/// How the sender reacts to loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno (RFC 5681, RFC 6582).
    NewReno,
}

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A SYN was sent.
    SynSent,
    /// A SYN has come and was answered.
    SynReceived,
    /// Data flows.
    Established,
    /// Our FIN was sent, or waits behind data.
    FinWait1,
    /// Our FIN was acknowledged.
    FinWait2,
    /// The peer's FIN has come.
    CloseWait,
    /// Both FINs are under way.
    Closing,
    /// The peer's FIN has come, and ours waits for its acknowledgement.
    LastAck,
    /// Both sides have ended; late segments may come.
    TimeWait,
    /// There is no connection (any more).
    Closed,
}

pub(crate) fn scale_for(_: u32) -> u8 {
    todo!()
}
