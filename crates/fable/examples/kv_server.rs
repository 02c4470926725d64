//! Serves a key-value store under a name, to one client at a time. The requests are `set KEY VALUE`
//! and `get KEY`.
//!
//! Start the name daemon (`fabled`), then `kv_server`, then `kv_client set colour green`.

use std::collections::HashMap;

use fable::{Endpoint, Error, Flow};

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or("fable://kv".to_owned());
    let endpoint = Endpoint::register(&name)?;
    let listener = endpoint.listen()?;
    println!("listening on {}", listener.name());
    let mut store = HashMap::new();
    loop {
        let flow = listener.accept()?;
        if let Err(error) = serve(&flow, &mut store) {
            eprintln!("{}: {error}", flow.peer().program);
        }
    }
}

fn serve(flow: &Flow, store: &mut HashMap<Vec<u8>, Vec<u8>>) -> Result<(), Error> {
    while let Some(request) = flow.read()? {
        let mut words = request.splitn(3, |byte| *byte == b' ');
        let answer = match (words.next(), words.next(), words.next()) {
            (Some(b"set"), Some(key), Some(value)) => {
                store.insert(key.to_vec(), value.to_vec());
                b"stored"
            }
            (Some(b"get"), Some(key), None) => store.get(key).map_or(&b""[..], Vec::as_slice),
            _ => b"what?",
        };
        let mut reply = flow.write(answer.len())?;
        reply.copy_from_slice(answer);
        reply.commit()?;
    }
    Ok(())
}
