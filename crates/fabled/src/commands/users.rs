//! Implements `fable stat`.

use clap::Args;
use fable::protocol::{Usage, UserEntry};

use super::table::{Align, short, table};
use super::{CommandError, Connection, json, print};
use crate::text::plain;

/// Show what each user makes the daemon hold, and what was refused
///
/// Columns: USER is all users together, a user of this host, or all users of another host;
/// CONNECTIONS, NAMES, FLOWS and MEMORY (bytes) are what it holds and how much it may be: for all,
/// the size of the daemon's tables, and for a user its quota. REFUSED is how often a limit, the
/// owner of a service or a reservation forbade something, a process was disconnected because it
/// does not read, or an announcement was not believed; SUPPRESSED how many log lines were not
/// written.
///
/// Other users are shown to root and to the user who runs the daemon.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct StatArguments {
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// Shows what users hold.
///
/// # Errors
/// [`CommandError`].
pub fn stat(connection: &mut Connection, arguments: &StatArguments) -> Result<(), CommandError> {
    let users = connection.users()?;
    let text = if arguments.json { format!("{}\n", json(&users)?) } else { listing(&users) };
    print(&text).map(drop)
}

fn listing(users: &[UserEntry]) -> String {
    let heads = [
        ("USER", Align::Left),
        ("CONNECTIONS", Align::Right),
        ("NAMES", Align::Right),
        ("FLOWS", Align::Right),
        ("MEMORY", Align::Right),
        ("REFUSED", Align::Right),
        ("SUPPRESSED", Align::Right),
    ];
    let exact = |usage: Usage| format!("{}/{}", usage.held, usage.limit);
    let row = |entry: &UserEntry| {
        let Usage { held, limit } = entry.bytes;
        vec![
            plain(&entry.user, 64),
            exact(entry.connections),
            exact(entry.names),
            exact(entry.flows),
            format!("{}/{}", short(held as f64), short(limit as f64)),
            entry.refused.to_string(),
            entry.suppressed.to_string(),
        ]
    };
    table(&heads, &users.iter().map(row).collect::<Vec<_>>())
}
