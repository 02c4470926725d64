//! `fable ls`.

use clap::Args;
use fable::protocol::NameEntry;

use super::table::{Align, table};
use super::{CommandError, Connection, json, print};
use crate::text::plain;

/// List the names of this host, and of the cluster if it is in one
///
/// Columns: NAME is the full name; FLOWS how many flows to it have an end on this host; HOST where
/// it is; PID, USER and PROGRAM who has it; EPOCH is the number of its registration in the cluster,
/// or - if it is known on its host only. STATE is gone if the process has ended and its name is
/// still there.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct LsArguments {
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// Lists names.
///
/// # Errors
/// [`CommandError`].
pub fn ls(connection: &mut Connection, arguments: &LsArguments) -> Result<(), CommandError> {
    let names = connection.names()?;
    let text = if arguments.json { format!("{}\n", json(&names)?) } else { listing(&names) };
    print(&text).map(drop)
}

fn listing(names: &[NameEntry]) -> String {
    let heads = [
        ("NAME", Align::Left),
        ("FLOWS", Align::Right),
        ("HOST", Align::Left),
        ("PID", Align::Right),
        ("USER", Align::Right),
        ("EPOCH", Align::Right),
        ("STATE", Align::Left),
        ("PROGRAM", Align::Left),
    ];
    let row = |entry: &NameEntry| {
        vec![
            entry.name.to_string(),
            entry.flows.to_string(),
            plain(&entry.owner.host, 64),
            entry.owner.pid.to_string(),
            entry.owner.uid.to_string(),
            entry.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
            (if entry.is_gone { "gone" } else { "-" }).to_owned(),
            plain(&entry.owner.program, 64),
        ]
    };
    table(&heads, &names.iter().map(row).collect::<Vec<_>>())
}
