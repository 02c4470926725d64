//! Sizes of requests and responses, and the server's processing between them: the parameters of
//! section 3.3 of Kawai and Yamaguchi, and the processing time of their section 7.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::parse_duration;

/// Sizes of a request and of its response. If they are equal, the response is an echo; otherwise it
/// is `response_bytes` of filler. The client compares either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exchange {
    /// 1 to 1 MiB.
    pub(crate) request_bytes: usize,
    /// 1 to 1 MiB.
    pub(crate) response_bytes: usize,
}

impl Exchange {
    pub(crate) fn echo(message_bytes: usize) -> Exchange {
        Exchange { request_bytes: message_bytes, response_bytes: message_bytes }
    }

    pub(crate) fn is_echo(&self) -> bool {
        self.request_bytes == self.response_bytes
    }

    /// Returns the workload's name in rows.
    pub(crate) fn workload(&self) -> &'static str {
        if self.is_echo() { "echo" } else { "request-response" }
    }

    /// Returns the response of iobench's own servers if it is not an echo.
    pub(crate) fn filler(&self) -> Vec<u8> {
        ipcload::filler(self.response_bytes)
    }
}

/// The processing of a server before each response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Work {
    /// Nothing.
    #[default]
    None,
    /// Computes for this long, as a CGI program would.
    Burn(Duration),
    /// Sleeps for this long, as a server that waits for a disk does.
    Sleep(Duration),
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Work, String> {
        let longest = Duration::from_secs(1);
        let work = match text.split_once(':') {
            None if text == "none" => return Ok(Work::None),
            Some(("burn", time)) => Work::Burn(parse_duration(time)?),
            Some(("sleep", time)) => Work::Sleep(parse_duration(time)?),
            _ => return Err("write none, burn:TIME or sleep:TIME, such as burn:50us".to_owned()),
        };
        match work {
            Work::Burn(time) | Work::Sleep(time) if time > longest => {
                Err("a server works at most 1s for a request".to_owned())
            }
            work => Ok(work),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::None => formatter.write_str("none"),
            Work::Burn(time) => write!(formatter, "burn:{}us", time.as_nanos() as f64 / 1e3),
            Work::Sleep(time) => write!(formatter, "sleep:{}us", time.as_nanos() as f64 / 1e3),
        }
    }
}

/// How a server responds to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Service {
    /// Without sizes the server sends back every byte as it arrives.
    pub(crate) exchange: Option<Exchange>,
    pub(crate) work: Work,
}

impl Service {
    /// Returns the service that an exchange needs. Echoes have any size, so one service is enough
    /// for all of them.
    pub(crate) fn for_exchange(exchange: Exchange) -> Service {
        Service { exchange: (!exchange.is_echo()).then_some(exchange), ..Service::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_reads_as_it_is_written() {
        for text in ["none", "burn:50us", "sleep:1000us", "burn:0.5us"] {
            assert_eq!(text.parse::<Work>().unwrap().to_string(), text);
        }
        assert_eq!("sleep:1ms".parse(), Ok(Work::Sleep(Duration::from_millis(1))));
        for wrong in ["", "burn", "burn:", "burn:5", "rest:5us", "sleep:2s"] {
            assert!(wrong.parse::<Work>().is_err(), "{wrong}");
        }
    }
}
