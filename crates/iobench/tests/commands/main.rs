//! Tests of the commands that measure nothing: wrong command lines, manual pages, completions,
//! `report` and `diff`, of the start of `serve`, and of
//! outputs that cannot be written.

mod command_line;
mod manual;
mod outputs;
mod report;
mod sample;
mod serve;
mod support;
