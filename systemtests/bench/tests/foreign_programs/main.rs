//! Tests of `iobench` with the programs of others: nginx, memcached, redis, lighttpd, wrk, a
//! browser.

mod apps;
mod browser;
mod http;
mod manual;
mod programs;
mod report_page;
#[path = "../../../../crates/iobench/tests/commands/sample.rs"]
mod sample;
mod url;
