//! Implements `fable ls`.

use clap::Args;
use fable::protocol::NameEntry;

use super::table::{Align, table};
use super::{CommandError, Connection, json, print};
use crate::text::plain;

/// List the names of this host and of its zone
///
/// Columns: NAME is the full name; FLOWS the number of its flows with an end on this host; HOST,
/// PID, USER and PROGRAM identify its process; EPOCH is the number of its registration in the
/// zone, or - if only its host knows it. STATE is gone if the process has ended but its name is
/// still registered.
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

fn state(entry: &NameEntry) -> &'static str {
    let uid = entry.owner.uid;
    match entry.is_gone {
        true => "gone",
        false if uid != 0 && entry.service_owner.is_some_and(|owner| owner != uid) => "unserved",
        false => "-",
    }
}

fn listing(names: &[NameEntry]) -> String {
    let heads = [
        ("NAME", Align::Left),
        ("FLOWS", Align::Right),
        ("HOST", Align::Left),
        ("PID", Align::Right),
        ("USER", Align::Right),
        ("OWNER", Align::Right),
        ("EPOCH", Align::Right),
        ("STATE", Align::Left),
        ("PROGRAM", Align::Left),
    ];
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let row = |entry: &NameEntry| {
        vec![
            entry.name.to_string(),
            entry.flows.to_string(),
            plain(&entry.owner.host, 64),
            entry.owner.pid.to_string(),
            entry.owner.uid.to_string(),
            number(entry.service_owner.map(i64::from)),
            number(entry.epoch),
            state(entry).to_owned(),
            plain(&entry.owner.program, 64),
        ]
    };
    table(&heads, &names.iter().map(row).collect::<Vec<_>>())
}
