//! The differences that are allowed, each with its reason.

fuzzkit::rules! {
    /// Why a difference between plain processes and those with a library is allowed.
    ///
    /// The rules `KnownFault...` are for faults of the library: each is to be deleted with the
    /// fault.
    pub Rule {
        Late: "Data, room, an end or an error arrived a moment later: TCP promises no time. A call \
            that found nothing yet is repeated until it finds the same.",
        StreamSegments: "A stream has no boundaries: a read that brought fewer bytes is continued.",
        BufferRoom: "How much a call moves while buffers are full depends on their sizes.",
        SpuriousEdge: "An edge may be told again if what it tells is true, as epoll(7) says of \
            events that merge or repeat.",
        WaitsForPeer: "A call that puts a connection back to TCP waits up to a second for a peer \
            that does not react (docs/preload.md).",
        PeerReacts: "What a connection that went back to TCP had unread is sent again by its peer, \
            when that makes its next call (docs/preload.md).",
        DivergedState: "After an allowed difference on a connection, its later calls meet another \
            state and are not compared any more; its bytes are checked all the same.",
        NotRepeated: "The difference did not come again when the case was run at a slower pace: it \
            was one of timing.",
    }
}
