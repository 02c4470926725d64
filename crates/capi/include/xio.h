/*
 * xio.h - reconfigurable flows of MegaPipe for C and C++: libmegapipe
 *
 * Made by `cargo xtask header`; change the comments in crates/capi/src/xio instead.
 *
 * An end-point has a name, and flows connect it with others. A flow carries messages in both
 * directions, in order, over the transport that currently suits both ends best: shared memory,
 * pipes, sockets, TCP, TLS. The transport may change while the flow is open; no message is lost or
 * repeated.
 *
 * Messages are in buffers, which belong to the library: obtain one, use it, then commit or release
 * it. The library copies no byte that the transport need not copy. A server, whose client is in
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
 * are those of its Table 2, and further ones that they need.
 *
 * Names. The name daemon, fabled, stores fable://service and fable://service/instance.
 * tcp://host:port and unix:///path reach programs without flows, and need no daemon: each buffer
 * that is obtained holds the bytes that have arrived, each buffer that is committed is sent as
 * bytes, and there is no other transport to move to.
 *
 * Errors. A call that fails returns -1 (or NULL) and sets errno; mp_error() describes the failure
 * and the remedy. Besides the errors that each call names:
 *   EBADF            the handle or end-point is unknown: closed, or (a flow) another thread's
 *   EFAULT           a pointer is NULL that must not be
 *   EPERM            the parent opened it before a fork
 *   EOPNOTSUPP       the handle is a listener and should be a flow, or the other way round
 *   ECONNRESET       the peer has ended without ending the flow
 *   EPROTO           the peer violated the protocol; the flow can only be closed
 *   EIO              the flow's transport has failed; the flow can only be closed
 *   EDEADLK          called by a signal handler that interrupted a call of the same thread
 *   ENOTRECOVERABLE  a defect of the library; the thread's flows cannot be used any more
 *
 * Threads. All threads of a process may use end-points and listeners. A flow and its buffers belong
 * to the thread that connected or accepted it, and are closed when that thread ends. Signal
 * handlers must not call this library. After a fork all of them belong to the parent: register
 * again in the child.
 *
 * Waiting. xio_getreadbuf(), xio_getwritebuf() and xio_accept() wait for a single flow or listener
 * in the transport's own way, which may be a short spin; they continue to wait after a signal
 * handler has run. xpoll() waits for several flows and descriptors, xio_descriptor() serves any
 * other event loop, and xio_watch() a channel of megapipe.h.
 *
 * Needs Linux 5.10 or later. Before Linux 5.16, which has futex_waitv(2), a flow that waits for its
 * peer and its agent sleeps by descriptors.
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

/* The kind of an event of a flow, in struct xio_event. */
typedef enum xio_event_type {
    /* New write buffers belong to a new epoch: commit and release the older buffers soon. */
    XIO_MOVED = 1,
    XIO_MOVE_FAILED = 2 /* A move failed; the flow continues on its present transport. */
} xio_event_type;

/* How much an end trusts the other one not to change a message after committing it. */
typedef enum xio_trust {
    XIO_UNTRUSTED = 0, /* Messages are copied before they are read. */
    /* Messages may be read where the peer wrote them, if the peer trusts this end, too. */
    XIO_TRUSTED = 1
} xio_trust;

/* An end-point, with or without a name. All threads of the process may use it. */
typedef struct xio_context xio_context;

/*
 * The settings of an end-point and of its flows, for xio_register_name(). 0 in a field stands for
 * its default, so start with { 0 }. So a program that was compiled with an older header keeps its
 * meaning.
 */
typedef struct xio_options {
    /* One of enum xio_trust. */
    uint32_t trust;
    /* How long registering and connecting may take, in milliseconds; default 5000. */
    uint32_t timeout_ms;
    /*
     * How long a call that waits on a ring in shared memory spins before it sleeps, in
     * microseconds; default 50.
     */
    uint32_t spin_us;
    /*
     * Bytes of each ring or heap of the transports in shared memory: 4096 to 2^30, rounded up to
     * a power of two; default 1 MiB.
     */
    uint32_t ring_bytes;
    /*
     * Who may connect: ids of users. Without users and groups, the policy of the name daemon
     * decides.
     */
    const uint32_t *users;
    /* Who may connect: ids of groups. */
    const uint32_t *groups;
    /* The number of users: at most 4096. */
    uint32_t users_count;
    /* The number of groups: at most 4096. */
    uint32_t groups_count;
    /*
     * The transport that flows begin with, as xio_transport() names it. NULL leaves the choice to
     * the name daemon.
     */
    const char *transport;
    /*
     * The socket of the name daemon. NULL for the environment variable FABLE_SOCKET or, if that is
     * not set, the default socket.
     */
    const char *socket;
    /*
     * Longest time that xio_close() waits until the system or the peer has taken what was
     * committed, in milliseconds; default 1000.
     */
    uint32_t linger_ms;
    /*
     * 1 if the other end of flows from this end-point must run as the user in owner. xio_connect()
     * fails with EACCES if a name belongs to another user. 0 accepts the owner that the name
     * daemon knows.
     */
    uint32_t requires_owner;
    /* The id of that user; 0 if requires_owner is 0, and for root. */
    uint32_t owner;
    /* Must be zero. */
    uint32_t reserved_word;
    /* Must be zero. */
    uint64_t reserved[2];
} xio_options;

/*
 * A flow or a listener: 1 or more; -1 is none. A number is never reused in a process: after
 * xio_close() every call with it fails with EBADF, and so does every call with a flow of another
 * thread.
 */
typedef int64_t xio_handle;

/*
 * A buffer that the caller holds (paper, section 3.1.3): a message that has arrived, or room for
 * one. It can be used once: xio_commit() and xio_release() take it away, and clear the struct that
 * they get. Using a copy of the struct afterwards fails with ESTALE.
 */
typedef struct xio_buffer {
    /* The bytes. Those of a message are read-only. */
    void *data;
    /*
     * The number of bytes. Of a write buffer: lower it before xio_commit() to send only the first
     * ones. All other fields are read-only.
     */
    size_t bytes;
    /* The buffer's flow. */
    xio_handle handle;
    /* For the library's use. */
    uint64_t token;
    /* The epoch of the buffer's transport, from 1 (paper, Figure 6). */
    uint32_t epoch;
    /* 0; later versions may use it. */
    uint32_t reserved;
} xio_buffer;

/* An event of a flow, from xio_getevent(). */
typedef struct xio_event {
    /* One of enum xio_event_type. */
    uint32_t type;
    /* XIO_MOVED: the epoch of new write buffers. Else 0. */
    uint32_t epoch;
    /* The transport to which the flow has moved, or to which it should have moved. Always valid. */
    const char *transport;
    /* The reason, as text for people; cut if it is long. */
    char reason[240];
} xio_event;

/*
 * The peer of a flow, from xio_peer(), as the kernel reports it or, for a peer on another host, as
 * that host's name daemon does.
 */
typedef struct xio_peer_info {
    /* The process; 0 if unknown. */
    int32_t pid;
    /* The user; UINT32_MAX if unknown. */
    uint32_t uid;
    /* The group; UINT32_MAX if unknown. */
    uint32_t gid;
    /* 0; later versions may use it. */
    uint32_t reserved;
    /* The host's name; cut if it is long. */
    char host[64];
    /* The program's name; cut if it is long. */
    char program[64];
} xio_peer_info;

/* The counters of a flow, from xio_statistics(). Later versions add fields at the end. */
typedef struct xio_counters {
    /* Messages committed. */
    uint64_t messages_sent;
    /* Their bytes. */
    uint64_t bytes_sent;
    /* Messages that xio_getreadbuf() returned. */
    uint64_t messages_received;
    /* Their bytes. */
    uint64_t bytes_received;
    /* Times this end slept. */
    uint64_t sleeps;
    /* Times the direction from this end moved to another transport. */
    uint64_t moves;
    /* The longest time that this end could not send because of a move, in nanoseconds. */
    uint64_t pause_max_ns;
    /* The sum of those times. */
    uint64_t pause_total_ns;
    /* Messages committed that are not delivered yet, in the sense of xio_close_wait(). */
    uint64_t undelivered;
} xio_counters;

/* A flow or listener to wait for in xpoll(), as struct pollfd is for a descriptor. */
typedef struct xio_poll {
    /* The flow or listener; entries with XIO_NONE are ignored. */
    xio_handle handle;
    /* POLLIN; or 0 to ignore the entry. */
    int16_t events;
    /*
     * POLLIN if the flow may continue: there is a message, the end, an event for xio_getevent(),
     * or room for a message after a call has found none; or a flow to accept. POLLNVAL: EBADF.
     */
    int16_t revents;
    /* 0; later versions may use it. */
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
 * unix:///path (unix://@name: abstract) are sockets, and serve programs without flows; port 0
 * selects a free one. name may be NULL for an end-point that only connects.
 *
 * options may be NULL for the defaults; they are read during the call only. The process has the
 * name until xio_unregister_name(), or until the process ends.
 *
 * Returns the end-point, or NULL and errno.
 *
 * Errors:
 *   EINVAL        not a name, or an option is out of range
 *   ENOENT        no name daemon answers: mp_error() says where the call looked for it
 *   ECONNREFUSED  the name daemon refuses the name, for example because it is in use: mp_error()
 *                 gives the reason
 *   ETIMEDOUT     the name daemon does not answer
 *   EADDRINUSE    tcp://: the port is in use
 */
struct xio_context *xio_register_name(const char *name, const struct xio_options *options);

/* Unregisters a name. Flows stay open; a listener keeps the name until it is closed, too. */
int xio_unregister_name(struct xio_context *context);

/*
 * Writes the full name of an end-point, with the chosen instance or port, to name, at most bytes
 * bytes; "" for an end-point without a name.
 *
 * Returns the length of the name, which was cut if it is not below bytes; or -1 and errno.
 */
int xio_name(struct xio_context *context, char *name, size_t bytes);

/*
 * Starts to listen for flows to an end-point; up to 128 wait for xio_accept(). An end-point has
 * one listener at a time. Any thread may accept from it.
 *
 * Returns the listener, or -1 and errno.
 *
 * Errors:
 *   ECONNREFUSED  the end-point has no name, or has a listener already
 */
xio_handle xio_listen(struct xio_context *context);

/*
 * Accepts the next flow, which then belongs to the calling thread.
 *
 * timeout_ms: 0 to return at once, below 0 to wait without a limit.
 *
 * Returns the flow, or -1 and errno.
 *
 * Errors:
 *   EAGAIN      no flow arrived in time
 *   EOPNOTSUPP  the handle is not a listener
 */
xio_handle xio_accept(xio_handle listener, int timeout_ms);

/*
 * Opens a flow to a name (paper, Table 2). The call returns when the name daemon has found the
 * other end-point and both have agreed on a transport; or, for tcp:// and unix://, when the
 * connection is open, which carries bytes without message boundaries.
 *
 * The flow belongs to the calling thread. It stays open when its end-point's name is unregistered.
 *
 * Returns the flow, or -1 and errno.
 *
 * Errors:
 *   EINVAL        not a name
 *   ENOENT        no name daemon answers; unix://: no such file
 *   ECONNREFUSED  no process has the name or listens, or the connection is forbidden: mp_error()
 *                 says which
 *   EACCES        the name belongs to another user than xio_options.owner
 *   ETIMEDOUT     not within xio_options.timeout_ms
 */
xio_handle xio_connect(struct xio_context *context, const char *name);

/*
 * Obtains messages that have arrived, in their order, at most limit of them (paper, Table 2).
 *
 * timeout_ms: 0 to take the available messages, as in the paper; below 0 to wait for the first
 * message without a limit, which is the fastest way to wait for a single flow. The call waits only
 * for the first message. Flows of tcp:// and unix:// names have no messages: their buffers hold
 * the bytes that have arrived.
 *
 * The bytes do not change until xio_release() or xio_commit(), not even after xio_close(). A
 * trusted peer (enum xio_trust) could change them; it has guaranteed not to.
 *
 * Returns the number of messages, 0 if none arrived in time, or -1 and errno.
 *
 * Errors:
 *   ENODATA     the peer has ended its direction, and all that it sent has been obtained
 *   ECONNRESET  the peer ended without that; all that could be delivered has been obtained
 *   ENOSPC      the caller holds too many buffers: release some, after copying them if necessary
 *   EINVAL      limit is below 1
 */
int xio_getreadbuf(xio_handle handle, struct xio_buffer *buffers, int limit, int timeout_ms);

/*
 * Allocates buffers for messages, at most limit of them, each of that many bytes (paper, Table 2).
 * XIO_ANY stands for a size that suits long transfers. Fill them, and commit them in the order of
 * the array. This call implements back-pressure: there may be room for fewer buffers or for none.
 *
 * timeout_ms: 0 to take the available room; below 0 to wait for the first buffer without a limit.
 *
 * Returns the number of buffers, 0 if there was no room in time, or -1 and errno.
 *
 * Errors:
 *   EMSGSIZE    no message of the flow may be that long: mp_error() names the limit
 *   EPIPE       xio_shutdown() has ended this direction
 *   ECONNRESET  the peer has ended
 *   ENOSPC      the caller holds too many buffers: commit or release some
 *   EINVAL      limit is below 1
 */
int xio_getwritebuf(xio_handle handle,
                    size_t bytes,
                    struct xio_buffer *buffers,
                    int limit,
                    int timeout_ms);

/*
 * Releases a buffer: returns the memory of a message, or frees unused room (paper, Table 2).
 * Buffers may be released in any order. *buffer is cleared.
 *
 * Errors:
 *   ESTALE  the caller does not hold the buffer (any more)
 */
int xio_release(struct xio_buffer *buffer);

/*
 * Commits a buffer for writing to a flow (paper, Table 2): its first buffer->bytes bytes are one
 * message. They must not change afterwards. *buffer is cleared.
 *
 * A write buffer goes to its own flow, and never has to wait. A message that has arrived may go to
 * any flow of the thread, also to its own (paper, section 3.1.3): it is copied into memory of that
 * flow's transport, and released.
 *
 * If the call fails with one of the errors below, the buffer still belongs to the caller; so does
 * a message after any error. If it fails otherwise, the flow is broken; a write buffer is lost,
 * and *buffer is cleared.
 *
 * Errors:
 *   ESTALE    the caller does not hold the buffer (any more)
 *   EBADF     handle is unknown, or closed
 *   EINVAL    buffer->bytes is more than there was; or it was changed and the buffer is a message
 *   EXDEV     a write buffer belongs to another flow than handle
 *   EAGAIN    a message: the flow that should send it has no room now; xpoll() reports room
 *   EMSGSIZE  a message: longer than the flow that should send it permits
 *   EPIPE     a message: xio_shutdown() has ended this direction
 */
int xio_commit(xio_handle handle, struct xio_buffer *buffer);

/*
 * Hands over the messages that xio_batch() holds back.
 *
 * Returns 1; 0 if the peer takes no more now: then call it again; or -1 and errno.
 */
int xio_flush(xio_handle handle);

/*
 * Sets the number of commits that collect before the peer is notified of them; xio_flush()
 * notifies it of fewer. With 1, the default, each commit notifies it.
 *
 * Errors:
 *   EINVAL  commits is below 1
 */
int xio_batch(xio_handle handle, int commits);

/*
 * Ends this direction of a flow: the peer obtains what was committed, then ENODATA. The other
 * direction stays open.
 */
int xio_shutdown(xio_handle handle);

/*
 * Closes a flow or listener. The peer of a flow obtains what was committed, then ENODATA; what the
 * peer still sends is discarded.
 *
 * The call waits, for xio_options.linger_ms at most, until the system or the peer has taken what
 * was committed. Data that is then in a socket reaches the peer as long as this process lives.
 * xio_undelivered() counts messages that cannot be delivered. xio_close_wait() waits longer and
 * reports the result.
 *
 * Buffers of the flow still belong to the caller, and their memory stays valid, until
 * xio_release() or, for messages, xio_commit() to another flow. Flows that wait in a listener are
 * refused.
 */
int xio_close(xio_handle handle);

/*
 * Closes a flow and waits until everything that was committed is delivered; xio_close() waits for
 * less. A message is delivered when the peer can read it even if this process ends: it is in
 * shared memory, in a pipe, or in the peer's system, which has acknowledged it. Only an answer of
 * the peer shows that it has obtained the message.
 *
 * timeout_ms: the longest time to wait; 0 to return at once, below 0 to wait without a limit.
 * undelivered may be NULL; else *undelivered is the number of messages that were not delivered.
 *
 * The flow is closed even if the call fails, except with EBADF and EOPNOTSUPP.
 *
 * Errors:
 *   ETIMEDOUT   not everything was delivered in time, or the peer has ended: mp_error() says how
 *               much; what a socket has taken may arrive later
 *   EOPNOTSUPP  the handle is a listener
 */
int xio_close_wait(xio_handle handle, int timeout_ms, uint64_t *undelivered);

/*
 * Counts the messages that closed flows of an end-point have not delivered: the peer had ended, or
 * took nothing for xio_options.linger_ms. The count of a program without such errors is 0. -1 and
 * errno if the call fails.
 */
int64_t xio_undelivered(struct xio_context *context);

/*
 * The epoch of new write buffers of a flow: starts at 1 and grows by one with each move. -1 and
 * errno if the call fails.
 */
int64_t xio_epoch(xio_handle handle);

/*
 * The transport of new write buffers of a flow, such as "mempipe-futex-safe" (paper, Table 1). The
 * string is always valid. NULL and errno if the call fails.
 */
const char *xio_transport(xio_handle handle);

/*
 * Requests a move to another transport, named as xio_transport() names it. Data is transferred
 * meanwhile, and xio_getevent() reports the result.
 *
 * Errors:
 *   EINVAL  there is no such transport: mp_error() lists the transports
 */
int xio_move(xio_handle handle, const char *transport);

/*
 * Takes the oldest event of a flow that was not taken yet (paper, section 3.1.4). You need not
 * take events: the flow works without, and discards old ones.
 *
 * Returns 1, or 0 if there is none, or -1 and errno.
 */
int xio_getevent(xio_handle handle, struct xio_event *event);

/* Reports the peer of a flow. */
int xio_peer(xio_handle handle, struct xio_peer_info *peer);

/*
 * Copies the flow's counters into *counters. bytes is its size: pass sizeof *counters. Fields that
 * this version of the library does not have are set to 0.
 */
int xio_statistics(xio_handle handle, struct xio_counters *counters, size_t bytes);

/*
 * Waits until something is ready: of descriptors as poll(2) does, and of flows and listeners
 * (paper, Table 2).
 * fds may be NULL if nfds is 0, and flows if count is 0. timeout_ms: 0 to return at once, below 0
 * to wait without a limit. A condition that still holds is reported again. A flow may be reported
 * as ready without reason: use calls that do not wait.
 *
 * Returns the number of entries with revents, 0 if the time is up, or -1 and errno.
 *
 * Errors:
 *   EINTR   a signal handler ran
 *   EINVAL  there are more entries than descriptors may be open
 */
int xpoll(struct pollfd *fds, size_t nfds, struct xio_poll *flows, size_t count, int timeout_ms);

/*
 * The descriptor of a flow or listener (paper, section 3.1.4), the same until xio_close(). It
 * becomes readable for poll(2), epoll(7) and similar calls when xpoll() would report the handle.
 * Do nothing else with it: it belongs to the library.
 *
 * Returns the descriptor, or -1 and errno.
 *
 * Errors:
 *   EMFILE  there is no descriptor left
 */
int xio_descriptor(xio_handle handle);

/*
 * Makes a flow or listener a member of a channel of megapipe.h. From then on mp_dispatch() returns
 * an MP_POLL with this cookie when xpoll() would report the handle, between the completions of
 * sockets and files.
 *
 * An event is reported once: obtain all messages, until xio_getreadbuf() returns 0, or accept
 * until EAGAIN; else the next event may not come. mp_unregister() of the returned handle ends the
 * watch; call it before xio_close().
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
