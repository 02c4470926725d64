//! Sends one request to `kv_server`: `kv_client get KEY` or `kv_client set KEY VALUE`.
//!
//! The environment variable `FABLE_NAME` names another server than `fable://kv`.

use fable::{Endpoint, Error};

fn main() -> Result<(), Error> {
    let name = std::env::var("FABLE_NAME").unwrap_or("fable://kv".to_owned());
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");

    let flow = Endpoint::anonymous().connect(&name)?;
    let mut request = flow.write(question.len())?;
    request.copy_from_slice(question.as_bytes());
    request.commit()?;
    if let Some(answer) = flow.read()? {
        println!("{}", String::from_utf8_lossy(&answer));
    }
    flow.finish()
}
