//! Tests of `iobench` that measure, or that make the machine busy: they run alone.

mod disturbed;
