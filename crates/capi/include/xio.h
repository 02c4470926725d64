/*
 * xio.h - reconfigurable flows of MegaPipe for C and C++: libmegapipe
 *
 * Made by `cargo xtask header`; change the comments in crates/capi/src/xio instead.
 *
 * An end-point has a name, and flows connect it with others. A flow carries messages both ways, in
 * order, over the transport that suits both ends best at the time: shared memory, pipes, sockets,
 * TCP, TLS. The transport may change while the flow lives, and nothing is lost or repeated.
 *
 * Messages are in buffers, which are the library's: obtain one, use it, then commit or release it.
 * No byte is copied that the transport need not copy. A server, whose client is in
 * examples/c/xio_client.c:
 *
 *     struct xio_buffer message, reply;
 *     xio_context *echo = xio_register_name("fable://echo", NULL);
 *     xio_handle flow = xio_accept(xio_listen(echo), -1);
 *
 *     while (xio_getreadbuf(flow, &message, 1, -1) == 1) {
 *         xio_getwritebuf(flow, message.bytes, &reply, 1, -1);
 *         memcpy(reply.data, message.data, message.bytes);
 *         xio_commit(flow, &reply);
 *         xio_release(&message);
 *     }
 *
 * The paper: Steven Smith et al., The Case for Reconfigurable I/O Channels, RESoLVE 2012. The calls
 * are those of its Table 2, and what they need beside them.
 *
 * Names. fable://service and fable://service/instance are kept by the name daemon, fabled.
 * tcp://host:port and unix:///path reach programs that know nothing of flows, without a daemon:
 * each buffer that is obtained holds whatever bytes have arrived, each that is committed is sent as
 * bytes, and there is no other transport to move to.
 *
 * Errors. A call that fails gives -1 (or NULL) and sets errno; mp_error() says in words what went
 * wrong and what would help. Besides what each call names:
 *   EBADF            the handle or end-point is unknown: closed, or (a flow) another thread's
 *   EFAULT           a pointer is NULL that must not be
 *   EPERM            it was opened before a fork, by the parent
 *   EOPNOTSUPP       the handle is of a listener and should be of a flow, or the other way round
 *   ECONNRESET       the peer is gone without having ended the flow
 *   EPROTO           the peer broke the rules; the flow can only be closed
 *   EIO              the flow's transport has failed; the flow can only be closed
 *   EDEADLK          called by a signal handler that interrupted a call of the same thread
 *   ENOTRECOVERABLE  a defect of the library; the thread's flows cannot be used any more
 *
 * Threads. End-points and listeners may be used by all threads of a process. A flow and its buffers
 * belong to the thread that connected or accepted it, and are closed when that ends. Nothing may
 * be called in signal handlers. After a fork all of them stay the parent's: register anew in the
 * child.
 *
 * Waiting. xio_getreadbuf(), xio_getwritebuf() and xio_accept() can wait for one thing, and do it
 * in the transport's own way, which may be a short spin; they go on waiting when a signal handler
 * has run. xpoll() waits for several flows and descriptors, xio_descriptor() fits into any other
 * loop, and xio_watch() into a channel of megapipe.h.
 *
 * Linux 5.16 or later.
 */

#ifndef XIO_H
#define XIO_H

#include <megapipe.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>

/* No handle. */
#define XIO_NONE (-1)

/* For xio_getwritebuf(): a size that suits long transfers. */
#define XIO_ANY UINT32_MAX

/* What happened to a flow, in struct xio_event. */
typedef enum xio_event_type {
    /* New write buffers belong to a new epoch: commit and release the older buffers soon. */
    XIO_MOVED = 1,
    XIO_MOVE_FAILED = 2 /* A move did not come about; the flow goes on as it was. */
} xio_event_type;

/* How much an end trusts the other one not to change a message after committing it. */
typedef enum xio_trust {
    XIO_UNTRUSTED = 0, /* Messages are copied before they are looked at. */
    /* Messages may be looked at where the peer wrote them, if it trusts this end, too. */
    XIO_TRUSTED = 1
} xio_trust;

/* An end-point, with a name or without. All threads of the process may use it. */
typedef struct xio_context xio_context;

/*
 * The settings of an end-point and of its flows, for xio_register_name(). 0 in a field stands for
 * its default, so that { 0 } is a good start, and a program that was compiled with an older
 * header keeps its meaning.
 */
typedef struct xio_options {
    /* One of enum xio_trust. */
    uint32_t trust;
    /* How long registering and connecting may take, in milliseconds; default 5000. */
    uint32_t timeout_ms;
    /*
     * How long buffers of an old epoch may hold a move up, in milliseconds; those that are
     * committed later are copied over. Default 100 (paper, section 3.1.4).
     */
    uint32_t drain_ms;
    /*
     * Bytes of each ring or heap of the transports in shared memory: 4096 to 2^30, rounded up to
     * a power of two; default 1 MiB.
     */
    uint32_t ring_bytes;
    /*
     * Who may connect: ids of users. With neither users nor groups the policy of the name daemon
     * decides.
     */
    const uint32_t *users;
    /* Who may connect: ids of groups. */
    const uint32_t *groups;
    /* How many users: at most 4096. */
    uint32_t users_count;
    /* How many groups: at most 4096. */
    uint32_t groups_count;
    /*
     * The transport that flows begin with, as xio_transport() names it. NULL leaves the choice to
     * the name daemon.
     */
    const char *transport;
    /*
     * The socket of the name daemon. NULL for the environment variable FABLE_SOCKET or, if that is
     * not set, where it usually is.
     */
    const char *socket;
    /*
     * How long xio_close() waits at most until the system or the peer has taken what was
     * committed, in milliseconds; default 1000.
     */
    uint32_t linger_ms;
    /* Must be zero. */
    uint32_t reserved_word;
    /* Must be zero. */
    uint64_t reserved[3];
} xio_options;

/*
 * A flow or a listener: 1 or more; -1 is none. No number is given twice in a process: after
 * xio_close() every call with it fails with EBADF, and so does every call with a flow of another
 * thread.
 */
typedef int64_t xio_handle;

/*
 * A buffer in the caller's hands (paper, section 3.1.3): a message that has arrived, or room for
 * one. It is single use: xio_commit() and xio_release() take it away, and clear the struct that
 * they are given. A copy of the struct that is used afterwards fails with ESTALE.
 */
typedef struct xio_buffer {
    /* The bytes. Of a message they are for reading only. */
    void *data;
    /*
     * How many. Of a write buffer: lower it before xio_commit() to send only the first ones. All
     * else is for reading only.
     */
    size_t bytes;
    /* The flow that it is of. */
    xio_handle handle;
    /* The library's. */
    uint64_t token;
    /* The epoch of the transport that it is of, from 1 (paper, Figure 6). */
    uint32_t epoch;
    /* Zero. */
    uint32_t reserved;
} xio_buffer;

/* What happened to a flow, from xio_getevent(). */
typedef struct xio_event {
    /* One of enum xio_event_type. */
    uint32_t type;
    /* XIO_MOVED: the epoch of new write buffers. Else 0. */
    uint32_t epoch;
    /* The transport that the flow has moved to, or that it should have. Always valid. */
    const char *transport;
    /* Why, for a person; cut if it is long. */
    char reason[240];
} xio_event;

/*
 * Who is at the other end of a flow, from xio_peer(). The kernel says so or, of a peer on another
 * host, that host's name daemon.
 */
typedef struct xio_peer_info {
    /* The process; 0 if it is not known. */
    int32_t pid;
    /* The user; UINT32_MAX if not known. */
    uint32_t uid;
    /* The group; UINT32_MAX if not known. */
    uint32_t gid;
    /* Zero. */
    uint32_t reserved;
    /* The host's name; cut if it is long. */
    char host[64];
    /* The program's name; cut if it is long. */
    char program[64];
} xio_peer_info;

/* What a flow has done so far, from xio_statistics(). Later versions add fields at the end. */
typedef struct xio_counters {
    /* Messages committed. */
    uint64_t messages_sent;
    /* Their bytes. */
    uint64_t bytes_sent;
    /* Messages that xio_getreadbuf() brought. */
    uint64_t messages_received;
    /* Their bytes. */
    uint64_t bytes_received;
    /* How often this end has slept. */
    uint64_t sleeps;
    /* How often the direction from this end has moved to another transport. */
    uint64_t moves;
    /* The longest time that this end could not send because of a move, in nanoseconds. */
    uint64_t pause_max_ns;
    /* The sum of those times. */
    uint64_t pause_total_ns;
    /* Messages committed that are not delivered yet, in the sense of xio_close_wait(). */
    uint64_t undelivered;
} xio_counters;

/* A flow or listener to wait for, as struct pollfd is a descriptor, for xpoll(). */
typedef struct xio_poll {
    /* The flow or listener; entries with XIO_NONE are passed over. */
    xio_handle handle;
    /* POLLIN; or 0 to pass the entry over. */
    int16_t events;
    /*
     * POLLIN if the flow may go on: there is a message, the end, an event for xio_getevent(), or
     * room for a message after a call has found none; or a flow to be accepted. POLLNVAL: EBADF.
     */
    int16_t revents;
    /* Zero. */
    uint32_t reserved;
} xio_poll;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Registers the name of an end-point (paper, Table 2).
 *
 * fable://service gets an instance of its own, see xio_name(), and shares the load with other
 * instances of the service; fable://service/instance must be free. tcp://host:port and
 * unix:///path (unix://@name: abstract) are sockets, and serve programs that know nothing of
 * flows; port 0 is any free one. name may be NULL for an end-point that only connects.
 *
 * options may be NULL for the defaults; they are read during the call only. The name is the
 * process's until xio_unregister_name(), or its end.
 *
 * Returns the end-point, or NULL and errno.
 *
 * Errors:
 *   EINVAL        not a name, or an option is out of range
 *   ENOENT        no name daemon answers: mp_error() says where it was looked for
 *   ECONNREFUSED  the name daemon refuses the name, such as one that is taken: mp_error() says why
 *   ETIMEDOUT     the name daemon does not answer
 *   EADDRINUSE    tcp://: the port is taken
 */
struct xio_context *xio_register_name(const char *name, const struct xio_options *options);

/* Gives a name up. Flows stay; a listener keeps the name until it is closed, too. */
int xio_unregister_name(struct xio_context *context);

/*
 * Writes the full name of an end-point, with the instance or port that was chosen, into room of
 * that many bytes, at most; without a name "".
 *
 * Returns the length of the name, which was cut if it is not below bytes; or -1 and errno.
 */
int xio_name(struct xio_context *context, char *name, size_t bytes);

/*
 * Begins to take in flows to an end-point; up to 128 wait for xio_accept(). One listener at a
 * time. Any thread may accept from it.
 *
 * Returns the listener, or -1 and errno.
 *
 * Errors:
 *   ECONNREFUSED  the end-point has no name, or has a listener already
 */
xio_handle xio_listen(struct xio_context *context);

/*
 * The next flow that has come in, which then belongs to the calling thread.
 *
 * timeout_ms: 0 not to wait, below 0 to wait for ever.
 *
 * Returns the flow, or -1 and errno.
 *
 * Errors:
 *   EAGAIN      none has come in in time
 *   EOPNOTSUPP  the handle is a flow's
 */
xio_handle xio_accept(xio_handle listener, int timeout_ms);

/*
 * Opens a flow to a name (paper, Table 2): returns when it stands. The name daemon has found the
 * other end-point then, and both have agreed on a transport; or a connection of tcp:// or unix://
 * is there, which carries bytes as they are, without messages.
 *
 * The flow belongs to the calling thread. It lives on when its end-point's name is given up.
 *
 * Returns the flow, or -1 and errno.
 *
 * Errors:
 *   EINVAL        not a name
 *   ENOENT        no name daemon answers; unix://: no such file
 *   ECONNREFUSED  no process has the name or listens, or the connection is not allowed: mp_error()
 *                 says which
 *   ETIMEDOUT     not within xio_options.timeout_ms
 */
xio_handle xio_connect(struct xio_context *context, const char *name);

/*
 * Obtains messages that have arrived, in their order, at most limit of them (paper, Table 2).
 *
 * timeout_ms: 0 to take what is there, as in the paper; below 0 to wait for the first message for
 * ever, which is the fastest way to wait for a single flow. Only the first is waited for. Flows of
 * tcp:// and unix:// names have no messages: their buffers hold whatever bytes have arrived.
 *
 * The bytes stay as they are until xio_release() or xio_commit(), also after xio_close(). A
 * trusted peer (enum xio_trust) could change them; it has promised not to.
 *
 * Returns how many, 0 if there was none in time, or -1 and errno.
 *
 * Errors:
 *   ENODATA     the peer has ended its direction, and all that it sent has been obtained
 *   ECONNRESET  the peer is gone without that; what could still be delivered has been obtained
 *   ENOSPC      the caller holds too many buffers: release some, if need be after copying them
 *   EINVAL      limit is below 1
 */
int xio_getreadbuf(xio_handle handle, struct xio_buffer *buffers, int limit, int timeout_ms);

/*
 * Allocates buffers for messages, at most limit of them, each of that many bytes (paper, Table 2);
 * XIO_ANY stands for a size that suits long transfers. Fill them, and commit them in the order of
 * the array. This is where back-pressure happens: there may be room for fewer or for none.
 *
 * timeout_ms: 0 to take the room that is there; below 0 to wait for the first buffer for ever.
 *
 * Returns how many, 0 if there was no room in time, or -1 and errno.
 *
 * Errors:
 *   EMSGSIZE    no message of the flow is that long: mp_error() says what the limit is
 *   EPIPE       xio_shutdown() has ended this direction
 *   ECONNRESET  the peer is gone
 *   ENOSPC      the caller holds too many buffers: commit or release some
 *   EINVAL      limit is below 1
 */
int xio_getwritebuf(xio_handle handle,
                    size_t bytes,
                    struct xio_buffer *buffers,
                    int limit,
                    int timeout_ms);

/*
 * Releases a buffer: returns the memory of a message, or gives room up unused (paper, Table 2).
 * Order does not matter. *buffer is cleared.
 *
 * Errors:
 *   ESTALE  the buffer is not in the caller's hands (any more)
 */
int xio_release(struct xio_buffer *buffer);

/*
 * Commits a buffer for writing to a flow (paper, Table 2): its first buffer->bytes bytes are one
 * message. They must not change afterwards. *buffer is cleared.
 *
 * A write buffer goes to the flow that it is of, and never has to wait. A message that has arrived
 * may go to any flow of the thread, also to its own (paper, section 3.1.3): it is copied into
 * memory of that flow's transport, and released.
 *
 * If it fails with one of the errors below, the buffer is the caller's still, and so is a message
 * with whatever error. If it fails otherwise, the flow is broken; a write buffer is gone, and
 * *buffer is cleared.
 *
 * Errors:
 *   ESTALE    the buffer is not in the caller's hands (any more)
 *   EBADF     handle is unknown, or closed
 *   EINVAL    buffer->bytes is more than there was; or it was changed and the buffer is a message
 *   EXDEV     a write buffer is of another flow than handle
 *   EAGAIN    a message: the flow that it should go to has no room now; xpoll() tells of it
 *   EMSGSIZE  a message: longer than the flow that it should go to takes
 *   EPIPE     a message: xio_shutdown() has ended this direction
 */
int xio_commit(xio_handle handle, struct xio_buffer *buffer);

/*
 * Hands over what xio_batch() keeps back.
 *
 * Returns 1, or 0 if the peer takes no more now, in which case it is to be called again; or -1 and
 * errno.
 */
int xio_flush(xio_handle handle);

/*
 * Lets that many commits collect before the peer is told of them; the rest waits for xio_flush().
 * 1, as at first, tells it at each.
 *
 * Errors:
 *   EINVAL  commits is below 1
 */
int xio_batch(xio_handle handle, int commits);

/*
 * Ends this direction of a flow: the peer obtains what was committed, then ENODATA. The other
 * direction goes on.
 */
int xio_shutdown(xio_handle handle);

/*
 * Closes a flow or listener. The peer of a flow obtains what was committed, then ENODATA; what
 * the peer still sends is discarded.
 *
 * It waits, xio_options.linger_ms at most, until the system or the peer has taken what was
 * committed. What then lies in a socket reaches the peer as long as this process lives; what
 * cannot be delivered is counted by xio_undelivered(). xio_close_wait() waits for more and says
 * more.
 *
 * Buffers of the flow stay the caller's, and their memory valid, until xio_release() or, of
 * messages, xio_commit() to another flow. Flows that wait in a listener are refused.
 */
int xio_close(xio_handle handle);

/*
 * Closes a flow and waits until everything that was committed is delivered; xio_close() waits for
 * less. A message is delivered when it lies where the peer can read it, whatever becomes of this
 * process: in shared memory, in a pipe, or in the peer's system, which has acknowledged it. Only
 * an answer of the peer tells that it has obtained the message.
 *
 * timeout_ms: how long to wait at most; 0 to look only, below 0 to wait for ever. undelivered may
 * be NULL; else *undelivered is how many messages were not delivered.
 *
 * The flow is closed also if this fails, except with EBADF and EOPNOTSUPP.
 *
 * Errors:
 *   ETIMEDOUT   not everything was delivered in time, or the peer is gone: mp_error() says how
 *               much; what a socket has taken may arrive later
 *   EOPNOTSUPP  the handle is a listener's
 */
int xio_close_wait(xio_handle handle, int timeout_ms, uint64_t *undelivered);

/*
 * Counts the messages that closed flows of an end-point have not delivered. A peer was gone, or
 * took nothing for as long as xio_options.linger_ms. 0 is what a healthy program sees. -1 and
 * errno if it fails.
 */
int64_t xio_undelivered(struct xio_context *context);

/*
 * The epoch of new write buffers of a flow: from 1, one more with each move. -1 and errno if it
 * fails.
 */
int64_t xio_epoch(xio_handle handle);

/*
 * The transport of new write buffers of a flow, such as "mempipe-futex-safe" (paper, Table 1).
 * Always valid. NULL and errno if it fails.
 */
const char *xio_transport(xio_handle handle);

/*
 * Asks for a move to another transport, in words as of xio_transport(). It goes on beside the
 * transfer of data, and xio_getevent() tells what became of it.
 *
 * Errors:
 *   EINVAL  there is no such transport: mp_error() names those that there are
 */
int xio_move(xio_handle handle, const char *transport);

/*
 * Takes the oldest event of a flow that was not taken yet (paper, section 3.1.4). Events need not
 * be taken: the flow goes on without, and forgets old ones.
 *
 * Returns 1, or 0 if there is none, or -1 and errno.
 */
int xio_getevent(xio_handle handle, struct xio_event *event);

/* Tells who is at the other end of a flow. */
int xio_peer(xio_handle handle, struct xio_peer_info *peer);

/*
 * Copies what a flow has counted so far into *counters, whose size is bytes: say
 * sizeof *counters. Fields that this version does not know are set to 0.
 */
int xio_statistics(xio_handle handle, struct xio_counters *counters, size_t bytes);

/*
 * Waits until something is ready: of descriptors as poll(2) does, and of flows and listeners
 * (paper, Table 2).
 *
 * fds may be NULL if nfds is 0, and flows if count is 0. timeout_ms: 0 to look only, below 0 to
 * wait for ever. What is not dealt with is told again. A flow may be told ready without need: use
 * calls that do not wait.
 *
 * Returns how many entries have revents, 0 if the time is up, or -1 and errno.
 *
 * Errors:
 *   EINTR   a signal handler ran
 *   EINVAL  there are more entries than descriptors may be open
 */
int xpoll(struct pollfd *fds, size_t nfds, struct xio_poll *flows, size_t count, int timeout_ms);

/*
 * The descriptor of a flow or listener (paper, section 3.1.4), the same until xio_close(). It
 * becomes readable in poll(2), epoll(7) and their like when xpoll() would tell of the handle. Do
 * nothing else with it: it is the library's.
 *
 * Returns the descriptor, or -1 and errno.
 *
 * Errors:
 *   EMFILE  there is no descriptor left
 */
int xio_descriptor(xio_handle handle);

/*
 * Makes a flow or listener a member of a channel of megapipe.h: from now on mp_dispatch() gives
 * MP_POLL, with this cookie, when xpoll() would tell of it, between the completions of sockets and
 * files.
 *
 * An event is told once: obtain all that there is, until xio_getreadbuf() gives 0, or accept until
 * EAGAIN; else the next one may not come. mp_unregister() of what this returns ends it; do that
 * before xio_close().
 *
 * Returns the channel's handle, or -1 and errno.
 *
 * Errors:
 *   ENFILE  mp_options.max_handles are registered
 *   EMFILE  there is no descriptor left
 */
mp_handle xio_watch(mp_channel *channel, xio_handle handle, void *cookie);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif  /* XIO_H */
