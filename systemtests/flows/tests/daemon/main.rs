//! Tests of the daemon, with processes of one host.

mod commands;
mod death;
mod examples;
mod flows;
mod hostile;
mod library;
mod names;
mod restart;
mod sandbox;
