/*
 * megapipe.h - the channel of MegaPipe for C and C++: libmegapipe
 *
 * Made by `cargo xtask header`; change the comments in crates/capi/src instead.
 *
 * A thread creates a channel, registers sockets, pipes and files with it, files requests, and
 * takes completions out of it. A request returns at once; what comes of it is told by an event
 * with its command, from mp_dispatch() or mp_dispatch_batch(). The ping-pong server of the
 * report's Listing 3.1 is examples/c/ping_pong.c. A server that answers every request with a head
 * and a file, and whose whole is examples/c/send_file.c:
 *
 *     struct mp_event ev;
 *
 *     mp_accept(listener, 0, MP_LWSOCKET | MP_WITH_PEER);
 *     while (mp_dispatch(channel, &ev, -1) == 1)
 *         if (ev.cmd == MP_ACCEPT && !ev.error) {
 *             print_address(ev.data, ev.size);
 *             mp_recv(mp_register(channel, ev.fd, NULL, NULL), 0);
 *         } else if (ev.cmd == MP_RECV && ev.size > 0) {
 *             mp_release(channel, ev.buffer);
 *             mp_write_more(ev.handle, head, head_size);
 *             mp_send_file(ev.handle, file, 0, file_size);
 *             mp_close(ev.handle);
 *         }
 *
 * The report: Sangjin Han, A Programming Interface for Scalable Network Socket I/O,
 * UCB/EECS-2016-125.
 *
 * Errors. A call that fails gives -1 (or NULL) and sets errno; mp_error() says in words what went
 * wrong and what would help. Nothing was filed then. Besides what each call names:
 *   EBADF            the handle or channel is unknown: ended, or (a handle) another thread's
 *   EPERM            the channel is another thread's, or was created before a fork
 *   EFAULT           a pointer is NULL that must not be
 *   EAGAIN           a request: a queue is full, or mp_options.output_limit bytes wait to be
 *                    written to the handle; dispatch some events, then file it again
 *   EOPNOTSUPP       a request: not for this kind of handle, such as an accept on a pipe
 *   EDEADLK          called by a signal handler that interrupted a call on the same channel
 *   ENOTRECOVERABLE  a defect of the library; the channel can only be destroyed
 * A request that fails tells in mp_event.error; it has exactly one last event (without MP_MORE),
 * unless its handle is unregistered, closed or aborted before.
 *
 * Memory of requests is the caller's, and the kernel's from the call to the last event: it must
 * stay valid, and nothing else may change it. After mp_close() or mp_abort() it is the kernel's
 * until MP_CLOSE. After mp_unregister() no event tells when it is free: where it matters, cancel
 * the requests and await their events before, or close the handle. mp_destroy() frees all of it.
 *
 * Buffers of mp_recv() are the channel's, and the caller's from the event to mp_release() or
 * mp_write_buffer(). While the caller has all of them, receiving waits; nothing is lost. Keep none
 * for longer than a message is handled. What mp_write_buffer() queues behind other writes is
 * copied where buffers are short.
 *
 * Limits. A peer that does not read must not make the program hold more and more for it: with
 * mp_options.output_pause bytes waiting to be written, MP_REPEAT receives of the handle pause, and
 * with output_limit a further write fails with EAGAIN. mp_queued() says how much it is.
 *
 * Ends. mp_close() is the right end for a connection: it writes what is queued first. mp_abort()
 * resets it. mp_unregister() takes a descriptor back, to go on with it.
 *
 * Threads. A channel belongs to the thread that created it. Nothing may be called in signal
 * handlers. After a fork the channel stays the parent's: create one in the child.
 *
 * Leaving a call. Do not leave a call of this library by siglongjmp(3), longjmp(3), an exception
 * of a signal handler, or pthread_cancel(3): not even mp_dispatch(). Its frames would be skipped
 * in the middle of a change. After a jump every call on the channel fails with EDEADLK,
 * mp_destroy() too. A cancellation that takes effect in a call ends the process by SIGABRT. To
 * end a wait from elsewhere, register an eventfd(2) or a pipe, mp_read() from it, and write to
 * it in the other thread or in the signal handler; for signals alone, register a signalfd(2). A
 * signal handler that returns makes mp_dispatch() return 0. A thread that may be cancelled calls
 * pthread_setcancelstate(3) with PTHREAD_CANCEL_DISABLE before it creates a channel.
 *
 * Restart. After a process with an io_uring channel was killed, the kernel needs a moment to close
 * its sockets, and bind(2) fails with EADDRINUSE meanwhile. mp_listen() waits for that.
 *
 * Order. Requests of one direction of a handle are carried out in the order of filing, each begun
 * when the one before has ended; both directions go on side by side. Accepts, polls and transfers
 * at an offset have no order.
 *
 * Linux 6.1 or later with io_uring, else 4.14 or later with epoll: the same meaning, see
 * enum mp_driver_choice.
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

/* For mp_recv() and mp_poll(): complete each time, until cancelled, the end or an error. */
#define MP_REPEAT 1

/* For mp_cancel(), mp_set_timeout(): reads and receives. */
#define MP_IN 1

/* For mp_cancel(), mp_set_timeout(): connects, writes and shutdowns. */
#define MP_OUT 2

/* For mp_options.linger_us: never linger. */
#define MP_NEVER UINT32_MAX

/* What was asked for, in mp_event.cmd. */
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
    MP_RECVMSG /* mp_recvmsg() */
} mp_command;

/* What drives a channel. */
typedef enum mp_driver_choice {
    /*
     * io_uring (Linux 6.1 or later), else epoll; or what the environment variable
     * MEGAPIPE_DRIVER says (auto, uring, epoll or mtcp).
     */
    MP_DRIVER_AUTO = 0,
    MP_DRIVER_URING = 1, /* io_uring, or no channel. */
    MP_DRIVER_EPOLL = 2, /* epoll(7) and non-blocking calls (Linux 4.14 or later). */
    /* As MP_DRIVER_AUTO, but where a stack leads, as the file in MTCP_CONFIG says: that. */
    MP_DRIVER_MTCP = 3
} mp_driver_choice;

/* A channel. It belongs to the thread that created it. */
typedef struct mp_channel mp_channel;

/*
 * The settings of a channel, for mp_create(). 0 in a field stands for its default, so that
 * { 0 } is a good start, and a program that was compiled with an older header keeps its meaning.
 */
typedef struct mp_options {
    /* One of enum mp_driver_choice. */
    uint32_t driver;
    /*
     * Requests that collect before they are handed to the kernel in one call: 1 to 1024,
     * default 32 (report, section 3.4.3).
     */
    uint32_t batch;
    /* Completions that one wait may bring: a power of two from 64 to 65536, default 4096. */
    uint32_t completions;
    /* Handles that may be registered at once: at most and by default 1048576. */
    uint32_t max_handles;
    /* Requests that may be outstanding at once; default 2097152. */
    uint32_t max_requests;
    /*
     * Lightweight sockets that may exist at once with io_uring; default 131072, cut to
     * RLIMIT_NOFILE. With epoll each takes a descriptor.
     */
    uint32_t max_lwsockets;
    /*
     * The longest that a busy channel stays in the kernel for further completions, in
     * microseconds: at most 1000000, default 200; MP_NEVER for never.
     */
    uint32_t linger_us;
    /* Buffers of mp_recv() for small messages: a power of two from 2 to 32768, default 1024. */
    uint32_t small_buffers;
    /* Bytes in each of them: 256 to 16777216, default 4160. */
    uint32_t small_buffer_bytes;
    /* Buffers for streams that fill small ones: default 64, else as above. */
    uint32_t large_buffers;
    /* Bytes in each of them: default 66048. */
    uint32_t large_buffer_bytes;
    /*
     * How often an idle channel takes connections from the queues of busy ones that share its
     * listener, in microseconds; 0 for never.
     */
    uint32_t steal_interval_us;
    /*
     * 1: connections come to the channel of their CPU in any case. 0: while one channel accepts
     * more than eight times as many connections as another that shares its listener, new ones are
     * spread over all of them at random. Any channel of a listener can decide for 1.
     */
    uint32_t keep_steering;
    /*
     * Bytes that wait behind the write under way of a handle from which on its MP_REPEAT receives
     * pause, until half of them are written: a peer that does not read is not read from. Default
     * 262144.
     */
    uint32_t output_pause;
    /*
     * Bytes that may wait behind the write under way of a handle; a further write fails with
     * EAGAIN. One write may have any size. Default 67108864.
     */
    uint32_t output_limit;
    /*
     * How long a handle in mp_close() may write nothing of what is queued before it is aborted
     * with ETIMEDOUT, in milliseconds. Default 60000.
     */
    uint32_t close_timeout_ms;
    /* Must be zero. */
    uint32_t reserved[4];
} mp_options;

/*
 * Counts since the channel was created, from mp_statistics(). They wrap at 2^64. Later versions
 * add fields at the end.
 */
typedef struct mp_counters {
    /* Requests that were filed. */
    uint64_t requests;
    /* Completions that mp_dispatch() delivered. */
    uint64_t completions;
    /* Operations handed to the driver, those that had to go on included. */
    uint64_t operations;
    /* System calls made for requests and completions. */
    uint64_t system_calls;
    /* Times the channel slept or looked for completions in the kernel. */
    uint64_t waits;
    /* Completions that those waits brought; divided by waits, the mean batch. */
    uint64_t batched;
    /* The most completions that one wait brought. */
    uint64_t largest_batch;
    /* Receives that had to wait because all buffers were in the caller's hands. */
    uint64_t buffer_waits;
    /* Times the kernel had to keep completions aside. */
    uint64_t overflows;
    /* Requests refused because a queue was full. */
    uint64_t refused;
    /* Completions dropped because their handle had been unregistered. */
    uint64_t cancelled;
    /* Connections taken from the queue of a busy channel. */
    uint64_t stolen;
    /* Accept queues taken over from channels that ended. */
    uint64_t adopted;
    /* Connections that were closed because no channel was left to take them. */
    uint64_t orphaned;
    /* Times this channel had connections spread because they were divided very unequally. */
    uint64_t rebalanced;
} mp_counters;

/*
 * A member of a channel, from mp_register(): 0 or more; -1 is none.
 *
 * It names its channel, too. After mp_unregister() or mp_abort() every call with it fails with
 * EBADF, also when its place is taken by another, and so does every call in another thread; after
 * mp_close() every call but mp_abort().
 */
typedef int64_t mp_handle;

/* One completion (report, section 3.5), from mp_dispatch(). */
typedef struct mp_event {
    /* One of enum mp_command. */
    uint32_t cmd;
    /* MP_MORE or 0. */
    uint32_t flags;
    /* Whose request it was; -1 after mp_close(). */
    mp_handle handle;
    /* What was given to mp_register(). */
    void *cookie;
    /* 0, or the errno with which the request failed: then nothing below has a meaning. */
    int32_t error;
    /*
     * MP_ACCEPT: the new connection, for mp_register(); a descriptor, which is the caller's, or
     * the number of a lightweight socket, MP_LWSOCKET_FIRST or more, on every driver. Else -1.
     */
    int32_t fd;
    /*
     * Bytes that were read, received, written or sent; 0 of a read or receive is the end, but see
     * buffer.
     */
    size_t size;
    /*
     * MP_RECV: the bytes, in a buffer of the channel's, until mp_release() of it.
     * MP_READ, MP_PEEK, MP_WRITE, MP_PREAD, MP_PWRITE: the address that was given with the
     * request. MP_SENDMSG, MP_RECVMSG: the struct msghdr. MP_PEER_ADDRESS, MP_ACCEPT with
     * MP_WITH_PEER: a struct sockaddr of size bytes, until the next dispatch.
     */
    void *data;
    /*
     * MP_RECV: the buffer, for mp_release() or mp_write_buffer(); -1 at the end. So an empty
     * message of a SOCK_SEQPACKET socket, which has a buffer, is told from the end. Else -1.
     */
    int64_t buffer;
    /* MP_ACCEPT: further connections that were waiting. */
    uint32_t pending;
    /* MP_POLL: the events of poll(2) that are there. */
    uint32_t revents;
    /* MP_PREAD, MP_PWRITE: the offset that was given with the request. */
    uint64_t offset;
    /* MP_TIMER: how often the timer has expired since the last one. */
    uint64_t count;
    /* 0; later versions may use it. */
    uint64_t reserved[2];
} mp_event;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Creates a channel for the calling thread (report, Table 3.1).
 *
 * options may be NULL for the defaults; they are read during the call only. Where io_uring is
 * barred or too old, MP_DRIVER_AUTO falls back to epoll, and mp_driver_reason() says why; it does
 * not hide a lack of memory or descriptors.
 *
 * A thread that ends without mp_destroy() has its channels destroyed. After a fork the channel
 * stays the parent's: calls in the child fail with EPERM; create one there.
 *
 * Returns the channel, or NULL and errno.
 *
 * Errors:
 *   EINVAL  an option is out of range, or MEGAPIPE_DRIVER names no driver
 *   EBUSY   every engine of the stack has its channel: raise engine.cores
 *   EMFILE  2048 channels exist in the process, or there is no descriptor left
 *   ENOMEM, EPERM, ENOSYS, ...  the kernel refuses the channel: mp_error() names the remedy
 */
struct mp_channel *mp_create(const struct mp_options *options);

/*
 * Destroys a channel. What is pending is cancelled and never delivered.
 *
 * Lightweight sockets are closed, also those that were accepted and not registered, and so is
 * what mp_close() has not finished with. Other descriptors stay open and are the caller's again.
 * Buffers of mp_recv() become invalid. Memory of requests
 * may be used again after the return (unless a device has kept the kernel busy for two seconds,
 * which is all that is waited). The shares of a listener go to the other channels that
 * share it.
 *
 * Errors:
 *   EDEADLK  called in a signal handler that interrupted a call on this channel
 */
int mp_destroy(struct mp_channel *channel);

/* The driver of a channel: "uring", "epoll" or "mtcp"; NULL and errno if there is no channel. */
const char *mp_driver(struct mp_channel *channel);

/* Why the channel has its driver, in words for a person. Valid until mp_destroy(). */
const char *mp_driver_reason(struct mp_channel *channel);

/*
 * Copies what the channel has counted so far into *counters, whose size is bytes: say
 * sizeof *counters. Fields that this version does not know are set to 0.
 */
int mp_statistics(struct mp_channel *channel, struct mp_counters *counters, size_t bytes);

/* The version of the library, such as "0.1.0". */
const char *mp_version(void);

/*
 * Makes a descriptor or an accepted lightweight socket a member of a channel (report, Table 3.1).
 *
 * fd is a socket, pipe, FIFO, terminal, disk file, eventfd(2), timerfd_create(2) or signalfd(2);
 * or what mp_event.fd of an MP_ACCEPT said. The cookie comes back with each of its events.
 *
 * A descriptor is lent to the channel until mp_unregister() or mp_destroy(); mp_close() and
 * mp_abort() close it. Do not close it meanwhile. If registering fails, whatever the reason, it
 * stays open and the caller's, and a lightweight socket can be registered again. While a pipe,
 * terminal or (epoll) listening socket is registered, its O_NONBLOCK is set.
 *
 * cpu_mask, for a listening TCP socket: this channel gets an accept queue of its own for the
 * connections whose handshake runs on those CPUs (report, section 3.4.1). Each thread
 * registers the same listener with its CPUs in its own channel; connections of CPUs that no
 * channel claims wait in the original, which one of them may register without mask. It stays
 * the caller's. NULL otherwise.
 *
 * Returns the handle, or -1 and errno.
 *
 * Errors:
 *   EBADF       fd is not open, or no lightweight socket that waits to be registered here
 *   EISDIR      fd is a directory
 *   ENFILE      mp_options.max_handles are registered
 *   EINVAL      cpu_mask is empty or names impossible CPUs, or the socket does not listen
 *   EBUSY       other channels have claimed some of these CPUs
 *   EADDRINUSE  SO_REUSEPORT is set already, by something else
 *   EOPNOTSUPP  cpu_mask was given for something else than a TCP socket
 *   EACCES      the listener was made under another user id
 */
mp_handle mp_register(struct mp_channel *channel, int fd, void *cookie, const cpu_set_t *cpu_mask);

/*
 * Takes a descriptor out of the channel, to go on with it (report, Table 3.1): it stays open and
 * is the caller's again. What is pending is cancelled and never delivered, also writes, except
 * what an mp_dispatch_batch() has delivered already. To end a connection use mp_close().
 *
 * A lightweight socket cannot be without its channel: it is closed, on every driver, after the
 * writes that are queued, without an event. Connections that a listener has accepted and not
 * delivered are closed.
 *
 * No event says when the kernel lets go of the memory of the handle's requests. Where that memory
 * is to be used again or freed, use mp_close() or mp_abort(), whose MP_CLOSE says so, or cancel
 * the requests first and await their events; else it is free after mp_destroy() only.
 */
int mp_unregister(mp_handle handle);

/*
 * Closes a handle once all that was filed to be written is written: the right end for a
 * connection. What is inbound is cancelled and never delivered, nor are the events of the writes;
 * one MP_CLOSE, with the cookie and handle -1, is the last of all. By then the descriptor or
 * lightweight socket is closed, and the memory of all requests of the handle is the caller's.
 *
 * If a queued write fails, that is the event's error. If the peer takes nothing for
 * mp_options.close_timeout_ms, the handle is aborted, and the error is ETIMEDOUT. mp_abort() ends
 * the wait at once. A listener's connections that were accepted and not delivered are closed.
 *
 * A stream socket that has waited for its output for 5 ms discards what its peer sends, and if
 * anything came, goes on when all is written until the peer ends its direction or has sent nothing
 * for 2 s, for 30 s and 64 MiB at most: unread input would make the close a reset. Not if
 * mp_to_fd() was called.
 */
int mp_close(mp_handle handle);

/*
 * Closes a handle at once, also one that is in mp_close(), and discards what is queued to be
 * written. A TCP connection is reset, so that the peer does not take what it has for the whole.
 * Otherwise as mp_close(): one MP_CLOSE, in all, is the last event.
 */
int mp_abort(mp_handle handle);

/*
 * The cookie of a handle; NULL and errno if it is not registered. errno is left as it is
 * otherwise, as the cookie may be NULL, too.
 */
void *mp_cookie(mp_handle handle);

/* Changes the cookie of a handle, also for requests that were filed before. */
int mp_set_cookie(mp_handle handle, void *cookie);

/*
 * Accepts connections on a listener: one MP_ACCEPT for each (report, Table 3.1).
 *
 * count: how many; 0 for all until mp_cancel(). Counts of several calls add up. flags: 0, or made
 * of these:
 *   MP_LWSOCKET   lightweight sockets, which belong to the channel (report, section 3.4.2). They
 *                 have numbers from MP_LWSOCKET_FIRST on and mean the same on every driver; with
 *                 io_uring (Linux 6.8) they have no descriptor, else there is one below, which is
 *                 the channel's. Its value is 1, as the report's is_lwsocket.
 *   MP_WITH_PEER  the address of each peer: the event's data is a struct sockaddr of size bytes,
 *                 until the next dispatch. NULL where the driver does not tell it. One system
 *                 call for each connection; what needs no address at once gets it cheaper by
 *                 mp_request_peer_address().
 *
 * The event's fd is to be registered or, if it is a descriptor, may be used without the channel
 * and then is the caller's to close; it does not block, and execve(2) closes it. ECANCELED is the
 * last completion after mp_cancel().
 *
 * An error that passes comes with MP_MORE: EMFILE, ENFILE, ENOMEM, and EUSERS if all lightweight
 * sockets of the channel are in use (mp_options.max_lwsockets). The channel accepts again by
 * itself, when a descriptor has come free or some time has passed; do not file another accept.
 * Connections stay queued in the kernel meanwhile. Any other error ends the request.
 *
 * Errors:
 *   EBUSY   accepts with other flags are outstanding: cancel them first
 *   EINVAL  count is negative, or flags are unknown
 */
int mp_accept(mp_handle handle, int count, int flags);

/*
 * Connects a socket: one MP_CONNECT. The address is copied. Requests that are filed meanwhile on
 * the same handle wait for it.
 *
 * Errors:
 *   EAFNOSUPPORT  the address is none of AF_INET, AF_INET6 and AF_UNIX
 *   EINVAL        size does not suit the family
 */
int mp_connect(mp_handle handle, const struct sockaddr *address, socklen_t size);

/*
 * Reads at most size bytes: one MP_READ with what is there, 0 at the end (report, Table 3.1).
 * From a file: at its position. From a SOCK_SEQPACKET or datagram socket: one message, or
 * EMSGSIZE if it is longer than size; an empty one has size 0, too, which mp_recv() tells from
 * the end. buffer is the kernel's until the event. For connections that are
 * mostly idle mp_recv() needs less memory.
 *
 * Errors:
 *   EINVAL  size is 0 or above SSIZE_MAX
 */
int mp_read(mp_handle handle, void *buffer, size_t size);

/*
 * Writes all of size bytes: one MP_WRITE (report, Table 3.1). To a file: at its position. To a
 * connected datagram socket: one datagram. buffer must not change until the event.
 *
 * The event's size is below the request's only if the write was cancelled half-way; one that
 * fails half-way is an error. A broken socket raises no SIGPIPE; a broken pipe does unless it is
 * ignored.
 *
 * Errors:
 *   EAGAIN  mp_options.output_limit bytes wait behind the write under way: the peer does not read;
 *           await completions, or mp_abort() the handle
 */
int mp_write(mp_handle handle, const void *buffer, size_t size);

/*
 * Reads from a disk file at an offset: one MP_PREAD, which repeats the offset, because many such
 * requests of a handle may be under way, in no order. At most 2 GiB at a time.
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
 * Receives from a stream or pipe into a buffer of the channel's: MP_RECV, with the bytes at the
 * event's data until mp_release() of its buffer. size 0 is the end, which has no buffer.
 *
 * From a SOCK_SEQPACKET socket: one message, or EMSGSIZE if it is longer than
 * mp_options.large_buffer_bytes. An empty message has size 0 and a buffer.
 *
 * flags: 0 for one completion; MP_REPEAT for one each time, until the end, an error or
 * mp_cancel(), which is cheaper than asking again. Idle connections hold no memory this way.
 * While all buffers are in the caller's hands, receiving waits; nothing is lost.
 *
 * Errors:
 *   EINVAL  flags are unknown
 */
int mp_recv(mp_handle handle, int flags);

/*
 * Writes bytes of a buffer that mp_recv() brought, and releases the buffer when they are sent:
 * one MP_WRITE, whose data is NULL. How to send back what came without a copy and without
 * keeping books. offset and size say which of the event's bytes. If it fails, the buffer is the
 * caller's still.
 *
 * Errors:
 *   EINVAL  the buffer is not in the caller's hands, or has fewer bytes
 */
int mp_write_buffer(mp_handle handle, int64_t buffer, size_t offset, size_t size);

/*
 * Waits until a socket or pipe is ready for calls that the caller makes itself: MP_POLL with
 * revents.
 *
 * events: POLLIN, POLLOUT, POLLPRI and POLLRDHUP of poll(2); POLLERR and POLLHUP come in any
 * case. flags: 0 for one completion; MP_REPEAT for what is there at first and then each change for
 * the better, as edge-triggered epoll(7) does; an event may be told twice. A handle has one poll
 * at a time; a second one begins when the first has ended.
 *
 * Errors:
 *   EINVAL  events or flags are unknown
 */
int mp_poll(mp_handle handle, uint32_t events, int flags);

/*
 * Shuts a connection down in both directions, after the writes that were filed before: one
 * MP_DISCONNECT (report, Table 3.1). The handle stays registered.
 */
int mp_disconnect(mp_handle handle);

/*
 * Shuts a connection down as shutdown(2) does, after the writes that were filed before: one
 * MP_DISCONNECT. how: SHUT_RD, SHUT_WR or SHUT_RDWR.
 *
 * Errors:
 *   EINVAL  how is none of these
 */
int mp_shutdown(mp_handle handle, int how);

/*
 * Bytes that were filed to be written to a handle and that the kernel has not taken yet. A write
 * under way counts in full until a part of it completes.
 *
 * Returns the bytes, or -1 and errno.
 */
int64_t mp_queued(mp_handle handle);

/*
 * Asks for the address of the other side of a connection: one MP_PEER_ADDRESS, whose data is a
 * struct sockaddr of the event's size, until the next dispatch. For a server with many lightweight
 * sockets; it spares the system call of mp_peer_address().
 *
 * The event's errors are those of mp_peer_address().
 */
int mp_request_peer_address(mp_handle handle);

/*
 * Cancels requests of a handle, which stays registered. Each has its last completion still: with
 * ECANCELED, or with its result if that was quicker.
 *
 * what: MP_IN for reads and receives, MP_OUT for connects, writes and shutdowns, 0 for everything,
 * accepts, polls and transfers at an offset included.
 *
 * Errors:
 *   EINVAL  what is unknown
 */
int mp_cancel(mp_handle handle, int what);

/*
 * Registers a new stream socket of the channel's own and connects it: one MP_CONNECT with this
 * cookie. TCP or UNIX, according to the address, which is copied. Requests that are filed
 * meanwhile wait for the connection.
 *
 * It is a lightweight socket, as those of mp_accept(): with io_uring it has no descriptor, with
 * epoll there is one below, which is the channel's. A connect that fails leaves the handle, for
 * mp_connect() or mp_close(). For a socket that is bound or has options before it connects, use
 * mp_register() and mp_connect().
 *
 * Returns the handle, or -1 and errno.
 *
 * Errors:
 *   EAFNOSUPPORT    the address is none of AF_INET, AF_INET6 and AF_UNIX
 *   EINVAL          size does not suit the family
 *   EUSERS          mp_options.max_lwsockets are in use
 *   ENFILE          mp_options.max_handles are registered
 *   EMFILE, ENFILE  there is no descriptor left
 */
mp_handle mp_connect_to(struct mp_channel *channel,
                        const struct sockaddr *address,
                        socklen_t size,
                        void *cookie);

/*
 * Reads at most size bytes of what waits in a socket and leaves them there: one MP_PEEK with what
 * is there, 0 at the end. The next mp_read(), mp_recv() or mp_peek() finds the same. buffer is the
 * kernel's until the event.
 *
 * It has its turn among the reads of the handle, and completes as soon as something is there: to
 * wait for more than that, read. From a SOCK_SEQPACKET or datagram socket: one message, or
 * EMSGSIZE, with its beginning in buffer, if it is longer than size.
 *
 * Errors:
 *   EINVAL      size is 0 or above SSIZE_MAX
 *   EOPNOTSUPP  the handle is no socket
 */
int mp_peek(mp_handle handle, void *buffer, size_t size);

/*
 * Writes all of size bytes as mp_write() does, one MP_WRITE, and tells the kernel that a further
 * write follows at once (MSG_MORE of send(2)). buffer must not change until the event.
 *
 * TCP holds a segment that is not full back until then, but for 200 ms at most: so a head and a
 * body share one also with TCP_NODELAY. End with mp_write(), mp_send_file(), mp_shutdown() or
 * mp_close(), each of which sends all. Everything but a stream socket takes it for mp_write(), as
 * does MP_DRIVER_MTCP; datagrams are not joined.
 *
 * Errors:
 *   EAGAIN  as with mp_write()
 */
int mp_write_more(mp_handle handle, const void *buffer, size_t size);

/*
 * Sends size bytes of a disk file, from offset on, over a stream socket, in its turn among the
 * writes of the handle: one MP_SEND_FILE. All of them, or an error; less only if it was cancelled
 * half-way.
 *
 * file is the handle of the file in the same channel, whose position does not matter and does not
 * change; it may be sent to any number of handles at once. It must stay registered: what is not
 * read of it when its handle ends is not sent. The file is read and sent in turns of 128 KiB;
 * mp_queued() counts all of size.
 *
 * The event's errors:
 *   ENODATA  the file ends before offset + size; what it has was sent
 *   EBADF    the file's handle has ended
 *
 * Errors:
 *   EBADF       file is no handle of the same channel
 *   EOPNOTSUPP  handle is no stream socket, or file no disk file
 *   EINVAL      offset + size is above 2^63 - 1
 *   EAGAIN      as with mp_write()
 */
int mp_send_file(mp_handle handle, mp_handle file, uint64_t offset, size_t size);

/*
 * Sends a message as sendmsg(2) does: one MP_SENDMSG, whose data is message.
 *
 * Over a stream all bytes are sent, as by mp_write(), and the control data goes with the first of
 * them, once. From a datagram socket: one datagram, to msg_name if there is one. Descriptors
 * (SCM_RIGHTS, at most 253) go over UNIX sockets; they stay the caller's and must stay open until
 * the event. IP_PKTINFO and IPV6_PKTINFO choose where a datagram leaves from. The message, its
 * array, name and control data are copied; the bytes are the kernel's until the event. A broken
 * socket raises no SIGPIPE.
 *
 * Event errors, besides those of sendmsg(2):
 *   EOPNOTSUPP  control data, on a connection of the mtcp driver
 *
 * Errors:
 *   EINVAL  msg_iovlen is above 1024, or descriptors: more than 253, on other than a UNIX socket,
 *           or without a byte over a stream, which would lose them
 *   EAGAIN  mp_options.output_limit bytes wait behind the write under way
 */
int mp_sendmsg(mp_handle handle, const struct msghdr *message);

/*
 * Receives a message as recvmsg(2) does: one MP_RECVMSG, whose data is message, with msg_namelen,
 * msg_controllen and msg_flags filled in.
 *
 * Size 0 is the end of a stream. A datagram or packet that is longer than the room is EMSGSIZE,
 * with its beginning, its control data and MSG_TRUNC in msg_flags. MSG_CTRUNC tells that control
 * data was lost: look for it where descriptors are expected. Descriptors in the control data are
 * the caller's from the event on, and closed by execve(2); those of a request that is withdrawn
 * with its handle are closed. For IP_PKTINFO or IPV6_PKTINFO set IP_PKTINFO or IPV6_RECVPKTINFO
 * with mp_sockopt().
 *
 * The message and all that it points to are the kernel's until the event, but for the array of
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
 * Makes a timer on the monotonic clock, a member of the channel: mp_timer_set() says when it
 * expires, each time an MP_TIMER with this cookie.
 *
 * It takes a descriptor of the process. mp_close() or mp_unregister() ends it; so does
 * mp_cancel(), with an MP_TIMER of ECANCELED, after which it must be ended. To limit the time of
 * requests use mp_set_timeout(), which needs no timer.
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
 * Sets a timer of mp_timer(), also one that is running: it expires first_ns nanoseconds from now,
 * and from then on every interval_ns if that is above 0. first_ns 0 stops it.
 *
 * What it had counted before is forgotten. An MP_TIMER that the channel has already may still
 * come. At once, by one system call.
 *
 * Errors:
 *   EOPNOTSUPP  the handle is no timer of mp_timer()
 */
int mp_timer_set(mp_handle handle, uint64_t first_ns, uint64_t interval_ns);

/*
 * Limits the time of each request of a handle: one that is under way and has not got on for
 * timeout_ms milliseconds ends with ETIMEDOUT. Below 0, as at first: no limit.
 *
 * direction: MP_IN for reads and receives, MP_OUT for connects, writes and shutdowns, or both.
 * MP_REPEAT begins its time anew with each completion, a write with each part that is written.
 * What waits behind another request has not begun. A write that was ended may have been written
 * in part: mp_abort() the handle then.
 *
 * Errors:
 *   EINVAL  direction is not made of MP_IN and MP_OUT, or timeout_ms is 0
 */
int mp_set_timeout(mp_handle handle, int direction, int timeout_ms);

/*
 * Waits for the next completion (report, Table 3.1), and hands what was filed to the kernel first
 * if none is there.
 *
 * timeout_ms: 0 to look without waiting, below 0 to wait for ever. Completions are fetched from
 * the kernel in batches, whether they are taken one by one or by mp_dispatch_batch().
 *
 * Returns 1, or 0 if the time is up or a signal handler ran, or -1 and errno.
 */
int mp_dispatch(struct mp_channel *channel, struct mp_event *event, int timeout_ms);

/*
 * Waits as mp_dispatch() does, then takes all completions that are there, at most limit of them
 * (report, section 3.5).
 *
 * Events in the array are not withdrawn when their handle is unregistered meanwhile: calls with
 * it fail with EBADF, and buffers and connections in them are the caller's still.
 *
 * Returns how many, 0 as for mp_dispatch(), or -1 and errno.
 *
 * Errors:
 *   EINVAL  limit is below 1
 */
int mp_dispatch_batch(struct mp_channel *channel,
                      struct mp_event *events,
                      int limit,
                      int timeout_ms);

/*
 * Hands what was filed to the kernel now. Never needed before mp_dispatch(); of use before other
 * work that takes long.
 */
int mp_flush(struct mp_channel *channel);

/*
 * Returns a buffer of mp_recv() to the channel, whose bytes are then gone.
 *
 * Errors:
 *   EINVAL  the buffer is not in the caller's hands (any more)
 */
int mp_release(struct mp_channel *channel, int64_t buffer);

/*
 * Opens a TCP socket with SO_REUSEADDR, binds it and listens; needs no channel. address is of
 * AF_INET or AF_INET6. backlog is the length of the accept queue, at most the sysctl
 * net.core.somaxconn, for which 0 stands.
 *
 * If the address is in use, the call tries again for up to one second, and blocks the thread
 * meanwhile: after a process with an io_uring channel was killed, the kernel closes the sockets
 * in its ring up to 0.2 s later. With epoll there is no delay.
 *
 * Returns a blocking descriptor with close-on-exec, which is the caller's; or -1 and errno, and
 * mp_error() names the address, the cause and the remedy.
 *
 * Errors:
 *   EADDRINUSE      another process listens there, and still does after one second
 *   EADDRNOTAVAIL   no interface has the address
 *   EACCES          the port needs CAP_NET_BIND_SERVICE
 *   EAFNOSUPPORT    the address is of another family
 *   EINVAL          size does not suit the family, or backlog is below 0
 *   EMFILE, ENFILE  there is no descriptor left
 */
int mp_listen(const struct sockaddr *address, socklen_t size, int backlog);

/*
 * Another descriptor for the same socket or file: the way from a lightweight socket to a regular
 * one. It is the caller's to close. The handle stays registered and works on.
 *
 * Returns the descriptor, or -1 and errno.
 *
 * Errors:
 *   EMFILE, ENFILE  there is no descriptor left
 */
int mp_to_fd(mp_handle handle);

/*
 * Sets an option of a socket as setsockopt(2) does, also of a lightweight socket: those at the
 * levels SOL_SOCKET and IPPROTO_TCP. At once, not in the order of requests.
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
 * The address of the other side of a connection, as getpeername(2) gives it, also of a
 * lightweight socket. *size: before the call the room at address, after it the size of the
 * address, of which no more than the room was filled.
 *
 * Errors:
 *   ENOTCONN      it is not connected
 *   EAFNOSUPPORT  the address is none of AF_INET, AF_INET6 and AF_UNIX
 */
int mp_peer_address(mp_handle handle, struct sockaddr *address, socklen_t *size);

/*
 * Makes accept queues of a listening TCP socket for processes that are about to be forked: one
 * socket for each set of CPUs, which listens on the same address and gets the connections whose
 * handshake runs on those CPUs (report, section 3.4.1). The listener keeps the other CPUs.
 *
 * fds[i] is -1 to have a socket made for masks[i], or one that an earlier call made: those come
 * first, in the same order, with their new masks. Each process registers its own socket, as any
 * listener. The parent keeps all of them open: then a worker that ends loses no connection. A
 * mask may be empty; what waits in its socket must still be accepted by a process. Threads of one
 * process need none of this: see mp_register(). Connections of a CPU in several masks are spread
 * among their sockets at random, so that more processes than CPUs share them.
 *
 * Errors:
 *   EINVAL      count is not 1 to 1024, a known socket follows a new one, or the socket does not
 *               listen
 *   E2BIG       masks overlap in more ways than the kernel's program has room for
 *   EADDRINUSE  SO_REUSEPORT is set already, by something else
 *   EOPNOTSUPP  it is no TCP socket
 *   EACCES      the listener was made under another user id
 */
int mp_partition(int listen_fd, const cpu_set_t *masks, int count, int *fds);

/*
 * This thread's last error in words: what went wrong, and what would help.
 *
 * The text is valid until the next call of mp_error() in the same thread, and stays the same
 * while calls succeed. It is empty if no call has failed. errno is left as it is.
 *
 * Failures of requests are no errors of calls: they come as events, with their number in
 * mp_event.error.
 */
const char *mp_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif  /* MEGAPIPE_H */
