//! Options of `ipc`.

use clap::{Args, ValueEnum};
use ipcload::Load;

use crate::cli::measure::{MeasureArgs, and, one};
use crate::cli::values::parse_message_bytes;

/// The value of `--batch on`.
const USUAL_BATCH: u32 = 32;
/// Largest number of commits in one batch.
const BATCH_MAX: u32 = 65_536;
/// Allowed sizes of a ring; the library rounds up to powers of two.
const RING_BYTES: std::ops::RangeInclusive<u64> = 4_096..=1 << 30;

const EXAMPLES: &str = "\
Examples:
  iobench ipc --quick --json ipc.json
  iobench ipc --transports mempipe-spin,pipe-blocking,pipe --message-bytes 64 --batch off,on,256
  iobench ipc --placement all-pairs --transports mempipe-spin,cacheline --message-bytes 64
  iobench report ipc.json                the heat maps and the bars of it
  iobench diff before.json ipc.json      what has changed between two runs

Two pinned processes exchange numbered messages. The writer writes every byte: the number in the
first eight and in the last eight, and its lowest byte again and again between them. The reader
compares both numbers with the one that is due, and looks at no other byte. In the result file every
transport, size and pair of CPUs has a row of the workload ping-pong, where latency_us is the ROUND
TRIP, one clock reading included, and for every batch one of the workload one-way, where throughput
is messages per second and gigabytes_per_s payload in 10^9 bytes per second from one process to the
other. The client, on client_cpus, pings or reads; the server answers or writes. cpu_both_us is the
CPU of both, user and system. The cache line is the floor: one line that changes its owner.

The rows *-blocking and *-epoll are the kernel's pipes, UNIX sockets and TCP with TCP_NODELAY by
plain calls, as in a short C program: one read and one write for a message where the kernel takes it
whole, no buffer, no batching. -blocking waits in read and write; -epoll waits in epoll_wait, with
non-blocking descriptors and edge-triggered events. All ratios are against the -blocking rows of the
same rounds, without batching. tcp, tcp-nodelay, unix and pipe are fable's transports on the same
paths, which frame messages, batch them, and do not trust the other process. TCP uses the system's
default congestion control. A pipe of a baseline has room for 16 messages, 64 KiB to 1 MiB.

A transport without its form, such as mempipe-spin, stands for both. flow-mempipe-spin-unsafe is a
flow without a daemon on that transport: what buffers, epochs and counters add to it. iceoryx2 and
zeromq are measured by the program iobench-external, beside iobench or on the PATH, where it was
built with them:
cargo build --release -p iobench-external --features iceoryx2,zeromq

A row is marked INVALID when messages were lost, repeated, reordered or corrupt, when an end failed,
or when the machine was too busy for enough undisturbed rounds; the reason stands with it. Such a
row is compared with nothing, and nothing with it.

Exit status: 0 after a measurement, 1 for an error; with --strict 3 if a row is not valid.";

/// Options of `ipc`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg(
    "duration",
    and("[default: 100ms; with --quick as much as lets three rounds fit, at most 50ms]")
))]
#[command(mut_arg("rounds", and("[default: 5; with --quick as many as fit]")))]
#[command(mut_arg("quick", and("[within 60 seconds]")))]
#[command(mut_arg("client_cpus", one("(one: of the process that pings or reads)", "server_cpus")))]
#[command(mut_arg(
    "server_cpus",
    one("(one: of the process that answers or writes)", "client_cpus")
))]
pub(crate) struct IpcArgs {
    /// Transports to measure, separated by commas [default: tcp-blocking, tcp-epoll, tcp,
    /// tcp-nodelay, unix-blocking, unix-epoll, unix, pipe-blocking, pipe-epoll,
    /// vmsplice-coop, shmem-pipe, mempipe-futex, mempipe-spin, cacheline, and iceoryx2 and zeromq
    /// if installed]; flow-NAME is a flow on that transport
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) transports: Vec<String>,

    /// Bytes per message, 1 to 1048576, a list; the cache line always carries 8
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,4096,65536",
          value_parser = parse_message_bytes)]
    pub(crate) message_bytes: Vec<usize>,

    /// CPUs of the two processes, a list [default: all of the machine except all-pairs]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub(crate) placement: Vec<Where>,

    /// Batch size: messages after which the writer notifies the reader, a list of off (1), on (32),
    /// or a number; a ping-pong is never batched
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "off,on",
          value_parser = parse_batch)]
    pub(crate) batch: Vec<u32>,

    /// Bytes of each ring of fable, 4096 to 1073741824
    #[arg(long, value_name = "BYTES", default_value = "1048576",
          value_parser = clap::value_parser!(u64).range(RING_BYTES))]
    pub(crate) ring_bytes: u64,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// On which CPUs two processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Where {
    /// On one CPU, the first that this process may use
    SameCore,
    /// On two CPUs of one socket, on different cores if possible
    SameSocket,
    /// On two sockets
    OtherSocket,
    /// On every pair of CPUs, and both processes on each CPU
    AllPairs,
}

/// Options of the process that measures one transport.
#[derive(Debug, Args)]
pub(crate) struct IpcEndArgs {
    /// The transport or baseline
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: String,

    /// Measure a flow on top of it, without a daemon
    #[arg(long)]
    pub(crate) flow: bool,

    /// Bytes of each ring or shared heap
    #[arg(long, value_name = "BYTES", default_value = "1048576")]
    pub(crate) ring_bytes: u64,

    #[command(flatten)]
    pub(crate) load: Load,
}

fn parse_batch(text: &str) -> Result<u32, String> {
    match text.trim() {
        "off" => Ok(1),
        "on" => Ok(USUAL_BATCH),
        number => match number.parse() {
            Ok(commits) if (1..=BATCH_MAX).contains(&commits) => Ok(commits),
            _ => Err(format!("write off, on, or a number from 1 to {BATCH_MAX}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_words_or_numbers() {
        assert_eq!(
            ["off", "on", "1", "256"].map(|text| parse_batch(text).unwrap()),
            [1, 32, 1, 256]
        );
        for wrong in ["", "0", "yes", "65537", "-1"] {
            assert!(parse_batch(wrong).is_err(), "{wrong}");
        }
    }
}
