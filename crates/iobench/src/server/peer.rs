//! Parses an external server as the user names it: `NAME=COMMAND`.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::exchange::Work;
use crate::server::{self, process::Launch};

const EXAMPLE: &str = "write NAME=COMMAND, such as 'tokio=iobench-external tokio --bind \
                       127.0.0.1:{port} --cpus {cpus}'";
/// Longest name; longer ones would break tables.
const MOST_NAME_BYTES: usize = 40;
const REQUEST_BYTES: &str = "{request_bytes}";
const RESPONSE_BYTES: &str = "{response_bytes}";

/// A name and the words of a command with its placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    name: String,
    words: Vec<String>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Peer, String> {
        let Some((name, command)) = text.split_once('=') else {
            return Err(format!("there is no `=`; {EXAMPLE}"));
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        if name.is_empty() || name.len() > MOST_NAME_BYTES || !name.chars().all(plain) {
            return Err(format!(
                "the name `{name}` is not made of 1 to {MOST_NAME_BYTES} letters, digits, `-`, \
                 `_`, `.` or `+`; {EXAMPLE}"
            ));
        }
        if server::find(name).is_ok() {
            return Err(format!("`{name}` is a server of iobench's own; choose another name"));
        }
        let words = shell_words::split(command)
            .map_err(|_| format!("a quote in the command of `{name}` is not closed; close it"))?;
        if words.is_empty() {
            return Err(format!("the command of `{name}` is empty; {EXAMPLE}"));
        }
        if !words.iter().any(|word| word.contains("{port}")) {
            return Err(format!(
                "the command of `{name}` has no {{port}}; write {{port}} where it takes the port \
                 to listen at"
            ));
        }
        Ok(Peer { name: name.to_owned(), words })
    }
}

impl Peer {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the command with its placeholders.
    pub(crate) fn template(&self) -> String {
        shell_words::join(&self.words)
    }

    /// Returns the command's words with the placeholders filled in.
    pub(crate) fn command(&self, launch: &Launch, port: u16) -> Result<Vec<String>> {
        self.check(launch)?;
        let cpus: Vec<String> = launch.cpus.iter().map(ToString::to_string).collect();
        let (cpus, port, address) = (cpus.join(","), port.to_string(), launch.address.to_string());
        let sizes = launch.service.exchange;
        let size = |bytes: Option<usize>| bytes.unwrap_or(0).to_string();
        let request_bytes = size(sizes.map(|exchange| exchange.request_bytes));
        let response_bytes = size(sizes.map(|exchange| exchange.response_bytes));
        let fill = |word: &String| {
            word.replace("{port}", &port)
                .replace("{cpus}", &cpus)
                .replace("{address}", &address)
                .replace(REQUEST_BYTES, &request_bytes)
                .replace(RESPONSE_BYTES, &response_bytes)
        };
        Ok(self.words.iter().map(fill).collect())
    }

    /// Fails if the launch needs a parameter for which the command has no placeholder.
    fn check(&self, launch: &Launch) -> Result<()> {
        let name = &self.name;
        if launch.service.work != Work::None {
            return Err(Error::setup(
                format!("`{name}` takes no processing time per request"),
                "measure it without added processing time",
            ));
        }
        let takes = |place| self.words.iter().any(|word| word.contains(place));
        let (takes_one, takes_both) = (
            takes(REQUEST_BYTES) || takes(RESPONSE_BYTES),
            takes(REQUEST_BYTES) && takes(RESPONSE_BYTES),
        );
        match launch.service.exchange {
            None if takes_one => Err(Error::setup(
                format!(
                    "the command of `{name}` contains sizes, but here it has to echo messages of \
                     any size"
                ),
                format!("remove {REQUEST_BYTES} and {RESPONSE_BYTES} from its command"),
            )),
            Some(exchange) if !exchange.is_echo() && !takes_both => Err(Error::setup(
                format!(
                    "the command of `{name}` does not contain the sizes of requests and responses"
                ),
                format!("write {REQUEST_BYTES} and {RESPONSE_BYTES} into its command"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::exchange::{Exchange, Service};

    fn refusal(text: &str) -> String {
        text.parse::<Peer>().unwrap_err()
    }

    fn sized(request_bytes: usize, response_bytes: usize) -> Launch {
        let exchange = Some(Exchange { request_bytes, response_bytes });
        let service = Service { exchange, ..Service::default() };
        Launch { service, ..Launch::echo("unused", &[3, 5]) }
    }

    #[test]
    fn commands_are_split_like_a_shell_does_and_then_filled_in() {
        let peer: Peer =
            r#"mine=./server --at={address}:{port} "a b" '{cpus}' {other}"#.parse().unwrap();
        let words = peer.command(&Launch::echo("unused", &[3, 5]), 7_000).unwrap();
        assert_eq!(peer.name(), "mine");
        assert_eq!(words, ["./server", "--at=127.0.0.1:7000", "a b", "3,5", "{other}"]);
    }

    #[test]
    fn mistakes_are_explained() {
        assert!(refusal("server {port}").contains("no `=`"));
        assert!(refusal("=server {port}").contains("the name ``"));
        assert!(refusal("a b=server {port}").contains("the name `a b`"));
        assert!(refusal("epoll=server {port}").contains("iobench's own"));
        assert!(refusal("x=").contains("is empty"));
        assert!(refusal("x=server 'a {port}").contains("not closed"));
        assert!(refusal("x=server").contains("no {port}"));
    }

    #[test]
    fn sizes_have_to_reach_the_server() {
        let plain: Peer = "x=server {port}".parse().unwrap();
        assert!(plain.command(&sized(64, 64), 1).is_ok());
        let message = plain.command(&sized(64, 65), 1).unwrap_err().to_string();
        assert!(message.contains("write {request_bytes}"), "{message}");
        let told: Peer = "x=s {port} {request_bytes} {response_bytes}".parse().unwrap();
        assert_eq!(told.command(&sized(64, 65), 1).unwrap(), ["s", "1", "64", "65"]);
        assert!(told.command(&Launch::echo("unused", &[0]), 1).is_err());
        let mut busy = sized(64, 65);
        busy.service.work = Work::Burn(Duration::from_micros(5));
        assert!(told.command(&busy, 1).is_err());
    }

    proptest! {
        #[test]
        fn no_text_upsets_the_parser(text in ".{0,40}") {
            let _ = text.parse::<Peer>();
        }
    }
}
