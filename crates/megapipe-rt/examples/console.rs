//! Answers each line of the standard input, reports SIGHUP, and ends at Ctrl-C or at the end of the
//! input: `cargo run -p megapipe-rt --example console`, then `kill -HUP PID`.

use megapipe_rt::{PipeReader, PipeWriter, Runtime, Signal, TaskGroup, ctrl_c};
use std::io;

fn main() -> io::Result<()> {
    let builder = Runtime::builder().cores(2).signals(&[libc::SIGHUP, libc::SIGINT]);
    builder.build()?.block_on(async {
        let mut tasks = TaskGroup::new();
        tasks.spawn(report_hangups());
        tasks.spawn(answer_lines());
        tasks.spawn(ctrl_c());
        // The first that ends or fails ends the others.
        let first = tasks.next().await.expect("one of three tasks");
        tasks.end().await;
        first?
    })
}

async fn report_hangups() -> io::Result<()> {
    let mut output = PipeWriter::stdout()?;
    let mut signal = Signal::new(&[libc::SIGHUP])?;
    output.write(format!("process {}\n", std::process::id()).into_bytes()).await?;
    loop {
        let info = signal.receive().await?;
        output.write(format!("SIGHUP from process {}\n", info.process).into_bytes()).await?;
    }
}

async fn answer_lines() -> io::Result<()> {
    let (mut input, mut output) = (PipeReader::stdin()?, PipeWriter::stdout()?);
    let mut line_bytes = 0;
    while let Some(bytes) = input.read().await? {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line_bytes += piece.len();
            if piece.ends_with(b"\n") {
                output.write(format!("{line_bytes} bytes\n").into_bytes()).await?;
                line_bytes = 0;
            }
        }
    }
    output.flush().await
}
