//! Opens connections with a socket that the channel creates itself.

use super::{Command, Engine, Lane, Request};
use crate::address::RawAddress;
use crate::driver::TABLE_FULL;
use crate::error::Error;
use crate::slab::Key;
use crate::source::{Kind, Source};

impl Engine {
    /// Registers a new stream socket of the address's family and submits its connect.
    pub(crate) fn connect_to(&mut self, address: RawAddress) -> Result<Key, Error> {
        self.check_process()?;
        let domain = address.storage.ss_family.into();
        let opened = self.driver.open_socket(domain, libc::SOCK_STREAM);
        let endpoint = opened.map_err(|error| match error.raw_os_error() {
            Some(TABLE_FULL) => Error::system("socket")(self.table_full()),
            _ => Error::system("socket")(error),
        })?;
        let source = Source { endpoint, kind: Some(Kind::Stream), blocked: None, counted: None };
        let key = self.register(source).map_err(|(error, _)| error)?;
        let connect = Request::new(Command::Connect(Box::new(address)), Lane::Outbound);
        if let Err((error, _)) = self.file(key, connect) {
            // The socket has no output to write, and is closed at once.
            drop(self.unregister(key));
            return Err(error);
        }
        Ok(key)
    }
}
