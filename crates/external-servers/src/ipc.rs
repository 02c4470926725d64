//! `iobench-external ipc`: runs the ends of `iobench ipc` on other libraries.

#[cfg(feature = "iceoryx2")]
mod on_iceoryx2;
#[cfg(feature = "zeromq")]
mod on_zeromq;

use clap::{Args, ValueEnum};
use ipcload::Load;

#[cfg(not(all(feature = "iceoryx2", feature = "zeromq")))]
use crate::error::Error;
use crate::error::Result;
use crate::workers::print;

/// Options of `ipc`.
#[derive(Debug, Args)]
pub(crate) struct IpcArguments {
    /// Print the libraries that this program was built with, and nothing else
    #[arg(long, exclusive = true)]
    list: bool,

    /// Library that carries the messages
    #[arg(required = true)]
    library: Option<Library>,

    #[command(flatten)]
    load: Option<Load>,
}

/// The library that carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Library {
    /// iceoryx2, publish and subscribe, both sides polling; needs the feature `iceoryx2`
    Iceoryx2,
    /// ZeroMQ over ipc://, PAIR for ping-pong, PUSH and PULL one way; needs the feature `zeromq`
    Zeromq,
}

/// Measures in this process, or joins a process that measures.
pub(crate) fn run(arguments: &IpcArguments) -> Result<()> {
    if arguments.list {
        let built =
            [("iceoryx2", cfg!(feature = "iceoryx2")), ("zeromq", cfg!(feature = "zeromq"))];
        let built = built.iter().filter(|(_, built)| *built);
        return print(&built.map(|(name, _)| format!("{name}\n")).collect::<String>());
    }
    let (Some(library), Some(load)) = (arguments.library, &arguments.load) else { return Ok(()) };
    match (library, load) {
        #[cfg(feature = "iceoryx2")]
        (Library::Iceoryx2, load) => measure(load, on_iceoryx2::create, on_iceoryx2::join),
        #[cfg(feature = "zeromq")]
        (Library::Zeromq, load) => measure(load, on_zeromq::create, on_zeromq::join),
        #[cfg(not(feature = "iceoryx2"))]
        (Library::Iceoryx2, _) => {
            Err(not_built("build with `--features iobench-external/iceoryx2`"))
        }
        #[cfg(not(feature = "zeromq"))]
        (Library::Zeromq, _) => Err(not_built(
            "install libzmq3-dev and build with `--features iobench-external/zeromq`",
        )),
    }
}

#[cfg(any(feature = "iceoryx2", feature = "zeromq"))]
fn measure<E: ipcload::End>(
    load: &Load,
    create: impl FnOnce(&Load) -> ipcload::Result<(E, ipcload::Invitation)>,
    join: impl FnOnce(&Load, &str) -> ipcload::Result<E>,
) -> Result<()> {
    match &load.join {
        None => {
            ipcload::run_measuring_process(load, || create(load));
            Ok(())
        }
        Some(word) => Ok(ipcload::run_partner_process(load, || join(load, word))?),
    }
}

#[cfg(not(all(feature = "iceoryx2", feature = "zeromq")))]
fn not_built(remedy: &'static str) -> Error {
    Error::Setup {
        cause: "this iobench-external was built without that library".to_owned(),
        remedy,
    }
}
