//! Options of `apps`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::measure::{MeasureArgs, and};
use crate::cli::values::parse_connections;
use crate::client::mix::Mix;
use crate::client::sockets::Ending;

const NGINX_EXAMPLES: &str = "\
Examples:
  iobench apps nginx --quick
  iobench apps nginx --mix yahoo --duration 2s --workers 1
  iobench apps nginx --mix fixed:1024 --requests 1,inf --json nginx.json
  iobench apps nginx --module none       the distribution's nginx alone, with and without reuseport

Mixes: specweb has 1,000 files of 30 to 5,670 bytes, 704 on average, and six requests per
connection. yahoo has 2,000 files of 1 byte to 4 MiB, 12.5 KiB on average, with half of the bytes in
files above 60 KiB, and 1 to 1,597 requests per connection, 2.3 on average, 98 % of them ten or
fewer; the trace that it follows goes up to 253 MiB. yahoo/2 halves the sizes. fixed:BYTES has 100
files of that size. All files of a mix are asked for equally often, and every byte of every answer
is checked.";

const MEMCACHED_EXAMPLES: &str = "\
Examples:
  iobench apps memcached --quick
  iobench apps memcached --requests 1,2,4,8,16,32,64,128,inf --threads 1 --json memcached.json
  iobench apps memcached --adapted /usr/bin/memcached      the same program twice

Keys have 64 bytes and values 1 KiB. All keys are stored before anything is measured; a miss is an
error, as is a value that does not belong to its key.";

const REDIS_EXAMPLES: &str = "\
Examples:
  iobench apps redis --quick
  iobench apps redis --requests inf --connections 50 --json redis.json
  MEGAPIPE_DRIVER=epoll iobench apps redis --quick         the adapted one over epoll

Keys have 64 bytes and values 1 KiB. All keys are stored before anything is measured; a miss is an
error, as is a value that does not belong to its key. redis executes commands in one thread, so each
server has one CPU; nothing is written to disk.";

/// Options of `apps`.
#[derive(Debug, Args)]
pub(crate) struct AppsArgs {
    #[command(subcommand)]
    pub(crate) app: AppCommand,
}

/// The program to compare.
#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// Compare nginx with its own event modules and with the event module of MegaPipe.
    Nginx(NginxArgs),
    /// Compare memcached as distributed with memcached patched to use the channel.
    Memcached(MemcachedArgs),
    /// Compare redis as distributed with redis patched to serve clients through the channel.
    Redis(RedisArgs),
}

/// Options that all programs have.
#[derive(Debug, Args)]
#[command(mut_arg("duration", and("[default: 500ms]")))]
#[command(mut_arg("rounds", and("[default: 10]")))]
#[command(mut_arg("quick", and("[within 60 seconds]")))]
pub(crate) struct LoadShape {
    /// Concurrent connections, over all client threads
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_connections)]
    pub(crate) connections: usize,

    /// How clients end a connection after its last request
    #[arg(long, value_enum, default_value = "fin")]
    pub(crate) ending: Ending,

    #[command(flatten)]
    pub(crate) measure: MeasureArgs,
}

/// The value of an on-or-off option of the program under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Switched on
    On,
    /// Switched off
    Off,
}

impl Switch {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Switch::On => "on",
            Switch::Off => "off",
        }
    }
}

/// Options of `apps nginx`.
#[derive(Debug, Args)]
#[command(after_help = NGINX_EXAMPLES)]
pub(crate) struct NginxArgs {
    /// nginx binary, a path
    #[arg(long, value_name = "FILE", default_value = "/usr/sbin/nginx")]
    pub(crate) nginx: PathBuf,

    /// Event module of MegaPipe, a path, or `none` to compare nginx's own variants alone [default:
    /// nginx/ngx_megapipe_module.so in the directory MEGAPIPE_APPS, else in apps/ beside the
    /// directory of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) module: Option<PathBuf>,

    /// Numbers of worker processes, each process on a CPU of its own, a list [default: 1 and the
    /// number of CPUs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) workers: Option<Vec<usize>>,

    /// nginx's directive sendfile
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) sendfile: Switch,

    /// nginx's directive tcp_nopush
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) nopush: Switch,

    /// Directive megapipe_lwsockets: connections as lightweight sockets (on) or as descriptors
    /// (off)
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) lwsockets: Switch,

    /// Let nginx keep files open (open_file_cache), with and without MegaPipe's module
    #[arg(long)]
    pub(crate) open_file_cache: bool,

    /// Mix of requested files: specweb, yahoo, yahoo/2 or fixed:BYTES
    #[arg(long, value_name = "MIX", default_value = "specweb")]
    pub(crate) mix: Mix,

    /// Requests per connection, a list; inf: connections persist [default: the mix's own; for
    /// specweb without --quick 1,6,inf]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_requests)]
    pub(crate) requests: Option<Vec<u32>>,

    /// Baseline of ratios: epoll, epoll-reuseport or megapipe; the ratios of megapipe to both
    /// others are always printed
    #[arg(long, value_name = "NAME", default_value = "epoll")]
    pub(crate) baseline: String,

    /// Former load with wrk, refused until the next release
    #[arg(long, hide = true)]
    pub(crate) wrk: bool,

    #[command(flatten)]
    pub(crate) shape: LoadShape,
}

/// The keys of a cache, and what clients do with them.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Ratio of gets to sets, GETS:SETS
    #[arg(long, value_name = "GETS:SETS", default_value = "9:1", value_parser = parse_ratio)]
    pub(crate) ratio: (u32, u32),

    /// Number of keys
    #[arg(long, value_name = "N", default_value = "100000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: u32,
}

/// Options of `apps memcached`.
#[derive(Debug, Args)]
#[command(after_help = MEMCACHED_EXAMPLES)]
pub(crate) struct MemcachedArgs {
    /// memcached as distributed, a path [default: memcached/stock/memcached in MEGAPIPE_APPS, else
    /// in apps/ beside the directory of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) stock: Option<PathBuf>,

    /// memcached on the channel, a path [default: memcached/megapipe/memcached, likewise]
    #[arg(long, value_name = "FILE")]
    pub(crate) adapted: Option<PathBuf>,

    /// Numbers of worker threads, on as many CPUs, a list [default: 1 and the number of CPUs]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) threads: Option<Vec<usize>>,

    /// Requests per connection, a list; inf: connections persist
    /// [default: 1,8,128,inf; with --quick 1,inf]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_requests)]
    pub(crate) requests: Option<Vec<u32>>,

    #[command(flatten)]
    pub(crate) keys: KeyArgs,

    /// Memory of each server in megabytes; it must be enough for all keys
    #[arg(long, value_name = "MB", default_value = "1024",
          value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pub(crate) memory_mb: u32,

    #[command(flatten)]
    pub(crate) shape: LoadShape,
}

/// Options of `apps redis`.
#[derive(Debug, Args)]
#[command(after_help = REDIS_EXAMPLES)]
pub(crate) struct RedisArgs {
    /// redis-server as distributed, a path [default: redis/stock/src/redis-server in MEGAPIPE_APPS,
    /// else in apps/ beside the directory of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) stock: Option<PathBuf>,

    /// redis-server on the channel, a path [default: redis/megapipe/src/redis-server, likewise]
    #[arg(long, value_name = "FILE")]
    pub(crate) adapted: Option<PathBuf>,

    /// Requests per connection, a list; inf: connections persist
    /// [default: 1,128,inf; with --quick inf]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_requests)]
    pub(crate) requests: Option<Vec<u32>>,

    #[command(flatten)]
    pub(crate) keys: KeyArgs,

    #[command(flatten)]
    pub(crate) shape: LoadShape,
}

fn parse_requests(text: &str) -> Result<u32, String> {
    match text.trim() {
        "inf" => Ok(0),
        text => match text.parse() {
            Ok(count) if (1..=1_000_000).contains(&count) => Ok(count),
            _ => Err("a connection makes 1 to 1000000 requests, or inf".to_owned()),
        },
    }
}

fn parse_ratio(text: &str) -> Result<(u32, u32), String> {
    let parts = text
        .split_once(':')
        .and_then(|(gets, sets)| Some((gets.parse::<u32>().ok()?, sets.parse::<u32>().ok()?)));
    match parts {
        Some((gets, sets)) if (1..=1_000).contains(&(u64::from(gets) + u64::from(sets))) => {
            Ok((gets, sets))
        }
        _ => Err("write GETS:SETS, such as 9:1, with a sum from 1 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counts_or_inf() {
        assert_eq!(parse_requests("inf"), Ok(0));
        assert_eq!(parse_requests("128"), Ok(128));
        for wrong in ["0", "-1", "", "x"] {
            assert!(parse_requests(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ratios_have_two_parts() {
        assert_eq!(parse_ratio("9:1"), Ok((9, 1)));
        assert_eq!(parse_ratio("1:0"), Ok((1, 0)));
        for wrong in ["", "9", "0:0", "999:2", "4294967295:1"] {
            assert!(parse_ratio(wrong).is_err(), "{wrong}");
        }
    }
}
