//! Where data and tables lie: every one of them bounded, none of them allocating per packet.

pub(crate) mod flow_table;
pub(crate) mod pool;
pub(crate) mod ring;
pub(crate) mod slab;
pub(crate) mod timer_wheel;

pub(crate) use self::flow_table::FlowTable;
pub(crate) use self::pool::BufferPool;
pub(crate) use self::ring::Ring;
pub(crate) use self::slab::Slab;
pub(crate) use self::timer_wheel::TimerWheel;
