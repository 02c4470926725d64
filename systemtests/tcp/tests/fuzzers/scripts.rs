//! Short scripts; `callfuzz --script` repeats each.

/// Scripts that once failed: with a fault of the library, or because the fuzzer expected too much.
pub(crate) const MENDED: &[&str] = &[
    // The kernel reports a reset once; the read after that does not show a normal end.
    "seed 178319939768113; family 4; links nonblocking; write 1 0 6000000 0; write 0 0 33 22; \
     exit 1 0 0 0; write 0 0 11 23",
    // A pipe does not hold so many bytes.
    "seed 55123560926342; family 4; links nonblocking; write 1 0 6000000 23",
    // How much a thread had written, or read, when its process ended is not known.
    "seed 7013420929595631; family 4; links blocking; write 0 0 6000000 65; again 0 3 0 0; write \
     0 0 30 0",
    "seed 1; family 4; links blocking; write 0 0 11572 19; fork 1 0 0 0; execute 3 0 0 1",
    // splice returns 0 before an urgent byte, and the byte wakes one that waits.
    "seed 235874080248179; family 4; links nonblocking; write 0 0 1 148; write 0 0 17550 20; \
     close 0 0 0 1; read 1 0 2 22",
    "seed 1; family 4; links blocking; read 0 0 15 22; write 1 0 1 145",
    // A blocked write, the peer's close, and a signal.
    "seed 1; family 4; links blocking; write 0 0 6000000 0; close 1 0 0 0",
    "seed 1; family 4; links blocking; write 0 0 6000000 0; interrupt 0 0 0 0",
    // An end that is half-closed, then executed and spliced.
    "seed 1; family 4; links blocking; shutdown 1 0 1 0; write 0 0 11427 0; again 1 3 0 0; read 1 \
     0 9000 17",
    "seed 1; family 4; links nonblocking; write 1 0 619 0; shutdown 1 0 1 0; read 0 0 27 6",
    // The end after it was read, and room after the side's own shutdown.
    "seed 1; family 4; links blocking; exit 0 0 0 0; read 1 0 13 16; poll 1 0 7 2",
    "seed 1; family 4; links nonblocking; write 1 0 974 17; shutdown 0 0 1 0; poll 0 0 7 19",
    // Executed after the peer has sent and closed.
    "seed 1; family 4; links blocking; write 1 0 100 0; close 1 0 0 0; again 0 0 0 0; read 0 0 \
     200 1",
    // A reset for bytes that were unread.
    "seed 1; family 4; links nonblocking; write 0 0 22 0; close 1 0 0 0; read 0 0 10 0",
    // Bytes that were lost before a normal end: bytes that had gone into memory before an end
    // withdrew, the error of a reset that a call of the library met, bytes that were spliced twice.
    "seed 83426413764603; family 4; links blocking; write 0 0 6000000 16; read 1 0 1 17; \
     set-option 1 0 7 1; write 1 0 15270 84; execute 1 0 0 0",
    "seed 1; family 4; links nonblocking; write 0 0 1073 7; read 1 0 3121 6",
    // A false end after an end withdrew and was passed.
    "seed 1; family 4; links blocking; write 0 0 15 0; write 1 0 36 22; pass 1 0 3 0; read 0 0 \
     1603 16; read 0 0 12883 17",
    // Resets by a killed or closing peer, reported to every owner of the descriptor.
    "seed 1; family 4; links nonblocking; write 0 0 11 20; close 1 0 0 1; pass 0 0 1 0",
    "seed 1; family 4; links nonblocking; write 0 0 1491 0; kill 1 1 0 0; again 0 1 0 0; read 0 0 \
     1876 0",
    "seed 1; family 4; links blocking; write 1 0 23 65; write 0 0 34 23; kill 0 2 0 0; read 1 0 \
     1297 16; read 1 0 541 3",
    "seed 1; family 4; links blocking; read 0 0 13 129; write 0 0 2 0; exit 1 1 0 0",
    "seed 1; family 4; links nonblocking blocking; read 0 1 15381 16; write 0 1 5048 1; execute 0 \
     0 0 0; kill 1 2 0 0",
    // Writes to a peer that has ended: the first succeeds, with all of its buffers.
    "seed 1; family 4; links blocking; kill 1 0 0 0; write 0 0 1 145",
    "seed 1; family 4; links blocking; kill 1 1 0 0; write 0 0 6 23",
    "seed 1; family 4; links nonblocking; close 1 0 0 0; write 0 0 32 3",
    "seed 1; family 4; links nonblocking; close 0 0 0 0; write 1 0 6000000 2; poll 1 0 5 1",
    // Shutting down the own reading side is not an end of the peer.
    "seed 1; family 4; links nonblocking; shutdown 1 0 0 0; write 1 0 20 0; read 1 0 36 16",
    "seed 1; family 4; links nonblocking; shutdown 0 0 0 0; write 0 0 1193 2; kill 1 3 0 0",
    "seed 1; family 4; links nonblocking; write 0 0 36 21; shutdown 1 0 2 0; execute 0 0 632 1",
    "seed 1; family 4; links nonblocking; shutdown 0 0 2 0; write 1 0 17229 0; read 0 0 10386 0",
    // FIONREAD and a peek (MSG_PEEK) past the position at which a direction moves.
    "seed 1; family 4; links blocking; write 1 0 1351 22; shutdown 1 0 1 0; unread 0 0 0 0",
    "seed 1; family 4; links blocking; write 0 0 1398 16; write 0 0 1 129; unread 1 0 0 0",
    "seed 1; family 4; links nonblocking; write 1 0 7 22; unread 0 0 0 0",
    "seed 1; family 4; links blocking; write 0 0 31 16; write 1 0 6 22; write 0 0 1066 3; read 1 \
     0 11 4; read 1 0 28 34",
    // Transfers of 0 bytes.
    "seed 1; family 4; links nonblocking; read 0 0 0 3",
    "seed 1; family 4; links nonblocking; read 1 0 0 17",
    "seed 1; family 4; links blocking; read 1 0 0 22",
    "seed 1; family 4; links blocking; read 1 0 0 68; interrupt 1 2 0 0",
    "seed 1; family 4; links blocking; read 1 0 0 68; write 0 0 1 148",
    "seed 1; family 4; links nonblocking; write 0 0 7 0; close 1 0 0 0; write 0 0 0 4",
    // Splicing 0 bytes leaves no trace.
    "seed 1; family 4; links blocking; write 1 0 0 7; kill 0 0 0 0",
    // A descriptor that is closed, replaced or made nonblocking during a call.
    "seed 1; family 4; links blocking; read 0 0 10 16; close 0 0 0 0; close 1 0 0 0",
    "seed 1; family 4; links blocking; read 0 0 403 6; close 0 0 0 0; write 1 0 25 65",
    "seed 1; family 4; links blocking blocking; write 0 0 6000000 65; write 1 0 28 16; duplicate \
     0 1 0 1; execute 1 0 0 1",
    "seed 1; family 4; links blocking; read 0 0 10 0; nonblock 0 0 1 0; write 1 0 5 0",
    // A peer that ended with unread bytes before it had followed an end that left: a reset, as the
    // kernel does.
    "seed 1; family 4; links nonblocking; write 1 0 2 3; again 0 0 0 0; kill 0 0 0 0",
    "seed 1; family 4; links nonblocking; write 0 0 27 18; pass 1 0 2 0; close 0 2 0 2; close 1 0 \
     0 2; write 0 0 17 20",
    // An end that leaves after its own direction had ended, or was in TCP, while its peer makes no
    // call; and such a peer that is killed.
    "seed 1; family 4; links blocking; write 0 0 40 17; shutdown 1 0 1 0; again 1 0 0 0; write 1 0 \
     11 21",
    "seed 1; family 4; links blocking; write 0 0 25 0; set-option 1 0 7 100; again 1 0 0 0; read 0 \
     0 25 16",
    "seed 1; family 4; links nonblocking; write 1 0 37 2; shutdown 0 0 1 0; kill 1 0 0 0; poll 0 0 \
     7 0; read 0 0 100 0; poll 0 0 7 0; read 0 0 100 0",
    "seed 1; family 4; links nonblocking; write 1 0 37 2; set-option 0 0 7 1; kill 1 0 0 0; poll 0 \
     0 7 0; read 0 0 100 0; poll 0 0 7 0; read 0 0 100 0",
    // An end that leaves without unread bytes does not depend on what happens to the peer.
    "seed 1; family 4; links nonblocking; execute 1 0 0 1; kill 0 2 0 0; write 1 0 11 23",
    // The error of a killed peer is reported once.
    "seed 1; family 4; links blocking; kill 1 3 0 0; write 0 0 1216 18; write 0 0 3 3; poll 0 0 \
     0 1",
    "seed 1; family 4; links nonblocking; write 1 0 978 16; kill 0 0 0 0; write 1 0 18394 6",
    "seed 1; family 4; links blocking; poll 0 0 5 0; fork 1 0 0 0; write 3 0 1697 23; shutdown 3 0 \
     2 0; kill 0 0 0 0; read 1 0 0 33",
    "seed 1; family 4; links blocking; write 0 0 35 1; kill 1 2 0 0; shutdown 0 0 1 0",
    // sendfile loses the error of a reset that it meets after its first bytes.
    "seed 1; family 4; links blocking; write 1 0 6000000 22; close 1 0 0 0; write 0 0 6000000 6",
    // Several connections at once, and calls after the side's own shutdown.
    "seed 1; family 4; links nonblocking nonblocking; read 0 1 37 33; poll 0 1 7 19",
    "seed 1; family 4; links nonblocking; shutdown 1 0 1 0; poll 0 0 1 18; write 1 0 630 23",
];

/// Documented limits of the library: the rules and the shortest script that meets them.
pub(crate) const LIMITS: &[(&[&str], &str)] = &[
    (&["LibraryDescriptors"], "seed 1; family 4; links blocking; descriptors 1 0 0 0"),
    (
        &["WaitsForPeer", "IdlePeer"],
        "seed 1; family 4; links nonblocking; write 1 0 20 65; execute 0 0 0 1; close 1 0 0 0; \
         read 0 0 309 0",
    ),
    (
        &["UnreadOfKilled"],
        "seed 1; family 4; links blocking nonblocking; write 0 1 414 3; kill 0 3 0 0; execute 1 1 \
         10679 0",
    ),
    (
        &["UnreadOfShut"],
        "seed 1; family 4; links nonblocking; write 0 0 649 1; shutdown 1 0 2 0; shutdown 0 0 1 0; \
         pass 1 0 4 0",
    ),
    (
        &["HeldBack"],
        "seed 1; family 4; links blocking; write 1 0 18 1; write 0 0 224 22; write 1 0 3 16; write \
         1 0 433 1; shutdown 0 0 2 0; shutdown 1 0 1 0",
    ),
    (
        &["AfterReset"],
        "seed 1; family 4; links nonblocking; write 0 0 1491 0; kill 1 1 0 0; again 0 1 0 0; read \
         0 0 1876 0",
    ),
    (
        &["WriteToKilled"],
        "seed 1; family 4; links blocking; read 1 0 806 3; write 0 0 28 68; kill 1 0 0 0; write 0 \
         0 19 22",
    ),
    (&["ReadOfNothing"], "seed 1; family 4; links blocking; read 0 0 0 1; shutdown 0 0 1 0"),
];
