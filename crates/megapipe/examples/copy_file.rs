//! Copies a file with several chunks in flight at once.
//!
//! `cargo run -p megapipe --example copy_file FROM TO`

use megapipe::{Buffer, Channel, Event};
use std::fs::File;

const CHUNK_BYTES: u64 = 256 * 1024;
const CHUNKS_AT_ONCE: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: copy_file FROM TO".into());
    };
    let (from, to) = (File::open(from)?, File::create(to)?);
    let bytes = from.metadata()?.len();

    let mut channel = Channel::new()?;
    let (source, target) = (channel.register(from, ())?, channel.register(to, ())?);
    let mut offsets = (0..bytes).step_by(CHUNK_BYTES as usize);
    for offset in offsets.by_ref().take(CHUNKS_AT_ONCE) {
        channel.read_at(source, Vec::with_capacity(CHUNK_BYTES as usize), offset)?;
    }
    let mut copied = 0;
    while copied < bytes {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::ReadAt(Ok(count), chunk, offset) if count > 0 => {
                channel.write_at(target, chunk, offset)?;
            }
            Event::WriteAt(Ok(count), Buffer::Owned(mut chunk), offset) => {
                copied += count as u64;
                let end = (offset + CHUNK_BYTES).min(bytes);
                chunk.clear();
                if offset + (count as u64) < end {
                    return Err("the file became shorter while it was copied".into());
                }
                if let Some(offset) = offsets.next() {
                    channel.read_at(source, chunk, offset)?;
                }
            }
            failed => return Err(format!("cannot copy: {failed:?}").into()),
        }
    }
    channel.sync(target)?;
    while channel.outstanding() > 0 {
        if let Some(done) = channel.dispatch(None)?
            && let Event::Sync(Err(error)) = done.event
        {
            return Err(error.into());
        }
    }
    println!("{copied} bytes copied");
    Ok(())
}
