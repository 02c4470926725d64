//! Compiles the part that is written in C, if its feature is enabled.

fn main() {
    #[cfg(feature = "libuv")]
    libuv();
}

#[cfg(feature = "libuv")]
fn libuv() {
    println!("cargo:rerun-if-changed=src/libuv.c");
    let compiled = cc::Build::new()
        .file("src/libuv.c")
        .warnings_into_errors(true)
        .try_compile("iobench_external_libuv");
    if let Err(error) = compiled {
        println!("cargo:error=cannot compile src/libuv.c: {error}");
        println!("cargo:error=install libuv with its headers (Debian: apt-get install libuv1-dev)");
        std::process::exit(1);
    }
    println!("cargo:rustc-link-lib=uv");
}
