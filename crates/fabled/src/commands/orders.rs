//! `fable move`, `fable protect` and `fable why`.

use clap::{Args, ValueEnum};
use fable::protocol::{Answer, Operation};

use super::prose::story;
use super::{CommandError, Connection, json, print};
use crate::flows::wall_time_s;

/// Move a flow to another transport, and keep it there
///
/// The command ends when the flow has moved, or with the reason why it did not. The policy leaves
/// the flow alone until it is moved to `auto`. Root, the user who runs the daemon and the users of
/// the two ends may do this.
#[derive(Debug, Args)]
pub struct MoveArguments {
    /// The flow's number or a unique beginning of it, as in `fable top`
    pub flow: String,

    /// The transport, for example mempipe-spin, unix or tcp-nodelay; auto leaves it to the policy
    pub transport: String,
}

/// Explain a flow's transport: the facts, and the decisions with their reasons
#[derive(Debug, Args)]
pub struct WhyArguments {
    /// The flow's number or a unique beginning of it, as in `fable top`
    pub flow: String,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Say whether a flow must be protected (TLS) when it leaves its host
#[derive(Debug, Args)]
pub struct ProtectArguments {
    /// The flow's number or a unique beginning of it, as in `fable top`
    pub flow: String,

    /// The new state
    pub state: Switch,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It must.
    On,
    /// It need not.
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

/// Protects a flow, or no longer.
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

/// Explains a flow.
///
/// # Errors
/// [`CommandError`].
pub fn why(connection: &mut Connection, arguments: &WhyArguments) -> Result<(), CommandError> {
    let flow = connection.flow(&arguments.flow)?;
    let answer = connection.ask(Operation::Why { flow })?;
    let text = match &answer {
        answer if arguments.json => format!("{}\n", json(answer)?),
        Answer::Why { flow, decisions } => story(flow, decisions, wall_time_s()),
        _ => return Err(CommandError::Lost("answers another question".to_owned())),
    };
    print(&text).map(drop)
}

fn print_done(answer: &Answer) -> Result<(), CommandError> {
    match answer {
        Answer::Done { what } => print(&format!("{what}\n")).map(drop),
        _ => Err(CommandError::Lost("answers another question".to_owned())),
    }
}
