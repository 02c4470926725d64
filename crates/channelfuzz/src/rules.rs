//! Defines the differences that are allowed, each with its reason.

fuzzkit::rules! {
    /// Why a difference between the drivers, or from what is expected, is allowed.
    ///
    /// The rules `KnownFault...` are for faults of the channel: each is to be deleted with the
    /// fault.
    pub Rule {
        StreamSegments: "A stream of bytes has no boundaries: a request may bring more bytes with \
            one driver than with the other. That nothing is lost or out of order is checked by \
            position.",
        CancelRace: "A cancelled request completes with ECANCELED or, if that was quicker, with \
            its result: the epoll driver tries an operation when it is filed, io_uring when it is \
            submitted.",
        WithdrawnRace: "A request that was filed before its handle was unregistered or closed may \
            have completed before that with one driver only.",
        PartialWrite: "How much of a write that was cancelled or met an error had been taken \
            depends on the room in the kernel's buffers at that moment.",
        TimerExpiries: "How often a timer expired between two looks depends on the clock.",
        PollEdges: "A repeating poll may tell an event twice, so that only the last completion of \
            a poll is compared, and of a single one whether it was told.",
        PollBesideRead: "A poll and a read of one handle go on side by side: whether the poll \
            looks before the read has taken the data is not determined.",
        AcceptedAhead: "An accept of several connections may take more than were asked for, and \
            keeps them for the next one; a poll of the listener does not see them, and if it is \
            closed, they have an end where those that wait have a reset.",
        SharedFile: "Two members with one open file share what comes: which of them gets a \
            message is not determined.",
        BuffersHeld: "While the application holds leases, a receive may have to wait for a buffer \
            with io_uring, which keeps some of the free ones in the kernel's hands, and not with \
            epoll; a poll beside it sees the data meanwhile.",
        ErrorToldOnce: "The kernel tells an error of a socket once, to whichever asks first: a \
            poll beside a read may or may not see POLLERR, and a read after a write that was cut \
            finds the end instead of ECONNRESET, and a write EPIPE instead.",
        LooseOrder: "Without dispatching after each operation, the order of an operation of the \
            channel and of one of the peer is not determined; only what holds for each driver \
            alone is checked.",
        Backpressure: "A request is refused (too many requests or handles, queue full) when \
            others have not completed, which may have happened earlier with one driver.",
        DivergedState: "After an allowed difference on a link, its later requests meet another \
            state and are not compared with each other any more.",
        UnreadReset: "Closing a TCP socket with unread data resets the connection: the peer may \
            lose bytes that were on their way to it.",
        DatagramLoss: "UDP may lose datagrams when the receiver's buffer is full.",
        DeferredClose: "A close, an abort or an unregistration takes effect with the next flush \
            or dispatch at the latest: until then a pending receive may take data from a \
            duplicate of the handle, so that the fuzzer flushes after it.",
        DiscardedInput: "A close that has to wait for its output discards what comes in, and the \
            peer sees the end; one that has not resets the connection because of unread input. \
            Which of both a close with much queued output is depends on when the peer reads.",
        NoDescriptor: "A connection of the user-level stack has no file of the kernel's behind it: \
            asking for a descriptor fails with EOPNOTSUPP.",
        ShutBeforeConnect: "A shutdown of a socket that is not connected fails with ENOTCONN, and \
            the kernel keeps it for the connection that follows, which cannot send (or ends what \
            it receives) without a word to the peer; the user-level stack forgets it.",
        ResetBehindEnd: "A close with SO_LINGER 0, or a write to a peer that has closed, resets \
            the connection: whether the end that was sent before has arrived then (EPIPE for a \
            write) or not (ECONNRESET) depends on the room for what came before it.",
        NotRepeated: "The difference did not come again when the case was run at a slower pace: \
            it was one of timing.",
    }
}
