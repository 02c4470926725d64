//! Tests of `fabled` and `fable` that need no cluster: wrong command lines, outputs that take no
//! data, and the pages that describe the programs.

mod command_line;
mod outputs;
mod reference;
