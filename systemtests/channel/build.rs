//! Takes the first server out of the repository's README, for the example `first_server`.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const README: &str = "../../README.md";

/// The address in the code, which the example takes from its command line instead.
const ADDRESS: &str = "\"127.0.0.1:7000\"";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={README}");
    let text = fs::read_to_string(README)?;
    let section = text.split("## A first server").nth(1).ok_or("no section \"A first server\"")?;
    let mut blocks = section.split("```rust,no_run\n").filter_map(|rest| rest.split("```").next());
    let code = blocks.find(|block| block.contains(ADDRESS)).ok_or("no code with the address")?;
    let code = code.replacen(ADDRESS, "std::env::args().nth(1).unwrap()", 1);
    fs::write(Path::new(&env::var("OUT_DIR")?).join("first_server.rs"), code)?;
    Ok(())
}
