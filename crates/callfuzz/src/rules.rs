//! Defines the differences that are allowed, each with its reason.

fuzzkit::rules! {
    /// Why a difference between plain processes and those with a library is allowed.
    pub Rule {
        Late: "Data, room, an end or an error arrived a moment later: TCP promises no time. A \
            call that found nothing yet is repeated until it finds the same.",
        StreamSegments: "A stream has no boundaries: a read that brought fewer bytes is \
            continued.",
        BufferRoom: "How much a call moves while buffers are full depends on their sizes.",
        SpuriousEdge: "An edge may be told again if what it tells is true, as epoll(7) says of \
            events that merge or repeat.",
        ErrorTaken: "An error is told once: of two calls of one program that wait on a connection, \
            whichever is woken first takes it, and the other one is not told POLLERR.",
        DataTaken: "Of two calls of one program that wait on a connection, a read may take the \
            data before the other one, which waits for events, has looked: that waits on, as on \
            the kernel. So may an accept that waits on a listener take the connection.",
        WaitsForPeer: "A call that puts a connection back to TCP waits up to a second for a peer \
            that does not react (docs/preload.md).",
        DivergedState: "After an allowed difference on a connection, its later calls meet another \
            state and are not compared any more; its bytes are checked all the same.",
        HeldBack: "What TCP holds back for a while (MSG_MORE, TCP_CORK, Nagle's algorithm) goes \
            through memory at once, or the other way round: no time is promised.",
        LibraryDescriptors: "/proc/self/fd shows the library's descriptors of a listening socket \
            (docs/preload.md).",
        WriteToKilled: "A write to a peer that was killed may succeed for one tick of the kernel's \
            clock, and such bytes make a reset of its end; sendfile, splice and urgent data may \
            fail already where the kernel takes the first bytes (docs/preload.md).",
        UnreadOfKilled: "A peer that is killed before it has followed an end back to TCP, which \
            was given to another program or process, resets the connection (docs/preload.md).",
        UnreadOfShut: "An end that is shut in both directions with bytes unread, and is given to \
            another program or process, is reset (docs/preload.md).",
        AfterReset: "After it has told the reset of a connection that was given to another program \
            or process, the library's socket is one that was never connected: ENOTCONN and no \
            input, where the kernel has an end (docs/preload.md).",
        ReadOfNothing: "A recv(2) of no bytes that waits is not ended by an own shutdown(2) \
            (docs/preload.md).",
        IdlePeer: "What is unread when a connection goes back to TCP comes when its peer makes a \
            call: a peer that waits for something else holds it back (docs/preload.md).",
        StackDescriptors: "The stack's own descriptors have low numbers, which a program does not \
            get any more (docs/mtcp-run.md).",
        StackEnded: "A stack ends with its process: a peer that has not ended its side by then is \
            reset, at once if the process was killed, and nothing answers it (docs/mtcp-run.md).",
        StackSurvivor: "To reset the peers of a killed process, connections are begun anew: a \
            listener whose connection is gone already may see one, which is reset \
            (docs/mtcp-run.md).",
        StackEpollTwins: "An epoll set has a socket of the stack once, whatever numbers it has \
            (docs/mtcp-run.md).",
        MergedEdge: "That the peer has acknowledged an own end is an edge of its own, unless it \
            comes before the edge of the shutdown itself was taken: both are one then, as \
            epoll(7) says of events that merge.",
        NotRepeated: "The difference did not come again when the case was run at a slower pace: \
            it was one of timing.",
    }
}

impl Rule {
    /// Returns whether the state of connections is the same after it.
    pub(crate) fn is_harmless(self) -> bool {
        matches!(self, Rule::LibraryDescriptors | Rule::StackDescriptors)
    }
}
