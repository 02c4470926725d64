//! The differences that are allowed, each with its reason.

fuzzkit::rules! {
    /// Why a difference between plain processes and those with a library is allowed.
    ///
    /// The rules `KnownFault...` are for faults of the library: each is to be deleted with the
    /// fault.
    pub Rule {
        Late: "Data, room, an end or an error arrived a moment later: TCP promises no time. A \
            call that found nothing yet is repeated until it finds the same.",
        StreamSegments: "A stream has no boundaries: a read that brought fewer bytes is \
            continued.",
        BufferRoom: "How much a call moves while buffers are full depends on their sizes.",
        SpuriousEdge: "An edge may be told again if what it tells is true, as epoll(7) says of \
            events that merge or repeat.",
        WaitsForPeer: "A call that puts a connection back to TCP waits up to a second for a peer \
            that does not react (docs/preload.md).",
        DivergedState: "After an allowed difference on a connection, its later calls meet another \
            state and are not compared any more; its bytes are checked all the same.",
        HeldBack: "What TCP holds back for a while (MSG_MORE, TCP_CORK, Nagle's algorithm) goes \
            through memory at once, or the other way round: no time is promised.",
        KnownFaultF1: "A write that waits for room does not end when the peer closes, exits or is \
            killed.",
        KnownFaultF2: "A connection that goes back to TCP loses bytes, and a good end follows; or \
            it is reset because an end has shut down its sending side.",
        KnownFaultF3: "The peer's end, or an own shutdown, is not told by poll, select and epoll.",
        KnownFaultF4: "Closing by syscall() takes a second.",
        KnownFaultF5: "A connection that is passed to another process, or goes back to TCP after \
            its peer has sent and closed, is reset: reading gives EPIPE.",
        KnownFaultF6: "A signal does not interrupt a write that waits for room.",
        KnownFaultF7: "The library's own descriptors are visible.",
        KnownFaultF9: "A reset is told as an end, or not at all.",
        KnownFaultCrossed: "Both ends go back to TCP, or one with bytes that its idle peer would \
            have to send again: the connection is reset.",
        KnownFaultIdlePeer: "What is unread when a connection goes back to TCP comes only when \
            its peer makes a call: a peer that waits for something else holds it back for ever.",
        KnownFaultShortPeek: "Where a direction goes from TCP to memory or back, MSG_PEEK shows \
            only what lies before that place, also if it is asked for more again and again.",
        KnownFaultFalseEnd: "After a connection was passed while bytes were unread, its peer \
            finds an end that no one has made.",
        KnownFaultUnconnected: "After a reset by the library, the socket is not connected any \
            more: calls give ENOTCONN instead of an end or success.",
        KnownFaultPollStarves: "poll and select tell nothing of a connection that is ready while \
            another one in memory is ready.",
        KnownFaultUnread: "FIONREAD counts only what lies before the place where a direction goes \
            from TCP to memory or back: less than can be read, or 0.",
        KnownFaultWriteAfterShutdown: "Writing by splice or syscall() after an own shutdown gives \
            EAGAIN or ECONNRESET instead of EPIPE.",
        KnownFaultShutBoth: "What the peer sends after shutdown(SHUT_RDWR) is delivered; TCP \
            resets the connection.",
        KnownFaultEmptyTransfer: "Receiving into no room or sending nothing gives 0, where TCP \
            waits for data, gives EAGAIN, or tells the socket's error.",
        KnownFaultCloseUnderCall: "A read that waits gets EBADF when the descriptor is closed and \
            the peer closes; with TCP it gets data and the end.",
        KnownFaultNonblockUnderCall: "A read that waits gives EAGAIN when the descriptor is made \
            nonblocking; with TCP it waits on.",
        KnownFaultShortWaitAll: "MSG_WAITALL gives less than it was asked for when the connection \
            goes back to TCP meanwhile.",
        KnownFaultWriteAfterClose: "The first write after the peer's close fails with EPIPE; with \
            TCP it succeeds.",
        NotRepeated: "The difference did not come again when the case was run at a slower pace: \
            it was one of timing.",
    }
}
