//! Implements `fable move`, `fable protect` and `fable why`.

use clap::{Args, ValueEnum};
use fable::protocol::{Answer, Operation};

use super::prose::story;
use super::{CommandError, Connection, json, print};
use crate::flows::wall_time_s;

/// Move a flow to another transport, and pin it there
///
/// The command returns when the flow has moved, or prints why it has not. The policy does not move
/// the flow again until it is moved to `auto`. Root, the user who runs the daemon and the users of
/// the two ends may do this.
#[derive(Debug, Args)]
pub struct MoveArguments {
    /// Flow number or a unique prefix of it, such as 3f2a, from `fable top`
    pub flow: String,

    /// Transport, such as mempipe-futex, unix or tcp-nodelay; auto lets the policy choose
    pub transport: String,
}

/// Print the facts about a flow, and the decisions about its transport with their reasons
#[derive(Debug, Args)]
pub struct WhyArguments {
    /// Flow number or a unique prefix of it, such as 3f2a, from `fable top`
    pub flow: String,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Set whether a flow between hosts must use TLS
#[derive(Debug, Args)]
pub struct ProtectArguments {
    /// Flow number or a unique prefix of it, such as 3f2a, from `fable top`
    pub flow: String,

    /// New state: on or off
    pub state: Switch,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// TLS is required between hosts
    On,
    /// The policy chooses
    Off,
}

/// Moves a flow.
///
/// # Errors
/// [`CommandError`].
pub fn move_flow(
    connection: &mut Connection,
    arguments: &MoveArguments,
) -> Result<(), CommandError> {
    let flow = connection.flow(&arguments.flow)?;
    let transport = arguments.transport.clone();
    let answer = connection.ask(Operation::Move { flow, transport })?;
    print_done(&answer)
}

/// Sets whether a flow must be encrypted between hosts.
///
/// # Errors
/// [`CommandError`].
pub fn protect(
    connection: &mut Connection,
    arguments: &ProtectArguments,
) -> Result<(), CommandError> {
    let flow = connection.flow(&arguments.flow)?;
    let protected = arguments.state == Switch::On;
    let answer = connection.ask(Operation::Protect { flow, protected })?;
    print_done(&answer)
}

/// Prints a flow's transport and the decisions about it.
///
/// # Errors
/// [`CommandError`].
pub fn why(connection: &mut Connection, arguments: &WhyArguments) -> Result<(), CommandError> {
    let flow = connection.flow(&arguments.flow)?;
    let answer = connection.ask(Operation::Why { flow })?;
    let text = match &answer {
        answer if arguments.json => format!("{}\n", json(answer)?),
        Answer::Why { flow, decisions } => story(flow, decisions, wall_time_s()),
        _ => return Err(CommandError::Lost("sent an answer to another request".to_owned())),
    };
    print(&text).map(drop)
}

fn print_done(answer: &Answer) -> Result<(), CommandError> {
    match answer {
        Answer::Done { what } => print(&format!("{what}\n")).map(drop),
        _ => Err(CommandError::Lost("sent an answer to another request".to_owned())),
    }
}
