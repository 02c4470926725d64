/*
 * mtcp.h - TCP in user space for C and C++: libmegapipe
 *
 * Made by `cargo xtask header`; change the comments in crates/capi/src/mtcp instead.
 *
 * Declares the calls of mTCP's paper and of its public headers. Each has the meaning of the man
 * page of the same name: to convert a program with sockets and epoll, add the prefix, and a
 * context as the first argument. Packets go through AF_XDP, AF_PACKET or a TAP device instead of
 * the kernel's TCP. A server (the full program is examples/c/mtcp_echo.c):
 *
 *     mtcp_init("mtcp.toml");
 *     mctx_t mctx = mtcp_create_context(0);
 *     int listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0), count;
 *     int epoll = mtcp_epoll_create1(mctx, 0);
 *     struct mtcp_epoll_event event = { MTCP_EPOLLIN, { .sockid = listener } }, events[64];
 *
 *     mtcp_bind(mctx, listener, (struct sockaddr *)&address, sizeof address);
 *     mtcp_listen(mctx, listener, 1024);
 *     mtcp_setsock_nonblock(mctx, listener);
 *     mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, listener, &event);
 *     while ((count = mtcp_epoll_wait(mctx, epoll, events, 64, -1)) >= 0)
 *         ...
 *
 * The paper: EunYoung Jeong et al., mTCP: a Highly Scalable User-level TCP Stack for Multicore
 * Systems, NSDI 2014.
 *
 * Settings. The file that mtcp_init() reads is TOML, see docs/mtcp.toml: device, addresses, cores,
 * TCP. It also says whether a stack has a thread of its own (engine.mode = "paired") or runs only
 * during calls of its context's thread ("complete", the default). In the second case a program must
 * call mtcp_epoll_wait(), or another call that waits, often enough.
 *
 * Errors. A call that fails returns -1 (or NULL, or SIG_ERR) and sets errno; mp_error() of
 * megapipe.h describes the failure and the remedy. Besides the errors that each call names:
 *   EINVAL           the context is unknown: NULL, not a context, or destroyed
 *   EPERM            the context is another thread's, or was created before a fork
 *   EBADF            the number of a socket, an epoll instance or an end of a pipe is not open
 *   ENOTSOCK         it is an epoll instance or a pipe, and the call is for sockets
 *   EFAULT           a pointer is NULL that must not be
 *   EDEADLK          called by a signal handler that interrupted a call of the same thread
 *   ENOTRECOVERABLE  a defect of the library; the thread's contexts cannot be used any more
 *
 * Numbers of sockets start at 0 in each context, and are not file descriptors. Sockets block until
 * mtcp_setsock_nonblock(). Where mTCP's public header has int for a length or char * for memory,
 * this one has size_t, ssize_t and void *: programs compile without changes.
 *
 * Threads. A context belongs to the thread that created it, and is destroyed with it; a thread may
 * have several. Other threads may only call mtcp_write() to a pipe. mtcp_init(), mtcp_destroy(),
 * mtcp_getconf(), mtcp_setconf() and mtcp_register_signal() apply to the process. Signal handlers
 * must not call this library. After a fork contexts belong to the parent: call mtcp_destroy() and
 * mtcp_init() in the child.
 *
 * Needs Linux 5.10 or later; over AF_XDP, long frames need 6.6.
 */

#ifndef MTCP_H
#define MTCP_H

#include <megapipe.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

/* For mtcp_socket(): the same value as SOCK_STREAM. */
#define MTCP_SOCK_STREAM 1

/* No event. */
#define MTCP_EPOLLNONE 0

/* Data, the end of the stream, or a connection is available. */
#define MTCP_EPOLLIN 1

/* Urgent data: never reported, because there is none. */
#define MTCP_EPOLLPRI 2

/* Data can be sent. */
#define MTCP_EPOLLOUT 4

/* The connection has failed. Reported even if not requested. */
#define MTCP_EPOLLERR 8

/* Both directions have ended. Reported even if not requested. */
#define MTCP_EPOLLHUP 16

/* Never reported: use MTCP_EPOLLIN. */
#define MTCP_EPOLLRDNORM 64

/* Never reported. */
#define MTCP_EPOLLRDBAND 128

/* Never reported: use MTCP_EPOLLOUT. */
#define MTCP_EPOLLWRNORM 256

/* Never reported. */
#define MTCP_EPOLLWRBAND 512

/* Never reported. */
#define MTCP_EPOLLMSG 1024

/* The peer has ended its direction. */
#define MTCP_EPOLLRDHUP 8192

/* Reported once, then not until the next mtcp_epoll_ctl(). */
#define MTCP_EPOLLONESHOT 1073741824

/* Reported when it occurs, not as long as it holds. */
#define MTCP_EPOLLET 2147483648

/* The operations of mtcp_epoll_ctl(). */
typedef enum mtcp_epoll_op {
    MTCP_EPOLL_CTL_ADD = 1, /* Starts to watch. */
    MTCP_EPOLL_CTL_DEL = 2, /* Ends watching. */
    MTCP_EPOLL_CTL_MOD = 3 /* Changes the events; an event that still holds is reported again. */
} mtcp_epoll_op;

/* The context to which an mctx_t points. */
typedef struct mtcp_context mtcp_context;

/* Some of the settings, for mtcp_getconf() and mtcp_setconf(); only the file has the others. */
typedef struct mtcp_conf {
    /* The number of stacks, and so of possible contexts: 1 to 256 (engine.cores). */
    int num_cores;
    /*
     * Connections and listeners of each core that may exist at once, without TIME_WAIT: 1 to 2^24
     * (tcp.max_sockets). socket.max_descriptors is raised if it is lower.
     */
    int max_concurrency;
    /*
     * How many connections of each core can have full buffers of rcvbuf_size and sndbuf_size at
     * once; with more connections, windows shrink (tcp.max_buffer_bytes).
     */
    int max_num_buffers;
    /* Bytes of a connection's receive buffer: 4096 to 2^26 (tcp.receive_buffer_bytes). */
    int rcvbuf_size;
    /* Bytes of a connection's send buffer: 4096 to 2^26 (tcp.send_buffer_bytes). */
    int sndbuf_size;
    /* How long TIME_WAIT lasts, in milliseconds (twice tcp.maximum_segment_lifetime_ms). */
    int tcp_timewait;
    /*
     * How long data may stay unacknowledged before its connection fails, in milliseconds
     * (tcp.give_up_ms).
     */
    int tcp_timeout;
} mtcp_conf;

/* The sockets of one core, from mtcp_create_context(). It belongs to the thread that created it. */
typedef struct mtcp_context *mctx_t;

/* The handler that mtcp_register_signal() takes: a function, SIG_DFL or SIG_IGN. */
typedef void (*mtcp_sighandler_t)(int);

/* The program's own value in an event; the library only stores it. */
typedef union mtcp_epoll_data {
    void *ptr;
    int sockid;
    uint32_t u32;
    uint64_t u64;
} mtcp_epoll_data;

/* The name of the union in mTCP's public header. */
typedef union mtcp_epoll_data mtcp_epoll_data_t;

/* The events to wait for, or the events that occurred. */
typedef struct mtcp_epoll_event {
    /* MTCP_EPOLL..., with the values of epoll(7). */
    uint32_t events;
    /* The program's own value. */
    mtcp_epoll_data_t data;
} mtcp_epoll_event;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Reads the settings (paper, Table 1) from a file such as docs/mtcp.toml. NULL stands for the file
 * that the environment variable MTCP_CONFIG names. Earlier settings of mtcp_setconf() take
 * precedence.
 *
 * It opens no device: the first mtcp_create_context() does. So mtcp_setconf() can still change
 * settings, and a parent can read settings for its children.
 *
 * Errors:
 *   ENOENT  there is no such file, or config_file is NULL and MTCP_CONFIG is not set
 *   EINVAL  the file is wrong: mp_error() names line, setting and range
 *   EBUSY   it was called before: call mtcp_destroy() first
 */
int mtcp_init(const char *config_file);

/*
 * Discards settings and stacks; then mtcp_init() may be called again. Contexts that still exist
 * keep what they need until their end. It cannot fail, and may be called without mtcp_init().
 */
void mtcp_destroy(void);

/*
 * Reads the settings: those of the file after mtcp_init(), else the defaults, with the changes of
 * mtcp_setconf().
 */
int mtcp_getconf(struct mtcp_conf *conf);

/*
 * Changes settings, before or after mtcp_init(), until the first context is created. Fields of 0
 * and below change nothing, so start with { 0 }.
 *
 * Errors:
 *   EINVAL  a field is out of range
 *   EBUSY   a context was created already
 */
int mtcp_setconf(const struct mtcp_conf *conf);

/*
 * Binds the calling thread to one CPU.
 *
 * Errors:
 *   EINVAL  there is no such CPU, or the process may not use it
 */
int mtcp_core_affinitize(int cpu);

/*
 * Creates the context of a core for the calling thread (paper, Table 1). The first context of a
 * process opens the device and creates the stacks of all cores.
 *
 * cpu: the core, from 0 to mtcp_conf.num_cores - 1. It is not the number of a CPU: bind a thread
 * to a CPU by mtcp_core_affinitize(), and the thread of a paired stack by engine.cpus. Each core
 * can have one context until mtcp_destroy(). Connections that steer to a core without a context
 * get no answer, so create all contexts.
 *
 * When a thread ends without mtcp_destroy_context(), its contexts are destroyed.
 *
 * Returns the context, or NULL and errno.
 *
 * Errors:
 *   EINVAL  mtcp_init() is missing, there is no such core, or settings do not fit: mp_error() says
 *           which
 *   EBUSY   the core's context was created before
 *   EMFILE  1024 contexts exist in the process, or there is no descriptor left
 *   EPERM   a capability is missing: CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF for AF_XDP,
 *           CAP_NET_RAW for AF_PACKET, CAP_NET_ADMIN for TAP; or the parent created the stacks
 *           before a fork
 *   ENODEV, ...  the device cannot be opened: mp_error() names the remedy
 */
mctx_t mtcp_create_context(int cpu);

/*
 * Destroys a context of the calling thread and closes all its sockets. Data that was written is
 * still sent, for at most socket.grace_ms; connections that need longer are reset.
 */
int mtcp_destroy_context(mctx_t mctx);

/*
 * Sets the handler of a signal for the whole process, as signal(2) does, and lets the signal end
 * waits. All running mtcp_epoll_wait() of all contexts, or else the next ones, fail with EINTR.
 * Other calls continue.
 *
 * handler: a function, SIG_DFL or SIG_IGN. It runs on the thread that the signal interrupts, and
 * must not call this library.
 *
 * Returns the previous handler; or SIG_ERR and errno.
 *
 * Errors:
 *   EINVAL  there is no such signal, or it can have no handler
 */
mtcp_sighandler_t mtcp_register_signal(int signum, mtcp_sighandler_t handler);

/*
 * Creates a socket, as socket(2) does (paper, Table 1).
 *
 * domain: AF_INET, or AF_INET6, which then is IPv6 only. type: SOCK_STREAM, or MTCP_SOCK_STREAM,
 * which is the same. With SOCK_NONBLOCK the socket's calls do not block; SOCK_CLOEXEC has no
 * effect, because its meaning always holds. protocol: 0 or IPPROTO_TCP.
 *
 * Returns its number, the lowest that is free in the context, from 0; or -1 and errno. It is not a
 * file descriptor.
 *
 * Errors:
 *   EAFNOSUPPORT     the domain is another one
 *   ESOCKTNOSUPPORT  the type is another one
 *   EPROTONOSUPPORT  the protocol is another one
 *   EMFILE           socket.max_descriptors are open
 */
int mtcp_socket(mctx_t mctx, int domain, int type, int protocol);

/*
 * Binds a socket to a local address, as bind(2) does (paper, Table 1). Port 0 selects a free one.
 *
 * Errors:
 *   EINVAL         it is bound or connected already, or addrlen does not fit the family
 *   EAFNOSUPPORT   the family of the address is not that of the socket
 *   EADDRNOTAVAIL  the stack does not have the address
 *   EADDRINUSE     another socket has it
 */
int mtcp_bind(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/*
 * Starts to listen, as listen(2) does (paper, Table 1); a socket that is not bound gets a free
 * port. Each core listens for itself: connections that steer to a core without a listener are
 * refused.
 *
 * backlog: how many connections may wait for mtcp_accept(); below 0 the maximum.
 *
 * Errors:
 *   EINVAL           it is connected
 *   EADDRINUSE       another socket listens there
 *   EADDRNOTAVAIL    the stack no longer has the address
 *   ENFILE           tcp.max_sockets exist
 */
int mtcp_listen(mctx_t mctx, int sockid, int backlog);

/*
 * Accepts a connection, as accept(2) does (paper, Table 1). Calls on the new socket block, whether
 * or not those of the listener do; it has the listener's options.
 *
 * addr may be NULL. Else the peer's address is written there, with *addrlen as in
 * mtcp_getpeername().
 *
 * Returns the number of the new socket, or -1 and errno.
 *
 * Errors:
 *   EINVAL           it does not listen
 *   EAGAIN           no connection waits, and the listener does not block, or SO_RCVTIMEO is over
 *   EMFILE           socket.max_descriptors are open; the connection stays in the queue
 */
int mtcp_accept(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Connects a socket, as connect(2) does (paper, Table 1). A blocking socket waits for the result,
 * for its SO_SNDTIMEO at most. For a non-blocking one MTCP_EPOLLOUT reports success, and
 * MTCP_EPOLLERR with SO_ERROR a failure.
 *
 * Errors:
 *   EINPROGRESS      it does not block and has begun, or SO_SNDTIMEO is over
 *   EALREADY         it does not block and has not ended
 *   EISCONN          it is connected
 *   EINVAL           it listens, or addrlen does not fit the family
 *   ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH  the attempt has failed; you may try again
 *   EADDRNOTAVAIL, EADDRINUSE  no port is free for this destination
 *   EAFNOSUPPORT     the family of the address is not that of the socket
 *   ENFILE           tcp.max_sockets exist
 */
int mtcp_connect(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/*
 * Chooses the local addresses of connecting sockets that are not bound (paper, Table 1): num_addr
 * addresses from saddr_base on, in turn. INADDR_ANY for saddr_base leaves the choice to the stack.
 *
 * daddr and dport: only for connections to that address; INADDR_ANY for all. All are in network
 * byte order. The stack always chooses a port such that the answers arrive on this core, with or
 * without this call. The call adds addresses, and with them more ports to one destination.
 *
 * Errors:
 *   EINVAL         num_addr is not 1 to 65536, or dport is not a port
 *   EADDRNOTAVAIL  the stack does not have one of the addresses
 */
int mtcp_init_rss(mctx_t mctx,
                  in_addr_t saddr_base,
                  int num_addr,
                  in_addr_t daddr,
                  in_addr_t dport);

/*
 * Closes a socket, an epoll instance or an end of a pipe, as close(2) does (paper, Table 1). Data
 * that was written is still sent, unless received data was not read: then the peer sees a reset.
 * With SO_LINGER the call waits as long as that says.
 *
 * Errors:
 *   EAGAIN  SO_LINGER was not long enough; sockid is closed nevertheless
 */
int mtcp_close(mctx_t mctx, int sockid);

/* Closes a socket with a reset; data that was written and not sent is lost. */
int mtcp_abort(mctx_t mctx, int sockid);

/*
 * Ends one or both directions of a connection, as shutdown(2) does: SHUT_RD, SHUT_WR, SHUT_RDWR.
 *
 * Errors:
 *   ENOTCONN         it is not connected
 *   EINVAL           how is not one of the three
 */
int mtcp_shutdown(mctx_t mctx, int sockid, int how);

/*
 * The local address of a socket, as getsockname(2) returns it; unspecified if it has none yet.
 * *addrlen: before the call the room at addr, after it the size of the address, of which no more
 * than the room was filled.
 */
int mtcp_getsockname(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * The address of the other side of a connection, as getpeername(2) returns it. *addrlen as in
 * mtcp_getsockname().
 *
 * Errors:
 *   ENOTCONN         it is not connected
 */
int mtcp_getpeername(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Reads the available bytes, at most len, as read(2) does (paper, Table 1); also from a pipe. A
 * blocking socket waits for the first byte, for its SO_RCVTIMEO at most.
 *
 * Returns the number of bytes, 0 at the end of the stream (and for a len of 0), or -1 and errno.
 *
 * Errors:
 *   EBADF       it is the writing end of a pipe
 *   EAGAIN      no byte is available, and the socket does not block, or SO_RCVTIMEO is over
 *   ENOTCONN    it is not connected
 *   ECONNRESET, ETIMEDOUT, EHOSTUNREACH  the connection has failed; reported once
 *   EINVAL      it is an epoll instance, or len is above SSIZE_MAX
 */
ssize_t mtcp_read(mctx_t mctx, int sockid, void *buf, size_t len);

/*
 * Reads like mtcp_read(), with flags as in recv(2). MSG_PEEK leaves the data in the socket,
 * MSG_DONTWAIT does not block, MSG_WAITALL waits until all of len has arrived or the stream ends,
 * MSG_OOB takes the urgent byte (tcp(7)).
 *
 * Returns as mtcp_read().
 *
 * Errors:
 *   EOPNOTSUPP  the flag is another one
 *   EINVAL      MSG_OOB: there is no urgent byte, or it was taken
 *   EAGAIN, ENOTCONN, ...  as mtcp_read()
 */
ssize_t mtcp_recv(mctx_t mctx, int sockid, void *buf, size_t len, int flags);

/*
 * Reads into several pieces of memory, filling one after the other, as readv(2) does. num_iov: 0
 * to 1024.
 *
 * Returns as mtcp_read().
 *
 * Errors:
 *   EINVAL  num_iov is out of range, or the lengths are above SSIZE_MAX together
 *   EAGAIN, ENOTCONN, ...  as mtcp_read()
 */
ssize_t mtcp_readv(mctx_t mctx, int sockid, const struct iovec *iov, int num_iov);

/*
 * Writes, as write(2) does (paper, Table 1); also to a pipe. A blocking socket takes all bytes,
 * within its SO_SNDTIMEO; a non-blocking one takes as many as it has room for. No SIGPIPE is
 * raised.
 *
 * Every thread of the process may write to the writing end of a pipe; this wakes the context that
 * owns the pipe. Up to 4096 bytes are written completely or not at all.
 *
 * Returns the number of bytes taken, or -1 and errno.
 *
 * Errors:
 *   EBADF     it is the reading end of a pipe
 *   EAGAIN    there is no room, and the socket does not block, or SO_SNDTIMEO is over
 *   EPIPE     it is not connected, this side has ended its direction, or the connection has failed
 *             and that was reported; of a pipe, the reading end is closed
 *   ECONNRESET, ETIMEDOUT, EHOSTUNREACH  the connection has failed; reported once
 *   EINVAL    it is an epoll instance, or len is above SSIZE_MAX
 */
ssize_t mtcp_write(mctx_t mctx, int sockid, const void *buf, size_t len);

/*
 * Writes several pieces of memory, in order, as writev(2) does. num_iov: 0 to 1024.
 *
 * Returns as mtcp_write().
 *
 * Errors:
 *   EINVAL  num_iov is out of range, or the lengths are above SSIZE_MAX together
 *   EAGAIN, EPIPE, ...  as mtcp_write()
 */
ssize_t mtcp_writev(mctx_t mctx, int sockid, const struct iovec *iov, int num_iov);

/*
 * Creates a pipe within the process, as pipe(2) does: pipeid[0] is the end to read from, pipeid[1]
 * the end to write to. Both belong to the context, never block, and may be watched by an epoll
 * instance. See mtcp_write() for its use by other threads.
 *
 * Errors:
 *   EMFILE  socket.max_descriptors are open
 */
int mtcp_pipe(mctx_t mctx, int *pipeid);

/*
 * Reads an option, as getsockopt(2) does, with the levels, names and forms of socket(7) and
 * tcp(7). *optlen: before the call the room at optval, after it the length of the value.
 *
 * At SOL_SOCKET: SO_ERROR, SO_TYPE, SO_ACCEPTCONN, SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER,
 * SO_SNDBUF, SO_RCVBUF, SO_RCVLOWAT, SO_RCVTIMEO and SO_SNDTIMEO. At IPPROTO_TCP: TCP_NODELAY,
 * TCP_QUICKACK, TCP_USER_TIMEOUT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_MAXSEG,
 * TCP_CONGESTION, TCP_DEFER_ACCEPT and TCP_INFO. At IPPROTO_IPV6: IPV6_V6ONLY; without it a socket
 * on :: also accepts IPv4 connections.
 *
 * Errors:
 *   ENOPROTOOPT      there is no such option
 *   EINVAL           *optlen is negative
 *   ENOTCONN         TCP_INFO of a socket without a connection
 */
int mtcp_getsockopt(mctx_t mctx,
                    int sockid,
                    int level,
                    int optname,
                    void *optval,
                    socklen_t *optlen);

/*
 * Sets an option, as setsockopt(2) does; mtcp_getsockopt() lists the options. SO_SNDBUF and
 * SO_RCVBUF are not doubled, and TCP_QUICKACK stays set.
 *
 * Errors:
 *   ENOPROTOOPT      there is no such option, or it is read-only
 *   EINVAL           optlen is too short, or the value is out of range
 */
int mtcp_setsockopt(mctx_t mctx,
                    int sockid,
                    int level,
                    int optname,
                    const void *optval,
                    socklen_t optlen);

/*
 * Makes the calls of a socket return instead of blocking (paper, Table 1). mtcp_socket_ioctl()
 * with FIONBIO can undo this. Ends of pipes never block.
 *
 * Errors:
 *   EINVAL  sockid is an epoll instance
 */
int mtcp_setsock_nonblock(mctx_t mctx, int sockid);

/*
 * Executes a request of ioctl(2) on a socket. argp points to an int. FIONREAD writes how many
 * bytes can be read, and TIOCOUTQ how many were written and are not acknowledged; FIONBIO reads
 * whether calls return instead of blocking.
 *
 * Errors:
 *   ENOTTY           the request is another one
 *   EINVAL           the socket listens
 */
int mtcp_socket_ioctl(mctx_t mctx, int sockid, int request, void *argp);

/*
 * Creates an epoll instance, as epoll_create(2) does; size must be above 0 and is not used.
 *
 * Returns its number, which mtcp_close() takes as well; or -1 and errno.
 *
 * Errors:
 *   EINVAL  size is not above 0
 *   EMFILE  socket.max_descriptors are open
 */
int mtcp_epoll_create(mctx_t mctx, int size);

/*
 * Creates an epoll instance, as epoll_create1(2) does. flags: 0 or EPOLL_CLOEXEC, which has no
 * effect because its meaning always holds.
 *
 * Returns its number, or -1 and errno.
 *
 * Errors:
 *   EINVAL  flags are unknown
 *   EMFILE  socket.max_descriptors are open
 */
int mtcp_epoll_create1(mctx_t mctx, int flags);

/*
 * Changes what an epoll instance watches, as epoll_ctl(2) does: sockets, ends of pipes, other
 * epoll instances.
 *
 * op: one of enum mtcp_epoll_op. MTCP_EPOLL_CTL_DEL does not read event. Closing a number ends its
 * watch.
 *
 * Errors:
 *   EINVAL  epid is not an epoll instance, or equals sockid; op is unknown
 *   EEXIST  it is watched already
 *   ENOENT  it is not watched
 *   ELOOP   epoll instances would watch each other, or too deeply
 */
int mtcp_epoll_ctl(mctx_t mctx, int epid, int op, int sockid, struct mtcp_epoll_event *event);

/*
 * Waits until something is ready, as epoll_wait(2) does (paper, section 3.2). Runs the stack
 * meanwhile if it has no thread of its own.
 *
 * maxevents: above 0; a call returns at most 4096 events. timeout: in milliseconds, 0 to return at
 * once, below 0 to wait without a limit. An event that still holds is reported again, unless it is
 * watched with MTCP_EPOLLET or MTCP_EPOLLONESHOT; events that were not returned come first in the
 * next call.
 *
 * Returns the number of events, 0 if the time is up, or -1 and errno.
 *
 * Errors:
 *   EINVAL  epid is not an epoll instance, or maxevents is not above 0
 *   EINTR   a signal handler ran during the wait, or one that mtcp_register_signal() has set since
 *           the last wait
 *   ENXIO, ENETDOWN, ...  the device has disappeared
 */
int mtcp_epoll_wait(mctx_t mctx,
                    int epid,
                    struct mtcp_epoll_event *events,
                    int maxevents,
                    int timeout);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif  /* MTCP_H */
