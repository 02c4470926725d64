//! Runs scripts that once failed over the user-level stack, and cases of a random seed, each
//! compared with the kernel.

use crate::alone;
use channelfuzz::{Campaign, Drivers, Script, Stacks};
use fuzzkit::{Limit, seed_of_clock};
use std::time::Duration;

/// Time for the generated cases of one run of the test.
const TIME: Duration = Duration::from_secs(10);

/// Scripts that once failed: with a fault of the driver or of the stack below it, or because the
/// fuzzer expected too much.
const MENDED: &[&str] = &[
    // Every channel left two descriptors open: those that wake the stack.
    "seed 1; settings 2 4 1024 2 16384 12 12 1; links tcp",
    // A message could not be received.
    "seed 160152329109935; settings 4 2 1024 4 4096 24 16 1; links tcp; receive-message 0 7 0; \
     peer-write 0 40 0; receive-message 0 20 0; receive-message 0 3000 0; peer-end 0 0 0",
    // A poll from before the connect ended with it, and was not cancelled.
    "seed 242547054526745; settings 8 16 1024 2 16384 12 16 1; links connecting; poll 0 5 1; \
     connect 0 0 0; peer-write 0 9 0; cancel 0 0 0",
    // The same, cancelled or withdrawn while it moves.
    "seed 242547054526745; settings 8 16 1024 2 16384 12 16 0; links connecting; poll 0 5 1; \
     flush 0 0 0; connect 0 0 0; dispatch 0 2 1; cancel 0 0 0; quiesce 0 0 0; poll 0 1 1",
    "seed 242547054526745; settings 8 16 1024 2 16384 12 16 0; links connecting; poll 0 5 1; \
     flush 0 0 0; connect 0 0 0; dispatch 0 2 1; close 0 0 0; quiesce 0 0 0",
    // A write that a reset had ended consumed the error, and the read reported an end.
    "seed 207376275272009; settings 2 16 256 8 4096 64 12 1; links tcp; write 0 194471 0; \
     peer-write 0 147 0; receive 0 1 0; peer-reset 0 0 0",
    // A shutdown of reading discarded the received bytes.
    "seed 185136110685793; settings 32 16 256 4 4096 12 64 1; links tcp; peer-write 0 2942 0; \
     disconnect 0 0 0; read 0 1543 0; read 0 9000 0; read 0 10 0; peer-write 0 7 0; read 0 10 0",
    "seed 185136110685793; settings 32 16 256 4 4096 12 64 1; links tcp; peer-write 0 2942 0; \
     disconnect 0 2 0; peer-write 0 100 0; read 0 9000 0; read 0 9000 0; write 0 10 0",
    // A reset after the peer's end was reported to readers, and not as EPIPE.
    "seed 4162213632031; settings 2 16 300 2 4096 12 12 1; links tcp; peer-end 0 0 0; \
     peer-reset 0 0 0; receive 0 1 0; read 0 10 0",
    "seed 4162213632031; settings 2 16 300 2 4096 12 12 1; links tcp; peer-end 0 0 0; \
     peer-reset 0 0 0; write 0 10 0; write 0 10 0; receive 0 1 0; read 0 10 0",
    // A read from before the connect has no connection, although the connect was reported first.
    "seed 192340431949687; settings 8 16 256 2 2048 12 64 0; links connecting tcp; \
     read 0 10208 0; send-message 2 44 0; connect 0 0 0",
    // The kernel keeps a shutdown from before the connect.
    "seed 134342665865527; settings 1 2 300 8 4096 256 12 1; links connecting; \
     disconnect 0 1 0; connect 0 0 0; write 0 3128 0",
    // Bytes that are followed by more are sent at once, and so refused earlier.
    "seed 273289521313382; settings 8 8 300 4 16384 64 16 1; links tcp; peer-close 0 0 0; \
     write-more 0 517 0; write 0 7 0",
    "seed 140105404119130; settings 32 16 512 8 16384 24 12 1; links tcp; receive 0 1 0; \
     write-more 0 4 1; peer-close 0 0 0",
    // A peek reported a reset and left it there, to be reported again.
    "seed 250242079208168; settings 4 8 300 8 2048 12 64 1; links connecting; connect 0 0 0; \
     peer-reset 0 0 0; peek 0 1831 0; get-option 0 4 0; read 0 10 0",
    // A poll did not report the application's own shutdown.
    "seed 272054822639835; settings 2 2 512 8 16384 256 16 1; links tcp; disconnect 0 0 0; \
     poll 0 8192 0",
    "seed 272054822639835; settings 2 2 512 8 16384 256 16 1; links tcp; poll 0 8192 0; \
     disconnect 0 0 0",
    "seed 272054822639835; settings 2 2 512 8 16384 256 16 1; links tcp; poll 0 8192 1; \
     disconnect 0 2 0",
    // SO_ERROR did not report a reset after the peer's end.
    "seed 38307697176876; settings 1 8 1024 2 16384 64 16 1; links tcp; peer-end 0 0 0; \
     peer-reset 0 0 0; get-option 0 4 2",
    // TCP_INFO reported TIME-WAIT for a connection that the kernel calls closed.
    "seed 121858830070595; settings 4 4 300 2 2048 24 64 1; links tcp; disconnect 0 1 0; \
     get-option 0 5 0; peer-close 0 0 0; get-option 0 5 0",
    // Clients that waited when their listener was closed had an end instead of a reset.
    "seed 75998492153184; settings 2 2 512 8 2048 12 12 1; links tcp-listener tcp-listener; \
     peer-connect 2 0 0; abort 2 0 0; peer-connect 0 0 0; close 0 0 0",
    // A peer accepted the connection of a cancelled connect, and then that of the next one.
    "seed 274992099870028; settings 32 2 300 2 4096 12 12 0; links connecting; connect 0 0 0; \
     peer-drain 0 0 0; cancel 0 0 0; connect 0 0 0; dispatch 0 2 1; peer-read 0 7152 0; \
     dispatch 0 4 0; read 0 11822 0",
    "seed 23770096563688; settings 1 2 256 8 4096 24 16 0; links file outgoing; \
     connect-to 2 0 0; cancel 2 0 0; peer-write 2 26259 0; connect 2 0 0; send-file 2 19224 14012",
    // What the peer reads makes room for more, which a close behind it must not leave unread.
    "seed 227684791398237; settings 4 16 1024 4 4096 12 16 1; links tcp; write 0 154631 0; \
     receive 0 0 0; peer-drain 0 0 0; peer-close 0 0 0",
    // A read and a write were ended by a reset: the write had the error and the read an end.
    "seed 20851561335328; settings 32 8 512 2 16384 12 12 1; links tcp; read-vectored 0 198 2; \
     send-message 0 175740 1; peer-reset 0 0 0",
    // A receive that waits for a buffer does not report the reset.
    "seed 11877055745440; settings 1 8 512 8 16384 64 12 1; links tcp; receive 0 1 0; \
     hold 0 1 0; peer-write 0 114844 0; peer-reset 0 0 0",
    // A shutdown in TIME-WAIT succeeded.
    "seed 113878205902982; settings 32 2 300 8 16384 12 16 1; links tcp; disconnect 0 2 0; \
     peer-end 0 0 0; disconnect 0 0 0; peer-address 0 0 0; write 0 9 0; read 0 9 0; poll 0 1 0",
    "seed 1145756049592; settings 1 8 256 4 4096 24 12 1; links connecting; disconnect 0 0 0; \
     connect 0 0 0; read 0 8 0; peer-write 0 4 0",
    // A repeating receive did not end after a shutdown of reading if it had returned data before.
    "seed 182982578985862; settings 4 4 1024 8 4096 12 16 1; links tcp; disconnect 0 0 0; \
     peer-write 0 17 0; receive 0 1 0",
    // An error that SO_ERROR reported is not reported by a read.
    "seed 144893340452331; settings 2 2 512 2 16384 12 16 0; links tcp; write 0 490 0; \
     peer-close 0 0 0; get-option 0 4 1; read 0 228 0",
    // A refused connect succeeded after SO_ERROR had reported the reason.
    "seed 150505939313957; settings 4 16 1024 2 16384 12 12 0; links outgoing; \
     connect-to 0 1 0; read 0 13243 0; get-option 0 1 1; write 0 136 1; get-option 0 4 0; \
     write 0 8 0",
    // Bytes that were announced to be followed by more were sent at once, and a closed peer reset.
    "seed 27777548848260; settings 8 4 256 4 2048 64 16 1; links tcp; peer-close 0 0 0; \
     peek 0 139 0; write-more 0 10 0; get-option 0 5 0",
    // They were held back after the peer's end had arrived.
    "seed 1; settings 8 4 256 4 2048 64 16 1; links tcp; write-more 0 47 1; peer-close 0 0 0; \
     write-vectored 0 24 2",
];

#[test]
fn the_stack_does_what_the_kernel_does() {
    let _alone = alone();
    let seed = seed_of_clock();
    println!("channelfuzz --driver mtcp --seed {seed} --seconds {}", TIME.as_secs());
    let stacks = Stacks::start().unwrap();
    let mut campaign = Campaign::new(Drivers::Stacks(stacks), true);
    for text in MENDED {
        campaign.run_script(&text.parse::<Script>().unwrap());
    }
    campaign.run_seeds(seed, Limit { time: TIME, cases: u64::MAX, findings: 3 });
    let report = campaign.report();
    for finding in &report.findings {
        let (failure, script) = (&finding.failure, &finding.shrunk);
        println!(
            "{}: {}\n  channelfuzz --driver mtcp --script '{script}'",
            failure.class, failure.text
        );
        finding.log.iter().for_each(|line| println!("    {line}"));
    }
    assert!(report.findings.is_empty(), "{} cases failed", report.findings.len());
    assert!(report.cases > MENDED.len() as u64, "no case was generated within {TIME:?}");
}
