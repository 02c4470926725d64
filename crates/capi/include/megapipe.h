/*
 * megapipe.h - the channel of MegaPipe for C and C++: libmegapipe
 *
 * Made by `cargo xtask header`; change the comments in crates/capi/src instead.
 *
 * A thread creates a channel, registers sockets, pipes and files with it, submits requests, and
 * takes completions from it. A request returns at once; its result arrives as an event with its
 * command, from mp_dispatch() or mp_dispatch_batch(). The ping-pong server of the report's
 * Listing 3.1 is examples/c/ping_pong.c. A server that answers every request with a head and a
 * file (the full program is examples/c/send_file.c):
 *
 *     struct mp_event ev;
 *     int count;
 *
 *     mp_accept(listener, 0, MP_LWSOCKET | MP_WITH_PEER);
 *     while ((count = mp_dispatch(channel, &ev, -1)) >= 0) {
 *         if (count == 0)
 *             continue;
 *         if (ev.cmd == MP_ACCEPT && !ev.error) {
 *             mp_handle peer = mp_register(channel, ev.fd, NULL, NULL);
 *             if (peer == MP_NONE) {
 *                 mp_refuse(channel, ev.fd, MP_RESET);
 *                 continue;
 *             }
 *             print_address(ev.data, ev.size);
 *             mp_set_timeout(peer, MP_IN, 10000);
 *             mp_recv(peer, 0);
 *         } else if (ev.cmd == MP_RECV) {
 *             if (!ev.error && ev.size > 0) {
 *                 mp_release(channel, ev.buffer);
 *                 mp_write_more(ev.handle, head, head_size);
 *                 mp_send_file(ev.handle, file, 0, file_size);
 *             }
 *             mp_close(ev.handle);
 *         }
 *     }
 *
 * mp_dispatch() returns 0 without an event when a signal handler has run, or when the process was
 * stopped and continued (SIGSTOP, SIGCONT). The close of a client that has ended, has sent nothing
 * for 10 s or has failed takes effect at once; that of the others when all is written. A client
 * that then reads nothing is reset after mp_options.close_timeout_ms.
 *
 * The report: Sangjin Han, A Programming Interface for Scalable Network Socket I/O,
 * UCB/EECS-2016-125.
 *
 * Errors. A call that fails returns -1 (or NULL) and sets errno; mp_error() describes the failure
 * and the remedy. Nothing was submitted then. Besides the errors that each call names:
 *   EBADF            the handle or channel is unknown: ended, or (a handle) another thread's
 *   EPERM            the channel is another thread's, or was created before a fork
 *   EFAULT           a pointer is NULL that must not be
 *   EAGAIN           a request: a queue is full, or mp_options.output_limit bytes wait to be
 *                    written to the handle; dispatch some events, then submit it again
 *   EOPNOTSUPP       a request: not for this kind of handle, such as an accept on a pipe
 *   EDEADLK          called by a signal handler that interrupted a call on the same channel
 *   ENOTRECOVERABLE  a defect of the library; the channel can only be destroyed
 * The event of a request that fails has the errno in mp_event.error. Each request has exactly one
 * last event (without MP_MORE), unless its handle is unregistered, closed or aborted before.
 *
 * Memory of requests belongs to the caller. The kernel uses it from the call to the last event:
 * meanwhile it must stay valid, and nothing else may change it. After mp_close() or mp_abort() the
 * kernel uses it until MP_CLOSE. After mp_unregister() no event reports when it is free: if you
 * need to know, first cancel the requests and await their events, or close the handle.
 * mp_destroy() frees all of it.
 *
 * Buffers of mp_recv() belong to the channel; the caller holds them from the event to mp_release()
 * or mp_write_buffer(). While the caller holds all of them, receiving waits; nothing is lost. Hold
 * a buffer only while you handle its message. If buffers are short, mp_write_buffer() copies bytes
 * that wait behind other writes.
 *
 * Limits. A peer that does not read must not make the program store more and more for it: while
 * mp_options.output_pause bytes wait to be written, MP_REPEAT receives of the handle pause, and
 * from output_limit on a further write fails with EAGAIN. mp_queued() returns the number of bytes.
 *
 * Ends. mp_close() is the normal way to end a connection: it writes the queued output first.
 * mp_abort() resets the connection. mp_unregister() returns a descriptor, for further use.
 *
 * Threads. A channel belongs to the thread that created it. Signal handlers must not call this
 * library. After a fork the channel belongs to the parent: create one in the child.
 *
 * Leaving a call. Do not leave a call of this library by siglongjmp(3), longjmp(3), an exception
 * of a signal handler, or pthread_cancel(3): not even mp_dispatch(). This would skip its frames
 * in the middle of a change. After a jump every call on the channel fails with EDEADLK,
 * mp_destroy() too. A cancellation that takes effect in a call ends the process by SIGABRT. To
 * end a wait from elsewhere, register an eventfd(2) or a pipe, mp_read() from it, and write to
 * it in the other thread or in the signal handler; for signals alone, register a signalfd(2). A
 * signal handler that returns makes mp_dispatch() return 0. A thread that may be cancelled calls
 * pthread_setcancelstate(3) with PTHREAD_CANCEL_DISABLE before it creates a channel.
 *
 * Linking. `pkg-config --libs megapipe`. The static library needs what `pkg-config --static` names;
 * a program without any shared library links gcc's archive in the place of its shared library: cc
 * -static server.c $(pkg-config --static --cflags --libs megapipe | sed 's/-lgcc_s/-lgcc_eh/')
 *
 * Restart. After a process with an io_uring channel was killed, the kernel takes up to 0.2 s to
 * close its sockets, and bind(2) fails with EADDRINUSE meanwhile. mp_listen() waits for that.
 *
 * Order. Requests of one direction of a handle are executed in the order of submission; each
 * begins when the one before it has ended. The two directions are independent. Accepts, polls and
 * transfers at an offset have no order.
 *
 * Needs Linux 6.1 or later for io_uring, else 4.14 or later for epoll. Both have the same meaning,
 * see enum mp_driver_choice.
 */

#ifndef MEGAPIPE_H
#define MEGAPIPE_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* No handle. */
#define MP_NONE (-1)

/* Lightweight sockets are numbered from 2^30 on, above all file descriptors. */
#define MP_LWSOCKET_FIRST (1 << 30)

/* For mp_accept(): lightweight sockets. */
#define MP_LWSOCKET 1

/* For mp_accept(): the address of each peer. */
#define MP_WITH_PEER 2

/* In mp_event.flags: further completions of the same request follow. */
#define MP_MORE 1

/*
 * In mp_event.flags of an MP_RECVFROM: the datagram was longer than the buffer and has lost its
 * end.
 */
#define MP_TRUNCATED 2

/*
 * For mp_recv(), mp_recvfrom() and mp_poll(): one completion for each result, until cancelled, the
 * end or an error.
 */
#define MP_REPEAT 1

/* For mp_refuse(): the connection is reset. */
#define MP_RESET 1

/* For mp_cancel(), mp_set_timeout(): reads and receives. */
#define MP_IN 1

/* For mp_cancel(), mp_set_timeout(): connects, writes and shutdowns. */
#define MP_OUT 2

/* For mp_options.linger_us: never linger. */
#define MP_NEVER UINT32_MAX

/* The command of a completed request, in mp_event.cmd. */
typedef enum mp_command {
    MP_ACCEPT = 1, /* mp_accept() */
    MP_CONNECT, /* mp_connect(), mp_connect_to() */
    MP_READ, /* mp_read() */
    MP_WRITE, /* mp_write(), mp_write_more(), mp_write_buffer() */
    MP_READV, /* mp_readv() */
    MP_WRITEV, /* mp_writev() */
    MP_RECV, /* mp_recv() */
    MP_PREAD, /* mp_pread() */
    MP_PWRITE, /* mp_pwrite() */
    MP_DISCONNECT, /* mp_disconnect(), mp_shutdown() */
    MP_POLL, /* mp_poll() */
    MP_CLOSE, /* mp_close() */
    MP_PEER_ADDRESS, /* mp_request_peer_address() */
    MP_TIMER, /* mp_timer() */
    MP_PEEK, /* mp_peek() */
    MP_SEND_FILE, /* mp_send_file() */
    MP_SENDMSG, /* mp_sendmsg() */
    MP_RECVMSG, /* mp_recvmsg() */
    MP_SENDTO, /* mp_sendto() */
    MP_RECVFROM, /* mp_recvfrom() */
    MP_FSYNC /* mp_fsync(), mp_fdatasync() */
} mp_command;

/* The choice of a channel's driver. */
typedef enum mp_driver_choice {
    /*
     * io_uring (Linux 6.1 or later), else epoll; or the driver that the environment variable
     * MEGAPIPE_DRIVER names (auto, uring, epoll or mtcp).
     */
    MP_DRIVER_AUTO = 0,
    MP_DRIVER_URING = 1, /* io_uring; without it mp_create() fails. */
    MP_DRIVER_EPOLL = 2, /* epoll(7) and non-blocking calls (Linux 4.14 or later). */
    /* As MP_DRIVER_AUTO, and the stack of the file in MTCP_CONFIG for addresses that it routes. */
    MP_DRIVER_MTCP = 3
} mp_driver_choice;

/* A channel. It belongs to the thread that created it. */
typedef struct mp_channel mp_channel;

/*
 * The settings of a channel, for mp_create(). 0 in a field stands for its default, so start with {
 * 0 }. So a program that was compiled with an older header keeps its meaning.
 */
typedef struct mp_options {
    /* One of enum mp_driver_choice. */
    uint32_t driver;
    /*
     * Number of collected requests that are handed to the kernel in one call: 1 to 1024, default
     * 32 (report, section 3.4.3).
     */
    uint32_t batch;
    /* Maximum number of completions of one wait: a power of two from 64 to 65536, default 4096. */
    uint32_t completions;
    /* Maximum number of handles at once: at most and by default 1048575. */
    uint32_t max_handles;
    /* Maximum number of outstanding requests; default 2097152. */
    uint32_t max_requests;
    /*
     * Maximum number of lightweight sockets with io_uring, connected ones included; default
     * 131072, reduced to RLIMIT_NOFILE. With epoll each uses a descriptor.
     */
    uint32_t max_lwsockets;
    /*
     * Longest time that a busy channel waits in the kernel for further completions, in
     * microseconds: at most 1000000, default 200; MP_NEVER disables it.
     */
    uint32_t linger_us;
    /* Buffers of mp_recv() for small messages: a power of two from 2 to 32768, default 1024. */
    uint32_t small_buffers;
    /* Bytes of each of them: 256 to 16777216, default 4160. */
    uint32_t small_buffer_bytes;
    /* Buffers for streams that fill small ones: default 64, with the same range. */
    uint32_t large_buffers;
    /* Bytes of each of them: default 66048, with the same range. */
    uint32_t large_buffer_bytes;
    /*
     * How often an idle channel takes connections from the queues of busy ones that share its
     * listener, in microseconds; 0 for never.
     */
    uint32_t steal_interval_us;
    /*
     * 1: connections always go to the channel of their CPU. 0: new connections are distributed at
     * random to all channels that share a listener, while the CPUs distribute them very unequally.
     * With two channels that means that one of them accepts nine times as many as the other; with
     * more, that less than about half of the channels accept all connections. A 1 in any channel
     * of a listener applies to all of them.
     */
    uint32_t keep_steering;
    /*
     * MP_REPEAT receives of a handle pause while more than this many bytes wait behind its current
     * write, until half of them are written: the channel does not read from a peer that does not
     * read. Default 262144.
     */
    uint32_t output_pause;
    /*
     * Maximum number of bytes that may wait behind the current write of a handle; a further write
     * fails with EAGAIN. One write may have any size. Default 67108864.
     */
    uint32_t output_limit;
    /*
     * How long a handle in mp_close() may make no progress with its queued output before it is
     * aborted with ETIMEDOUT, in milliseconds. Default 60000.
     */
    uint32_t close_timeout_ms;
    /*
     * 1: the writes of a handle still have their events after mp_close() or mp_abort(), before
     * MP_CLOSE, with ECANCELED if they were discarded: for a program that frees what a write uses
     * at its event. Default 0.
     */
    uint32_t events_after_close;
    /*
     * Maximum number of accepted connections that are open: those that are registered, until they
     * are closed, and lightweight sockets that wait to be registered. At the limit the channel
     * stops accepting on all of its listeners, without an event: clients wait in the kernel's
     * accept queues, and are accepted when others are closed. Default 0: no limit.
     */
    uint32_t max_connections;
    /* Must be zero. */
    uint32_t reserved;
} mp_options;

/*
 * Counts since the channel was created, from mp_statistics(). They wrap at 2^64. Later versions
 * add fields at the end.
 */
typedef struct mp_counters {
    /* Requests that were submitted. */
    uint64_t requests;
    /* Completions that mp_dispatch() delivered. */
    uint64_t completions;
    /* Operations handed to the driver, including continued ones. */
    uint64_t operations;
    /* System calls made for requests and completions. */
    uint64_t system_calls;
    /* Times the channel slept or polled the kernel for completions. */
    uint64_t waits;
    /* Completions that those waits returned; divided by waits, the mean batch. */
    uint64_t batched;
    /* The largest number of completions that one wait returned. */
    uint64_t largest_batch;
    /* Receives that had to wait because the caller held all buffers. */
    uint64_t buffer_waits;
    /* Times the completion queue overflowed and the kernel kept completions in its own list. */
    uint64_t overflows;
    /* Requests refused because a queue was full. */
    uint64_t refused;
    /* Completions dropped because their handle had been unregistered. */
    uint64_t cancelled;
    /* Connections taken from the queue of a busy channel. */
    uint64_t stolen;
    /* Accept queues taken over from channels that ended. */
    uint64_t adopted;
    /* Connections that were closed because no channel was left to take them over. */
    uint64_t orphaned;
    /*
     * Times this channel started to distribute connections at random because they were very
     * unequal.
     */
    uint64_t rebalanced;
} mp_counters;

/*
 * A member of a channel, from mp_register(): 0 or more; -1 is none.
 *
 * It also identifies its channel. After mp_unregister() or mp_abort() every call with it fails
 * with EBADF, even when its index has been reused, and so does every call in another thread; after
 * mp_close() every call but mp_abort() does. So does every call with a handle that was kept in an
 * `int`, which has lost its high bits.
 */
typedef int64_t mp_handle;

/* One completion (report, section 3.5), from mp_dispatch(). */
typedef struct mp_event {
    /* One of enum mp_command. */
    uint32_t cmd;
    /* 0, or a combination of MP_MORE and MP_TRUNCATED. */
    uint32_t flags;
    /* The handle of the request; of MP_CLOSE, the one that has ended. */
    mp_handle handle;
    /* The cookie that was given to mp_register(). */
    void *cookie;
    /*
     * 0, or the errno with which the request failed. Then only these fields below have a meaning:
     * data (except of MP_RECV, MP_RECVFROM, MP_PEER_ADDRESS and MP_ACCEPT, where it is NULL),
     * offset, and address of MP_SENDTO, as without an error; and size, which is the number of
     * bytes that the kernel had taken of a write, message or file, and else 0.
     */
    int32_t error;
    /*
     * MP_ACCEPT: the new connection, for mp_register(); a descriptor, which is the caller's, or
     * the number of a lightweight socket, MP_LWSOCKET_FIRST or more, on every driver. Else -1.
     */
    int32_t fd;
    /*
     * Number of bytes read, received, written or sent; 0 of a read or receive is the end, but see
     * buffer. Of a write that has failed: of these the peer may not have got all.
     */
    size_t size;
    /*
     * MP_RECV, MP_RECVFROM: the bytes, in a buffer of the channel, until mp_release() of it.
     * MP_READ, MP_PEEK, MP_WRITE, MP_PREAD, MP_PWRITE, MP_SENDTO: the address that was given with
     * the request. MP_SENDMSG, MP_RECVMSG: the struct msghdr. MP_PEER_ADDRESS, MP_ACCEPT with
     * MP_WITH_PEER: a struct sockaddr of size bytes, until the next dispatch.
     */
    void *data;
    /*
     * MP_RECV, MP_RECVFROM: the buffer, for mp_release() or mp_write_buffer(); -1 at the end. This
     * distinguishes an empty message of a SOCK_SEQPACKET socket, which has a buffer, from the end.
     * Else -1.
     */
    int64_t buffer;
    /* MP_ACCEPT: the number of further connections that were waiting. */
    uint32_t pending;
    /* MP_POLL: the pending events of poll(2). */
    uint32_t revents;
    /* MP_PREAD, MP_PWRITE: the offset that was given with the request. */
    uint64_t offset;
    /* MP_TIMER: the number of expirations of the timer since the last event. */
    uint64_t count;
    /*
     * MP_RECVFROM: the address of the sender, until the next dispatch. MP_SENDTO: the pointer that
     * was given with the request, which the channel has not used since then. Else NULL.
     */
    const struct sockaddr *address;
    /* MP_RECVFROM: the size of that address. */
    socklen_t address_size;
    /* 0; later versions may use it. */
    uint32_t reserved;
} mp_event;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Creates a channel for the calling thread (report, Table 3.1).
 *
 * options may be NULL for the defaults; they are read during the call only. If io_uring is
 * unavailable or too old, or has no memory for a ring, MP_DRIVER_AUTO falls back to epoll, and
 * mp_driver_reason() gives the reason; it does not hide a lack of descriptors.
 *
 * When a thread ends without mp_destroy(), its channels are destroyed. After a fork the channel
 * belongs to the parent: calls in the child fail with EPERM; create a channel there.
 *
 * Returns the channel, or NULL and errno.
 *
 * Errors:
 *   EINVAL  an option is out of range, or MEGAPIPE_DRIVER names no driver
 *   EBUSY   every engine of the stack has its channel: raise engine.cores
 *   EMFILE  1024 channels exist in the process, or there is no descriptor left
 *   ENOMEM, EPERM, ENOSYS, ...  the kernel refuses the channel: mp_error() names the remedy
 */
struct mp_channel *mp_create(const struct mp_options *options);

/*
 * Checks whether the locked memory for the io_uring rings of `channels` channels is free, before
 * they are created with these options in this or another process of the user.
 *
 * From Linux 6.14 on, the rings of all processes of a user share RLIMIT_MEMLOCK, often 8 MiB; a
 * ring takes 104 KiB by default, and nothing in processes with CAP_IPC_LOCK. If there is too
 * little for all, MP_DRIVER_AUTO gives some channels a ring and others epoll: choose
 * MP_DRIVER_EPOLL for all instead, so that connections are served at the same cost. The memory is
 * not reserved. Call it with the user and the capabilities with which the channels are created.
 * options may be NULL for the defaults.
 *
 * Succeeds where the kernel permits no ring, and if the options or MEGAPIPE_DRIVER name a driver:
 * mp_create() with MP_DRIVER_URING fails without a ring.
 *
 * Errors:
 *   ENOMEM  there is too little; mp_error() names both numbers and the remedy
 *   EINVAL  an option is out of range, or MEGAPIPE_DRIVER names no driver
 */
int mp_check_locked_memory(const struct mp_options *options, uint32_t channels);

/*
 * Destroys a channel. Its pending requests are cancelled and never delivered.
 *
 * It closes lightweight sockets, including those that were accepted and not registered, and
 * descriptors whose mp_close() is not complete; it resets those that have output left, after a
 * second if mp_close() was called. Other descriptors stay open and belong to the
 * caller again. Buffers of mp_recv() become invalid. The caller may use the memory of requests
 * again after the return, unless a device keeps the kernel busy for more than two seconds, the
 * longest time that the call waits. The channel's shares of a listener go to the other channels
 * that share it.
 *
 * Errors:
 *   EDEADLK  called in a signal handler that interrupted a call on this channel
 */
int mp_destroy(struct mp_channel *channel);

/*
 * The driver of a channel: "uring", "epoll" or "mtcp"; NULL and errno if there is no such channel.
 */
const char *mp_driver(struct mp_channel *channel);

/* The reason why the channel has its driver, as text for people. Valid until mp_destroy(). */
const char *mp_driver_reason(struct mp_channel *channel);

/*
 * Copies the channel's counters into *counters. bytes is its size: pass sizeof *counters. Fields
 * that this version of the library does not have are set to 0.
 */
int mp_statistics(struct mp_channel *channel, struct mp_counters *counters, size_t bytes);

/* The version of the library, such as "0.1.0". */
const char *mp_version(void);

/*
 * Makes a descriptor or an accepted lightweight socket a member of a channel (report, Table 3.1).
 *
 * fd is a socket, pipe, FIFO, terminal, disk file, eventfd(2), timerfd_create(2) or signalfd(2);
 * or mp_event.fd of an MP_ACCEPT. Each event of the member has its cookie.
 *
 * The channel uses the descriptor until mp_unregister() or mp_destroy(), which return it to the
 * caller; mp_close() and mp_abort() close it. Do not close it meanwhile. If registering fails, for
 * any reason, the descriptor stays open and belongs to the caller, and a lightweight socket can be
 * registered again. While a pipe, terminal or (epoll) listening socket is registered, its
 * O_NONBLOCK is set.
 *
 * cpu_mask, for a listening TCP socket: this channel gets an accept queue of its own for the
 * connections whose handshake runs on those CPUs (report, section 3.4.1). Each thread registers
 * the same listener with its CPUs in its own channel. Connections of CPUs that no channel claims
 * wait in the original, which one of the threads may register without a mask. While the masks
 * cover all CPUs that are online, one of the channels accepts from the original as well, in which
 * connections from before the call wait. The original belongs to the caller. NULL for all other
 * descriptors.
 *
 * Returns the handle, or -1 and errno.
 *
 * Errors:
 *   EBADF       fd is not open, or not a lightweight socket that waits to be registered here
 *   EISDIR      fd is a directory
 *   ENFILE      mp_options.max_handles are registered
 *   EINVAL      cpu_mask is empty or names impossible CPUs, or the socket does not listen
 *   EBUSY       other channels have claimed some of these CPUs
 *   EADDRINUSE  SO_REUSEPORT is set already, by something else
 *   EOPNOTSUPP  cpu_mask was given for something other than a TCP socket
 *   EACCES      the listener was created under another user id
 */
mp_handle mp_register(struct mp_channel *channel, int fd, void *cookie, const cpu_set_t *cpu_mask);

/*
 * Ends a connection of an MP_ACCEPT without registering it: fd is mp_event.fd, a descriptor or a
 * lightweight socket, and is closed. Ignoring the event would leave the client waiting. It takes
 * no handle, so it also works when mp_options.max_handles are registered.
 *
 * flags: 0 to close the connection, of which the client sees the end (or a reset, if it had sent
 * anything); MP_RESET to reset it. Takes effect with the next mp_flush(), or when mp_dispatch()
 * has no event to return at once.
 *
 * Errors:
 *   EBADF   fd is not open, or not a lightweight socket that waits to be registered here
 *   EINVAL  flags are unknown
 */
int mp_refuse(struct mp_channel *channel, int fd, int flags);

/*
 * Pairs two handles, such as both connections of a proxy: from now on the MP_REPEAT receives of
 * each pause while more than mp_options.output_pause bytes wait to be written to the other, and
 * not while its own output waits. A pair ends when one of its handles is closed, aborted,
 * unregistered or paired with another; a handle that is paired with itself has no partner.
 *
 * Errors:
 *   EBADF       other is not a handle of the same channel
 *   EOPNOTSUPP  one of them is not a stream, a packet or datagram socket, or a pipe
 */
int mp_pair(mp_handle handle, mp_handle other);

/*
 * Takes a descriptor out of the channel, to use it without the channel (report, Table 3.1): it
 * stays open and belongs to the caller again. Pending requests, writes included, are cancelled and
 * never delivered, except those that an mp_dispatch_batch() has delivered already. To end a
 * connection use mp_close().
 *
 * A lightweight socket cannot exist without its channel: it is closed, on every driver, after its
 * queued writes, without an event. Connections that a listener has accepted and not delivered are
 * closed.
 *
 * No event reports when the kernel no longer uses the memory of the handle's requests; it is free
 * after mp_destroy() only. To use or free that memory earlier, use mp_close() or mp_abort(), whose
 * MP_CLOSE reports it, or first cancel the requests and await their events.
 */
int mp_unregister(mp_handle handle);

/*
 * Closes a handle after all submitted writes are written: the normal way to end a connection.
 * Inbound requests are cancelled and never delivered. The events of the writes come only with
 * mp_options.events_after_close. One MP_CLOSE, with the cookie, is the last event. By then the
 * descriptor or lightweight socket is closed, and the memory of all requests of the handle belongs
 * to the caller.
 *
 * If a queued write fails, the event has its error and the handle is aborted; so it is if a write
 * had failed part-way before. If the peer takes nothing for
 * mp_options.close_timeout_ms, the handle is aborted, and the error is ETIMEDOUT. mp_abort() ends
 * the wait at once. A listener's connections that were accepted and not delivered are closed.
 *
 * A stream socket that has waited for its output for 5 ms discards what its peer sends. If
 * anything came, it continues after all is written until the peer ends its direction or has sent
 * nothing for 2 s, for 30 s and 64 MiB at most, because unread input would turn the close into a
 * reset. This does not happen if mp_to_fd() was called.
 */
int mp_close(mp_handle handle);

/*
 * Closes a handle at once, even one that is in mp_close(), and discards its queued output. A TCP
 * connection is reset, so that the peer does not mistake a part of the data for the whole.
 * Otherwise as mp_close(): exactly one MP_CLOSE is the last event.
 */
int mp_abort(mp_handle handle);

/*
 * The cookie of a handle; NULL and errno if it is not registered. On success errno does not
 * change, because the cookie may be NULL, too.
 */
void *mp_cookie(mp_handle handle);

/* Changes the cookie of a handle, also for requests that were submitted before. */
int mp_set_cookie(mp_handle handle, void *cookie);

/*
 * Accepts connections on a listener: one MP_ACCEPT for each (report, Table 3.1).
 *
 * count: how many connections; 0 for all until mp_cancel(). Counts of several calls add up. flags:
 * 0, or a combination of these:
 *   MP_LWSOCKET   lightweight sockets, which belong to the channel (report, section 3.4.2). They
 *                 have numbers from MP_LWSOCKET_FIRST on and behave the same on every driver. With
 *                 io_uring (Linux 6.8) they have no descriptor; else each has one, which belongs
 *                 to the channel. The value is 1, as the report's is_lwsocket.
 *   MP_WITH_PEER  the address of each peer: the event's data is a struct sockaddr of size bytes,
 *                 until the next dispatch. NULL if the driver does not report it. It costs one
 *                 system call for each connection; if the address is not needed at once,
 *                 mp_request_peer_address() costs less.
 *
 * The event's fd is for mp_register(), or for mp_refuse() to end the connection. A descriptor may
 * also be used without the channel and is then for the caller to close; it does not block, and
 * execve(2) closes it. ECANCELED is the last completion after mp_cancel().
 *
 * A transient error has MP_MORE: EMFILE, ENFILE, ENOMEM, and EUSERS if all lightweight sockets of
 * the channel are in use (mp_options.max_lwsockets). The channel accepts again by itself, when a
 * descriptor is free or some time has passed; do not submit another accept. Connections stay in
 * the accept queue meanwhile. Any other error ends the request.
 *
 * Errors:
 *   EBUSY   accepts with other flags are outstanding: cancel them first
 *   EINVAL  count is negative, or flags are unknown
 */
int mp_accept(mp_handle handle, int count, int flags);

/*
 * Connects a socket: one MP_CONNECT. The address is copied. Later requests on the same handle wait
 * for the connection.
 *
 * Errors:
 *   EAFNOSUPPORT  the address is not of AF_INET, AF_INET6 or AF_UNIX
 *   EINVAL        size does not fit the family
 */
int mp_connect(mp_handle handle, const struct sockaddr *address, socklen_t size);

/*
 * Reads at most size bytes: one MP_READ with the available bytes, 0 at the end (report, Table
 * 3.1). From a file: at its position. From a SOCK_SEQPACKET or datagram socket: one message, or
 * EMSGSIZE if it is longer than size. An empty message has size 0, too; mp_recv() distinguishes it
 * from the end. The kernel uses buffer until the event. For connections that are mostly idle
 * mp_recv() needs less memory.
 *
 * Errors:
 *   EINVAL  size is 0 or above SSIZE_MAX
 */
int mp_read(mp_handle handle, void *buffer, size_t size);

/*
 * Writes all of size bytes: one MP_WRITE (report, Table 3.1). To a file: at its position. To a
 * connected datagram socket: one datagram. buffer must not change until the event.
 *
 * The event's size is below the request's only if the write was cancelled half-way, or has failed:
 * then it is what the kernel had taken before the error. A broken socket or pipe is EPIPE and
 * raises no SIGPIPE, whatever the process does about that signal.
 *
 * Errors:
 *   EAGAIN  mp_options.output_limit bytes wait behind the current write: the peer does not read;
 *           await completions, or mp_abort() the handle
 */
int mp_write(mp_handle handle, const void *buffer, size_t size);

/*
 * Reads from a disk file at an offset: one MP_PREAD, which repeats the offset, because many such
 * requests of a handle may be in flight, in no order. Moves at most 2 GiB at a time.
 */
int mp_pread(mp_handle handle, void *buffer, size_t size, uint64_t offset);

/* Writes all of size bytes to a disk file at an offset: one MP_PWRITE, as with mp_pread(). */
int mp_pwrite(mp_handle handle, const void *buffer, size_t size, uint64_t offset);

/*
 * Reads into several pieces of memory, filling one after the other: one MP_READV (report, Table
 * 3.1). The array is copied, the memory it describes is not. count: 1 to 1024.
 *
 * Errors:
 *   EINVAL  count is out of range, or there is no room to read into
 */
int mp_readv(mp_handle handle, const struct iovec *vector, int count);

/*
 * Writes all of several pieces of memory, in order: one MP_WRITEV (report, Table 3.1). The array
 * is copied, the memory it describes is not. count: 0 to 1024.
 *
 * Errors:
 *   EINVAL  count is out of range
 */
int mp_writev(mp_handle handle, const struct iovec *vector, int count);

/*
 * Receives from a stream or pipe (from a datagram socket: mp_recvfrom()) into a buffer of the
 * channel: MP_RECV, with the bytes at the event's data until mp_release() of its buffer. size 0 is
 * the end, which has no buffer.
 *
 * From a SOCK_SEQPACKET socket: one message, or EMSGSIZE if it is longer than
 * mp_options.large_buffer_bytes. An empty message has size 0 and a buffer.
 *
 * flags: 0 for one completion; MP_REPEAT for a completion for each result, until the end, an error
 * or mp_cancel(), which costs less than new requests. Idle connections then use no memory. While
 * the caller holds all buffers, receiving waits; nothing is lost.
 *
 * Errors:
 *   EINVAL  flags are unknown
 */
int mp_recv(mp_handle handle, int flags);

/*
 * Writes bytes of a buffer of mp_recv(), and releases the buffer after they are sent: one
 * MP_WRITE, whose data is NULL. This sends received bytes back without a copy and without
 * bookkeeping. offset and size select a part of the event's bytes. If the call fails, the buffer
 * still belongs to the caller.
 *
 * Errors:
 *   EINVAL  the caller does not hold the buffer, or it has fewer bytes
 */
int mp_write_buffer(mp_handle handle, int64_t buffer, size_t offset, size_t size);

/*
 * Waits until the data of all completed writes of a file, and its metadata, are on the disk, as
 * fsync(2) does: one MP_FSYNC. It has no order with writes in flight, so submit it after their
 * events. Cancelling it does not interrupt the disk.
 *
 * Errors:
 *   EOPNOTSUPP  the handle is not a disk file
 */
int mp_fsync(mp_handle handle);

/*
 * Does the same as mp_fsync(), without metadata such as the file's times, as fdatasync(2) does:
 * one MP_FSYNC.
 */
int mp_fdatasync(mp_handle handle);

/*
 * Waits until a socket or pipe is ready for calls that the caller makes itself: MP_POLL with
 * revents.
 *
 * events: POLLIN, POLLOUT, POLLPRI and POLLRDHUP of poll(2); POLLERR and POLLHUP are always
 * included. flags: 0 for one completion; MP_REPEAT for the pending events at first and then each
 * new one, as edge-triggered epoll(7) does; an event may be reported twice. A handle has one poll
 * at a time; a second one begins when the first has ended.
 *
 * Errors:
 *   EINVAL  events or flags are unknown
 */
int mp_poll(mp_handle handle, uint32_t events, int flags);

/*
 * Shuts a connection down in both directions, after the writes that were submitted before: one
 * MP_DISCONNECT (report, Table 3.1). The handle stays registered.
 */
int mp_disconnect(mp_handle handle);

/*
 * Shuts a connection down as shutdown(2) does, after the writes that were submitted before: one
 * MP_DISCONNECT. how: SHUT_RD, SHUT_WR or SHUT_RDWR.
 *
 * Errors:
 *   EINVAL  how is none of these
 */
int mp_shutdown(mp_handle handle, int how);

/*
 * The number of bytes that were submitted to be written to a handle and that the kernel has not
 * taken yet. The current write counts in full until a part of it completes.
 *
 * Returns the number of bytes, or -1 and errno.
 */
int64_t mp_queued(mp_handle handle);

/*
 * Requests the address of the other side of a connection: one MP_PEER_ADDRESS, whose data is a
 * struct sockaddr of the event's size, until the next dispatch. For a server with many lightweight
 * sockets: it saves the system call of mp_peer_address().
 *
 * The event's errors are those of mp_peer_address().
 */
int mp_request_peer_address(mp_handle handle);

/*
 * Cancels requests of a handle, which stays registered. Each still has its last completion: with
 * ECANCELED, or with its result if that came first. A write in progress ends without an error and
 * with the number of bytes that are written. If these are not all, mp_close() resets the
 * connection, unless a later write goes on.
 *
 * what: MP_IN for reads and receives, MP_OUT for connects, writes and shutdowns, 0 for everything,
 * including accepts, polls and transfers at an offset.
 *
 * Errors:
 *   EINVAL  what is unknown
 */
int mp_cancel(mp_handle handle, int what);

/*
 * Registers a new stream socket of the channel and connects it: one MP_CONNECT with this cookie.
 * The socket is TCP or UNIX, according to the address, which is copied. Later requests wait for
 * the connection.
 *
 * It is a lightweight socket, like those of mp_accept(): with io_uring it has no descriptor, with
 * epoll it has one, which belongs to the channel. If the connect fails, the handle stays, for
 * mp_connect() or mp_close(). To bind a socket or set options before it connects, use
 * mp_register() and mp_connect().
 *
 * Returns the handle, or -1 and errno.
 *
 * Errors:
 *   EAFNOSUPPORT    the address is not of AF_INET, AF_INET6 or AF_UNIX
 *   EINVAL          size does not fit the family
 *   EUSERS          mp_options.max_lwsockets are in use
 *   ENFILE          mp_options.max_handles are registered
 *   EMFILE, ENFILE  there is no descriptor left
 */
mp_handle mp_connect_to(struct mp_channel *channel,
                        const struct sockaddr *address,
                        socklen_t size,
                        void *cookie);

/*
 * Copies at most size bytes that wait in a socket and leaves them there: one MP_PEEK with the
 * available bytes, 0 at the end. The next mp_read(), mp_recv() or mp_peek() finds the same bytes.
 * The kernel uses buffer until the event.
 *
 * The peek waits for the earlier reads of the handle, and completes as soon as any bytes are
 * there; to wait for more, read. From a SOCK_SEQPACKET or datagram socket: one message, or
 * EMSGSIZE, with its beginning in buffer, if it is longer than size.
 *
 * Errors:
 *   EINVAL      size is 0 or above SSIZE_MAX
 *   EOPNOTSUPP  the handle is not a socket
 */
int mp_peek(mp_handle handle, void *buffer, size_t size);

/*
 * Writes all of size bytes as mp_write() does, one MP_WRITE, and tells the kernel that a further
 * write follows at once (MSG_MORE of send(2)). buffer must not change until the event.
 *
 * TCP delays a segment that is not full until that write, but for 200 ms at most: so a head and a
 * body share one even with TCP_NODELAY. End with mp_write(), mp_send_file(), mp_shutdown() or
 * mp_close(), each of which sends all. For sources other than stream sockets, and with
 * MP_DRIVER_MTCP, this is the same as mp_write(); datagrams are not joined.
 *
 * Errors:
 *   EAGAIN  as with mp_write()
 */
int mp_write_more(mp_handle handle, const void *buffer, size_t size);

/*
 * Sends size bytes of a disk file, from offset on, over a stream socket, after the earlier writes
 * of the handle: one MP_SEND_FILE. It reports that all were sent, or an error; fewer bytes only if
 * it was cancelled half-way.
 *
 * file is the handle of the file in the same channel. The file's position does not matter and does
 * not change; the file may be sent to any number of handles at once. It must stay registered: the
 * channel does not send what it has not taken when the file's handle ends. mp_queued() counts all
 * of size.
 *
 * What is in the page cache is sent by sendfile(2), without a copy, if the socket is non-blocking,
 * as connections of mp_accept() and mp_connect_to() are: set O_NONBLOCK of others before you
 * register them. Otherwise the channel alternates reading and sending in pieces of 128 KiB. No
 * disk blocks the thread, and there is no SIGPIPE.
 *
 * The event's errors:
 *   ENODATA  the file ends before offset + size; all its bytes were sent
 *   EBADF    the file's handle has ended
 *
 * Errors:
 *   EBADF       file is not a handle of the same channel
 *   EOPNOTSUPP  handle is not a stream socket, or file not a disk file
 *   EINVAL      offset + size is above 2^63 - 1
 *   EAGAIN      as with mp_write()
 */
int mp_send_file(mp_handle handle, mp_handle file, uint64_t offset, size_t size);

/*
 * Sends a datagram to an address: one MP_SENDTO, whose data is buffer. The event's address is the
 * pointer that was given here, so that a buffer can be sent to many. What address points to is
 * copied; the kernel uses buffer until the event. Datagrams of a handle are sent one after the
 * other, in the order of the calls. On a connected socket use mp_write().
 *
 * Event errors: those of sendto(2), such as EMSGSIZE. An earlier datagram that a host refused may
 * fail this one with ECONNREFUSED.
 *
 * Errors:
 *   EOPNOTSUPP    the handle is not a datagram socket
 *   EAFNOSUPPORT  the address is not of AF_INET, AF_INET6 or AF_UNIX
 *   EINVAL        size is above SSIZE_MAX, or address_size does not fit the family
 *   EAGAIN        as with mp_write()
 */
int mp_sendto(mp_handle handle,
              const void *buffer,
              size_t size,
              const struct sockaddr *address,
              socklen_t address_size);

/*
 * Receives a datagram with the address of its sender into a buffer of the channel: MP_RECVFROM,
 * with the bytes at the event's data until mp_release() of its buffer, and the sender at the
 * event's address until the next dispatch. An empty datagram has size 0 and a buffer. A UNIX
 * socket without a name sends from an address of its family alone.
 *
 * flags: 0 for one completion; MP_REPEAT for one for each datagram, until an error or mp_cancel():
 * mp_dispatch_batch() then takes many datagrams with one call.
 *
 * A datagram that is longer than a buffer loses its end, and its event has MP_TRUNCATED in flags:
 * raise mp_options.large_buffer_bytes. The default has room for every UDP datagram. Event errors
 * are those of recvmsg(2).
 *
 * Errors:
 *   EOPNOTSUPP  the handle is not a datagram socket
 *   EINVAL      flags are unknown
 */
int mp_recvfrom(mp_handle handle, int flags);

/*
 * Sends a message as sendmsg(2) does: one MP_SENDMSG, whose data is message.
 *
 * Over a stream all bytes are sent, as by mp_write(), and the ancillary data travels once, with
 * the first byte. A datagram socket sends one datagram, to msg_name if there is one. Descriptors
 * (SCM_RIGHTS, at most 253) travel over UNIX sockets; they belong to the caller and must stay open
 * until the event. IP_PKTINFO and IPV6_PKTINFO choose the address and interface from which a
 * datagram leaves. The message, its array, name and ancillary data are copied; the kernel uses the
 * bytes until the event. A broken socket raises no SIGPIPE.
 *
 * Event errors, besides those of sendmsg(2):
 *   EOPNOTSUPP  ancillary data, on a connection of the mtcp driver
 *
 * Errors:
 *   EINVAL  msg_iovlen is above 1024, or descriptors: more than 253, on other than a UNIX socket,
 *           or without a byte over a stream, which would lose them
 *   EAGAIN  mp_options.output_limit bytes wait behind the current write
 */
int mp_sendmsg(mp_handle handle, const struct msghdr *message);

/*
 * Receives a message as recvmsg(2) does: one MP_RECVMSG, whose data is message, with msg_namelen,
 * msg_controllen and msg_flags filled in.
 *
 * Size 0 is the end of a stream. A datagram or packet that is longer than the room ends with
 * EMSGSIZE; its beginning and its ancillary data are in the message, and MSG_TRUNC is in
 * msg_flags. MSG_CTRUNC reports that ancillary data was lost: check it if you expect descriptors.
 * Descriptors in the ancillary data belong to the caller from the event on; execve(2) closes them.
 * Those of a request that is withdrawn with its handle are closed. For IP_PKTINFO or IPV6_PKTINFO
 * set IP_PKTINFO or IPV6_RECVPKTINFO with mp_sockopt().
 *
 * The kernel uses the message and all that it points to until the event, except the array of
 * pieces, which is copied.
 *
 * Event errors, besides those of recvmsg(2):
 *   EOPNOTSUPP  a connection of the mtcp driver
 *
 * Errors:
 *   EINVAL  msg_iovlen is above 1024, or there is no room to receive into
 */
int mp_recvmsg(mp_handle handle, struct msghdr *message);

/*
 * Creates a timer on the monotonic clock, a member of the channel. mp_timer_set() sets when it
 * expires; each expiry is an MP_TIMER with this cookie.
 *
 * It uses a descriptor of the process. mp_close() or mp_unregister() ends it. After mp_cancel(),
 * which completes with an MP_TIMER of ECANCELED, end the timer, too. To limit the time of requests
 * use mp_set_timeout(), which needs no timer.
 *
 * Returns the handle, or -1 and errno.
 *
 * Errors:
 *   ENFILE  mp_options.max_handles are registered, or the system has no descriptor left
 *   EMFILE  the process has no descriptor left
 *   EAGAIN  mp_options.max_requests are outstanding: dispatch first
 */
mp_handle mp_timer(struct mp_channel *channel, void *cookie);

/*
 * Sets a timer of mp_timer(), even a running one: it expires first_ns nanoseconds from now, and
 * from then on every interval_ns if that is above 0. first_ns 0 stops it.
 *
 * Earlier expirations that were counted are discarded. An MP_TIMER that the channel already holds
 * may still be delivered. Takes effect at once, by one system call.
 *
 * Errors:
 *   EOPNOTSUPP  the handle is not a timer of mp_timer()
 */
int mp_timer_set(mp_handle handle, uint64_t first_ns, uint64_t interval_ns);

/*
 * Limits the time of each request of a handle: a request in flight that makes no progress for
 * timeout_ms milliseconds ends with ETIMEDOUT. Below 0, the default: no limit.
 *
 * direction: MP_IN for reads and receives, MP_OUT for connects, writes and shutdowns, or both. The
 * time of an MP_REPEAT starts again with each completion, that of a write with each part that is
 * written. It does not run for a request that waits behind another one. A write that was ended may
 * have been written in part: mp_abort() the handle then.
 *
 * Errors:
 *   EINVAL  direction is not made of MP_IN and MP_OUT, or timeout_ms is 0
 */
int mp_set_timeout(mp_handle handle, int direction, int timeout_ms);

/*
 * Waits for the next completion (report, Table 3.1). If none is there, first hands the collected
 * requests to the kernel.
 *
 * timeout_ms: 0 to return at once, below 0 to wait without a limit. Completions are fetched from
 * the kernel in batches, whether they are taken one by one or by mp_dispatch_batch().
 *
 * Returns 1; or 0 if the time is up, a signal handler ran, or the process was stopped and
 * continued (SIGSTOP, SIGCONT), even without a limit; or -1 and errno.
 */
int mp_dispatch(struct mp_channel *channel, struct mp_event *event, int timeout_ms);

/*
 * Waits as mp_dispatch() does, then takes all available completions, at most limit of them
 * (report, section 3.5).
 *
 * Events in the array are not withdrawn when their handle is unregistered: calls with the handle
 * then fail with EBADF, and buffers and connections in the events still belong to the caller.
 *
 * Returns the number of events, 0 as for mp_dispatch(), or -1 and errno.
 *
 * Errors:
 *   EINVAL  limit is below 1
 */
int mp_dispatch_batch(struct mp_channel *channel,
                      struct mp_event *events,
                      int limit,
                      int timeout_ms);

/*
 * Hands the collected requests to the kernel now. mp_dispatch() does so by itself; use it before
 * other work that takes long.
 */
int mp_flush(struct mp_channel *channel);

/*
 * Gives a buffer of mp_recv() back to the channel; its bytes are then no longer valid.
 *
 * Errors:
 *   EINVAL  the caller does not hold the buffer (any more)
 */
int mp_release(struct mp_channel *channel, int64_t buffer);

/*
 * Opens a TCP socket with SO_REUSEADDR, binds it and listens; needs no channel. address is of
 * AF_INET or AF_INET6. backlog is the length of the accept queue, at most the sysctl
 * net.core.somaxconn; 0 stands for that maximum.
 *
 * If the address is in use, the call tries again for up to one second, and blocks the thread
 * meanwhile: after a process with an io_uring channel was killed, the kernel closes the sockets
 * in its ring up to 0.2 s later. With epoll there is no delay. The address of a listener of this
 * process is free as soon as mp_close() or mp_abort() of it returns; connections that wait in its
 * accept queue are reset.
 *
 * Returns a blocking descriptor with close-on-exec, which belongs to the caller; or -1 and errno,
 * and mp_error() names the address, the cause and the remedy.
 *
 * Errors:
 *   EADDRINUSE      a socket listens there, and still does after one second
 *   EADDRNOTAVAIL   no interface has the address
 *   EACCES          the port needs CAP_NET_BIND_SERVICE
 *   EAFNOSUPPORT    the address is of another family
 *   EINVAL          size does not fit the family, or backlog is below 0
 *   EMFILE, ENFILE  there is no descriptor left
 */
int mp_listen(const struct sockaddr *address, socklen_t size, int backlog);

/*
 * Opens another descriptor for the same socket or file; for a lightweight socket it makes a
 * regular descriptor. The caller closes it. The handle stays registered.
 *
 * Returns the descriptor, or -1 and errno.
 *
 * Errors:
 *   EMFILE, ENFILE  there is no descriptor left
 */
int mp_to_fd(mp_handle handle);

/*
 * Sets an option of a socket as setsockopt(2) does; of a lightweight socket those at the levels
 * SOL_SOCKET and IPPROTO_TCP. Takes effect at once, not in the order of requests.
 *
 * Errors:
 *   EOPNOTSUPP, ENOPROTOOPT, EINVAL, ...  as setsockopt(2)
 */
int mp_sockopt(mp_handle handle, int level, int name, const void *option, socklen_t size);

/*
 * Reads an option of a socket as getsockopt(2) does; of a lightweight socket those at the level
 * SOL_SOCKET. *size: before the call the room at option, after it the length of the value.
 *
 * Errors:
 *   EOPNOTSUPP, ENOPROTOOPT, EINVAL, ...  as getsockopt(2)
 */
int mp_sockopt_get(mp_handle handle, int level, int name, void *option, socklen_t *size);

/*
 * The address of the other side of a connection, as getpeername(2) returns it, also of a
 * lightweight socket. *size: before the call the room at address, after it the size of the
 * address, of which no more than the room was filled.
 *
 * Errors:
 *   ENOTCONN      it is not connected
 *   EAFNOSUPPORT  the address is not of AF_INET, AF_INET6 or AF_UNIX
 */
int mp_peer_address(mp_handle handle, struct sockaddr *address, socklen_t *size);

/*
 * Creates accept queues of a listening TCP socket for processes that are about to be forked: one
 * socket for each set of CPUs, which listens on the same address and gets the connections whose
 * handshake runs on those CPUs (report, section 3.4.1). The listener keeps the other CPUs.
 *
 * fds[i] is -1 to create a socket for masks[i], or a socket of an earlier call: those come first,
 * in the same order, with their new masks. Each process registers its own socket, as any listener.
 * The parent should keep all of them open: then a worker that ends loses no connection. A mask may
 * be empty; a process must still accept the connections that wait in its socket. Threads of one
 * process do not need this call: see mp_register(). Connections of a CPU in several masks go to
 * their sockets at random, so that more processes than CPUs can share them.
 *
 * Errors:
 *   EINVAL      count is not 1 to 1024, a known socket follows a new one, or the socket does not
 *               listen
 *   E2BIG       masks overlap in more ways than the kernel's program has room for
 *   EADDRINUSE  SO_REUSEPORT is set already, by something else
 *   EOPNOTSUPP  it is not a TCP socket
 *   EACCES      the listener was created under another user id
 */
int mp_partition(int listen_fd, const cpu_set_t *masks, int count, int *fds);

/*
 * Describes this thread's last error in words: what failed, and the remedy.
 *
 * The text is valid until the next call of mp_error() in the same thread, and does not change
 * while calls succeed. It is empty if no call has failed. errno does not change.
 *
 * Failures of requests are not errors of calls: they arrive as events, with their number in
 * mp_event.error.
 */
const char *mp_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif  /* MEGAPIPE_H */
