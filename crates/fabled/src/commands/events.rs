//! Implements `fable events`.

use clap::Args;
use fable::protocol::Answer;

use super::{CommandError, Connection, json, print};
use crate::text::plain;

/// Print events as they happen: names, flows, moves and their reasons
///
/// Each line has the time of day (UTC) and the event. Root and the user who runs the daemon see the
/// events of all users' flows.
#[derive(Debug, Args)]
pub struct EventsArguments {
    /// Print a JSON object per event
    #[arg(long)]
    pub json: bool,
}

/// Prints events until the reader or the daemon has gone.
///
/// # Errors
/// [`CommandError`].
pub fn events(
    connection: &mut Connection,
    arguments: &EventsArguments,
) -> Result<(), CommandError> {
    connection.subscribe()?;
    loop {
        let answer = connection.next_answer(None)?;
        let Answer::Event { time_s, what } = &answer else { continue };
        let line = match arguments.json {
            true => format!("{}\n", json(&answer)?),
            false => format!("{} {}\n", time_of_day(*time_s), plain(what, 4000)),
        };
        if !print(&line)? {
            return Ok(());
        }
    }
}

fn time_of_day(time_s: f64) -> String {
    let milliseconds = (time_s.max(0.0) * 1000.0) as u64;
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02}.{rest:03}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_read_off_the_clock() {
        assert_eq!(time_of_day(0.0), "00:00:00.000");
        assert_eq!(time_of_day(86_400.0 * 5.0 + 3_723.25), "01:02:03.250");
    }
}
