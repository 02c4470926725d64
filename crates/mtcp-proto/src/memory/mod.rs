//! Implements the bounded data structures of a stack, none of which allocates per packet.

pub(crate) mod flow_table;
pub(crate) mod pool;
pub(crate) mod ring;
pub(crate) mod slab;
pub(crate) mod timer_wheel;

pub(crate) use self::flow_table::FlowTable;
pub(crate) use self::pool::{BufferPool, Purpose, SHORT_BLOCK_BYTES, Shortage};
pub(crate) use self::ring::Ring;
pub(crate) use self::slab::Slab;
pub(crate) use self::timer_wheel::TimerWheel;
