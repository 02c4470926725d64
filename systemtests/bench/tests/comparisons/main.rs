//! Tests of the commands of `iobench` that compare: the shape of reports and documents, that byte
//! counts are right, and that no process is left behind. Figures are not judged, so that these
//! tests may run beside others.

mod ceiling;
mod compare;
mod idle;
mod ipc;
mod network;
mod peers;
mod run;
mod veth;
