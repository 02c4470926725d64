//! Runs scripts that once failed, and cases of a random seed, over both drivers.
//!
//! This is one test, because it counts the descriptors of the process.

use channelfuzz::{Campaign, Drivers, Script};
use fuzzkit::{Limit, seed_of_clock};
use std::time::Duration;

/// Number of generated cases of one run of the test.
const CASES: u64 = 150;
/// Time limit of the cases on a busy machine; they usually take a few seconds.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Scripts that once failed: with a fault of the channel, or because the fuzzer expected too much.
const MENDED: &[&str] = &[
    // Reads of a file that waited when they were cancelled were executed nevertheless.
    "seed 138828894441162; settings 1 4 300 2 2048 24 12 0; links file tcp-listener tcp seqpacket; \
     read 0 107 0; read 0 7 0",
    // A read reported an end before the write that a reset had ended reported the reset.
    "seed 94643131085115; settings 2 4 300 4 2048 12 16 0; links tcp; read-vectored 0 11 4; \
     peer-write 0 18 0; read 0 2232 0; write 0 282900 0; peer-reset 0 0 0",
    // A poll of a terminal failed with EINVAL as data arrived.
    "seed 151777283506320; settings 2 2 300 4 16384 24 64 0; links udp tty tty; \
     peer-write 4 18 0; poll 4 1 0",
    // A connection for a later accept came before the end of a cancelled one.
    "seed 118741268957999; settings 32 2 256 8 4096 64 12 0; links tcp-listener; \
     peer-connect 0 0 0; peer-connect 0 0 0; accept 0 2 0; peer-connect 0 0 0; \
     peer-connect 0 0 0; cancel 0 0 0; accept 0 2 1; cancel 0 0 0; peer-connect 0 0 0",
    // A lease that is copied comes back as another buffer.
    "seed 29588128497091; settings 8 2 256 2 2048 64 12 1; links unix pipe-in unix-datagram wake; \
     hold 7 1 0; peer-write 2 2591 0; receive 2 1 0; write-lease 0 0 0",
    // An abort overtakes a close whose writes wait for the peer.
    "seed 11; settings 32 4 256 4 4096 64 64 1; links tcp unix; write 0 9000000 0; close 0 0 0; \
     write 2 9000000 0; close 2 0 0; abort 0 0 0; abort 2 0 0; quiesce 0 0 0",
    // A poll reported POLLRDHUP without a request.
    "seed 17740941960865; settings 2 2 1024 8 4096 256 64 1; links tcp; peer-end 0 0 0; \
     poll 0 1 0",
    // A close cancelled the requests of a duplicate.
    "seed 187604570733948; settings 2 16 256 8 16384 24 12 1; links unix-datagram; \
     receive-from 0 1 0; join 1 0 0; read 1 277 0; close 0 0 0",
    // A message that was longer than the room was cut without an error.
    "seed 128425350974261; settings 8 2 256 2 16384 256 64 1; links seqpacket; \
     peer-write 0 483 0",
    // A socket whose connect had failed was not unconnected.
    "seed 115680048415461; settings 4 16 1024 4 4096 12 12 1; links tcp connecting; \
     connect 2 1 0; disconnect 2 1 0; connect 2 1 0",
    // A write that a reset had cut reported its part and hid the reset.
    "seed 35815562725423; settings 32 4 256 8 2048 12 16 1; links tcp; write 0 117773 0; \
     peer-reset 0 0 0; read 0 16 0",
    // A receive fetched a datagram from another file with the number of a closed one.
    "seed 1; settings 32 4 256 4 4096 64 64 0; links unix-datagram unix-datagram; \
     peer-write 0 20 0; receive-from 0 0 0; flush 0 0 0; close 0 0 0; flush 0 0 0; \
     join 3 0 0; peer-write 2 20 0; quiesce 0 0 0",
    // A write to a full terminal blocked the thread.
    "seed 1; settings 32 4 256 4 4096 64 64 1; links tty; write 0 20000 0; cancel 0 0 0",
    // Of two polls beside a receive, the second began before or after the data was taken.
    "seed 2059972941321; settings 8 2 1024 8 2048 256 12 1; links tty tty unix-datagram file; \
     receive 0 1 0; poll 0 1 0; poll 0 1 0; peer-write 0 12 0",
    // A repeating poll of a hung-up terminal completed without end.
    "seed 71390158712016; settings 32 16 1024 4 4096 24 12 1; links tty; peer-close 0 0 0; \
     poll 0 5 1",
    // The last completion of a cancelled accept was lost.
    "seed 249668494555139; settings 32 2 300 4 2048 12 64 0; links tcp-listener; \
     peer-connect 0 0 0; peer-connect 0 0 0; peer-connect 0 0 0; peer-connect 0 0 0; \
     peer-connect 0 0 0; peer-connect 0 0 0; peer-connect 0 0 0; accept 0 0 0; cancel 0 0 0; \
     poll 0 5 0; peer-connect 0 0 0; join 1 0 0; peer-connect 0 0 0; peer-connect 0 0 0; \
     accept 0 3 1",
    // A closed handle took data from its duplicate.
    "seed 196081163537412; settings 4 4 512 2 2048 12 64 0; links tcp; join 1 0 0; \
     receive 0 1 0; close 0 0 0; peer-write 0 2302 0",
    // Data for a socket that has shut reading down resets the connection.
    "seed 247500805103031; settings 32 8 300 8 2048 12 16 1; links tcp; write 0 2963 0; \
     join 1 0 0; peer-write 0 21450 0; peer-drain 0 0 0; write-vectored 0 44814 4; \
     peer-drain 0 0 0; unregister 1 0 0; disconnect 0 2 0; peer-write 0 274718 0",
    // Two members that share a socket: either may get the message.
    "seed 154078557503803; settings 32 4 256 2 4096 64 16 1; links unix udp; join 3 0 0; \
     receive-from 2 1 0; cancel 2 0 0; receive-from 3 0 0; read 2 1128 0; peer-write 2 58 0; \
     peer-write 2 891 0",
    // A second connection after the first was reset.
    "seed 49969532259487; settings 1 4 512 8 4096 64 16 0; links connecting seqpacket connecting \
     tcp; write 0 215 0; write 4 17 0; poll 4 5 0; poll 4 5 1; write 6 18 0; write 4 12906 0; \
     connect 4 0 0; write 6 18 0; dispatch 4 6 0; connect 4 0 0; peer-reset 4 0 0; \
     write-vectored 4 65553 5",
    // A connection that ended before its connect was reported, and connects that were cancelled.
    "seed 100954484008290; settings 2 4 300 8 16384 24 16 0; links tcp connecting; \
     connect 2 0 0; peer-end 2 0 0; peer-reset 2 0 0; write 2 78537 0",
    "seed 166175753334551; settings 8 16 1024 8 4096 24 12 0; links connecting; connect 0 1 0; \
     cancel 0 0 0; write-vectored 0 65 2; connect 0 0 0",
    "seed 239457832525534; settings 4 4 300 4 2048 12 12 0; links tcp-listener wake connecting; \
     peer-connect 0 0 0; connect 4 0 0; cancel 4 0 0; disconnect 4 0 0; connect 4 0 0",
    // Held leases leave io_uring no buffer for the datagram.
    "seed 137788700624098; settings 4 8 256 4 4096 24 64 1; links tty wake udp; \
     receive-from 4 0 0; peer-write 0 1363 0; receive 0 1 0; hold 2 1 0; peer-write 0 163 0; \
     peer-write 0 1474 0; peer-write 5 372 0; poll 4 1 0",
    // After a failed connect, a read was compared by the end of the stream.
    "seed 262367045726285; settings 4 2 512 8 2048 64 12 1; links connecting; connect 0 1 0; \
     read 0 162 0",
    "seed 91319835891945; settings 32 8 300 4 4096 24 12 1; links timer tcp; disconnect 2 2 0; \
     peer-write 2 10661 0; receive 2 0 0",
    "seed 53982754660444; settings 32 16 512 2 4096 64 12 0; links tcp; receive 0 1 0; \
     peer-write 0 44104 0; receive 0 0 0; disconnect 0 0 0",
    "seed 157187477720283; settings 1 16 512 8 4096 64 16 1; links unix; poll 0 1 0; \
     write 0 20540 0; read 0 195 0; peer-close 0 0 0",
    "seed 14063875062859; settings 32 4 256 4 4096 256 12 1; links file unix-datagram \
     unix-datagram; send-to 4 1155 0; close 4 0 0; peer-write 4 20 0",
    "seed 174043425071611; settings 32 2 300 4 4096 64 64 1; links seqpacket; write 0 152 1; \
     unregister 0 0 0; peer-write 0 40 0; peer-close 0 0 0",
    "seed 67386799153610; settings 4 16 256 2 4096 24 64 0; links wake tcp-listener tcp; \
     peer-write 4 145569 0; write 4 2963 0; peer-close 4 0 0",
    // A segment that is held back is lost when a close with unread data resets the connection.
    "seed 46835876271666; settings 32 16 1024 4 16384 12 64 0; links wake tcp; \
     write-more 2 3 0; disconnect 2 1 0; peer-write 2 14 0",
    // A receive that waits for a buffer meets the reset before the message.
    "seed 106648971651737; settings 4 2 512 2 2048 256 16 1; links seqpacket tty; \
     receive 0 0 0; receive 0 0 0; hold 2 1 0; peer-write 0 236 0; write-more 0 16 0; \
     peer-write 0 37 0; peer-close 0 0 0",
    // A write that waits for room is done with one driver before the peer closes.
    "seed 263212348821071; settings 2 2 300 8 2048 12 16 1; links pipe-in unix; \
     write-vectored 2 56715 2; peer-end 2 0 0; write 2 17910 1; write 2 2238 0; peer-drain 2 0 0; \
     peer-close 2 0 0",
    "seed 221743567630527; settings 2 2 1024 2 2048 256 64 1; links tcp; write 0 13711 0; \
     write-vectored 0 46613 4; close 0 0 0; peer-end 0 0 0; peer-close 0 0 0",
    // The end of a cancelled write was mistaken for that of a lease.
    "seed 276042115119589; settings 32 16 300 4 2048 12 16 1; links tcp; peer-write 0 114928 0; \
     hold 0 1 0; write 0 282072 0; write 0 2768 0; receive 0 0 0; write-lease 0 0 0; cancel 0 0 0",
    // A poll begins after another request has reported the error.
    "seed 261868835020670; settings 1 8 256 4 2048 64 64 1; links file udp; receive-from 2 0 0; \
     poll 2 8192 0; peer-close 2 0 0; poll 2 8192 0; send-to 2 33 0",
    // A connect after a shutdown of a connection in progress is invalid.
    "seed 249727742287191; settings 1 4 300 2 4096 24 16 0; links outgoing; connect-to 0 1 0; \
     cancel 0 0 0; write 0 28269 1; disconnect 0 1 0; connect 0 0 0",
    "seed 265420878058017; settings 4 16 512 2 2048 12 12 1; links file tcp-listener; \
     peer-connect 2 0 0; peer-connect 2 0 0; peer-connect 2 0 0; accept 2 2 3; poll 2 1 0",
    "seed 170579992004171; settings 8 2 1024 4 4096 64 12 0; links file tty; poll 2 1 0; \
     read 2 2842 0; peer-write 2 11 0; write-more 2 253 1; cancel 2 0 0",
];

#[test]
fn both_drivers_do_the_same() {
    let seed = seed_of_clock();
    println!("channelfuzz --seed {seed} --cases {CASES}");
    let mut campaign = Campaign::new(Drivers::Both, true);
    for text in MENDED {
        campaign.run_script(&text.parse::<Script>().unwrap());
    }
    campaign.run_seeds(seed, Limit { time: TIME_MAX, cases: CASES, findings: 3 });
    let report = campaign.report();
    for finding in &report.findings {
        let (failure, script) = (&finding.failure, &finding.shrunk);
        println!("{}: {}\n  channelfuzz --script '{script}'", failure.class, failure.text);
        finding.log.iter().for_each(|line| println!("    {line}"));
    }
    assert!(report.findings.is_empty(), "{} cases failed", report.findings.len());
    assert_eq!(report.cases, CASES + MENDED.len() as u64, "not within time");
}
