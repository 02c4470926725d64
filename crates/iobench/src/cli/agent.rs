//! Options of `agent`.

use std::net::IpAddr;

use clap::Args;

use crate::cli::values::parse_ip;

const AGENT_EXAMPLES: &str = "\
Example, with one process on each of six hosts:
  mpirun -N 1 --bind-to none --host node0,node1,node2,node3,node4,node5 iobench agent --check

Rank 0 is the one that serves in `iobench run FILE --mpi`, the others load it. The offset tells how
much later a clock is than rank 0's; the bound is half the shortest round trip. 1 MiB is sent
between rank 0 and every host and compared, and all start at an agreed time.

Exit status: 0 if the hosts can work together, 1 if something is wrong, which is then said.";

/// Options of `agent`.
#[derive(Debug, Args)]
#[command(after_help = AGENT_EXAMPLES)]
pub(crate) struct AgentArgs {
    /// Check that the hosts can work together, and how their clocks differ
    #[arg(long, required = true)]
    pub(crate) check: bool,

    /// Address at which the other ranks reach rank 0 [default: the first that all of them reach]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_ip)]
    pub(crate) mpi_address: Option<IpAddr>,
}
