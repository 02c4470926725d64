//! Compiles the target that makes calls of the C library.

fn main() {
    println!("cargo::rerun-if-changed=../../systemtests/channel/tests/capi/c");
    cc::Build::new()
        .file("../../systemtests/channel/tests/capi/c/fuzz.c")
        .include("../capi/include")
        .define("LLVMFuzzerTestOneInput", "fuzz_handles")
        .compile("fuzz_handles");
}
