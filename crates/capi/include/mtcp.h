/*
 * mtcp.h - TCP in user space for C and C++: libmegapipe
 *
 * Made by `cargo xtask header`; change the comments in crates/capi/src/mtcp instead.
 *
 * The calls of mTCP's paper and of its public headers, with the meaning of the man pages whose
 * names they have: a program of sockets and epoll becomes one of mTCP by the prefix and a context
 * as the first argument. Packets go through AF_XDP, AF_PACKET or a TAP device instead of the
 * kernel's TCP. A server, which as a whole is examples/c/mtcp_echo.c:
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
 * TCP. It also says whether a stack has a thread of its own (engine.mode = "paired") or moves only
 * while its context's thread calls ("complete", the default): then a program must not stay away
 * from mtcp_epoll_wait(), or another call that waits, for long.
 *
 * Errors. A call that fails gives -1 (or NULL, or SIG_ERR) and sets errno; mp_error() of megapipe.h
 * says in words what went wrong and what would help. Besides what each call names:
 *   EINVAL           the context is unknown: NULL, none at all, or destroyed
 *   EPERM            the context is another thread's, or was created before a fork
 *   EBADF            the number of a socket, an epoll or an end of a pipe is not open
 *   ENOTSOCK         it is of an epoll or a pipe, and the call is for sockets
 *   EFAULT           a pointer is NULL that must not be
 *   EDEADLK          called by a signal handler that interrupted a call of the same thread
 *   ENOTRECOVERABLE  a defect of the library; the thread's contexts cannot be used any more
 *
 * Numbers of sockets are the context's own, from 0, and no file descriptors. Sockets block until
 * mtcp_setsock_nonblock(). Where the public header has int for a length or char * for memory, here
 * are size_t, ssize_t and void *: programs compile as they are.
 *
 * Threads. A context belongs to the thread that created it, and is destroyed with it; a thread may
 * have several. Only mtcp_write() to a pipe may come from other threads. mtcp_init(),
 * mtcp_destroy(), mtcp_getconf(), mtcp_setconf() and mtcp_register_signal() concern the process.
 * Nothing may be called in signal handlers. After a fork contexts stay the parent's: call
 * mtcp_destroy() and mtcp_init() in the child.
 *
 * Linux 5.10 or later; over AF_XDP, long frames need 6.6.
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

/* For mtcp_socket(): the same as SOCK_STREAM. */
#define MTCP_SOCK_STREAM 1

/* Nothing. */
#define MTCP_EPOLLNONE 0

/* Data, the end of the stream, or a connection can be taken. */
#define MTCP_EPOLLIN 1

/* Urgent data: never told, as there is none. */
#define MTCP_EPOLLPRI 2

/* Data can be sent. */
#define MTCP_EPOLLOUT 4

/* The connection has failed. Told whether asked for or not. */
#define MTCP_EPOLLERR 8

/* Both directions have ended. Told whether asked for or not. */
#define MTCP_EPOLLHUP 16

/* Never told: use MTCP_EPOLLIN. */
#define MTCP_EPOLLRDNORM 64

/* Never told. */
#define MTCP_EPOLLRDBAND 128

/* Never told: use MTCP_EPOLLOUT. */
#define MTCP_EPOLLWRNORM 256

/* Never told. */
#define MTCP_EPOLLWRBAND 512

/* Never told. */
#define MTCP_EPOLLMSG 1024

/* The peer has ended its direction. */
#define MTCP_EPOLLRDHUP 8192

/* Told once, then silent until the next mtcp_epoll_ctl(). */
#define MTCP_EPOLLONESHOT 1073741824

/* Told when it comes, not as long as it holds. */
#define MTCP_EPOLLET 2147483648

/* What mtcp_epoll_ctl() does. */
typedef enum mtcp_epoll_op {
    MTCP_EPOLL_CTL_ADD = 1, /* Begins to watch. */
    MTCP_EPOLL_CTL_DEL = 2, /* Ends watching. */
    MTCP_EPOLL_CTL_MOD = 3 /* Changes what is waited for; an event that is there is told anew. */
} mtcp_epoll_op;

/* A context, behind mctx_t. */
typedef struct mtcp_context mtcp_context;

/* Some of the settings, for mtcp_getconf() and mtcp_setconf(); the others are in the file only. */
typedef struct mtcp_conf {
    /* Stacks, and contexts that there can be: 1 to 256 (engine.cores). */
    int num_cores;
    /*
     * Connections and listeners of each core that may exist at once, without TIME_WAIT: 1 to 2^24
     * (tcp.max_sockets). socket.max_descriptors is raised if it is lower.
     */
    int max_concurrency;
    /*
     * How many connections of each core can have full buffers of rcvbuf_size and sndbuf_size at
     * once; beyond, windows shrink (tcp.max_buffer_bytes).
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

/* What mtcp_register_signal() takes: a function, SIG_DFL or SIG_IGN. */
typedef void (*mtcp_sighandler_t)(int);

/* The program's own, in an event; the library only carries it. */
typedef union mtcp_epoll_data {
    void *ptr;
    int sockid;
    uint32_t u32;
    uint64_t u64;
} mtcp_epoll_data;

/* The name that the public header gives it. */
typedef union mtcp_epoll_data mtcp_epoll_data_t;

/* What is waited for, or what has come. */
typedef struct mtcp_epoll_event {
    /* MTCP_EPOLL..., with the values of epoll(7). */
    uint32_t events;
    /* The program's own. */
    mtcp_epoll_data_t data;
} mtcp_epoll_event;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Reads the settings (paper, Table 1): a file as docs/mtcp.toml shows it. NULL stands for the file
 * that the environment variable MTCP_CONFIG names. What mtcp_setconf() has set before wins.
 *
 * Nothing is opened yet: that the first mtcp_create_context() does, so that mtcp_setconf() still
 * can change things, and a parent can read settings for its children.
 *
 * Errors:
 *   ENOENT  there is no such file, or NULL was given and there is no MTCP_CONFIG
 *   EINVAL  the file is wrong: mp_error() names line, setting and range
 *   EBUSY   it was called before: mtcp_destroy() comes first
 */
int mtcp_init(const char *config_file);

/*
 * Forgets settings and stacks; then mtcp_init() may be called again. Contexts that still exist
 * keep what they need until their end. It cannot fail, and may be called without mtcp_init().
 */
void mtcp_destroy(void);

/*
 * Tells settings: the file's after mtcp_init(), else the defaults, with mtcp_setconf()'s changes.
 */
int mtcp_getconf(struct mtcp_conf *conf);

/*
 * Changes settings, before or after mtcp_init(), until the first context is created. Fields of 0
 * and below change nothing, so that { 0 } is a good start.
 *
 * Errors:
 *   EINVAL  a field is out of range
 *   EBUSY   there has been a context already
 */
int mtcp_setconf(const struct mtcp_conf *conf);

/*
 * Keeps the calling thread on one CPU.
 *
 * Errors:
 *   EINVAL  there is no such CPU, or the process may not use it
 */
int mtcp_core_affinitize(int cpu);

/*
 * Creates the context of a core for the calling thread (paper, Table 1). The first one of a
 * process opens the device and makes the stacks of all cores.
 *
 * cpu: the core, from 0 to mtcp_conf.num_cores - 1. It is no CPU's number: a thread stays on a CPU
 * by mtcp_core_affinitize(), and a paired stack's thread by engine.cpus. Each core can be had once
 * until mtcp_destroy(). Connections that steer to a core without a context are not answered, so
 * create all of them.
 *
 * A thread that ends without mtcp_destroy_context() has its contexts destroyed.
 *
 * Returns the context, or NULL and errno.
 *
 * Errors:
 *   EINVAL  no mtcp_init(), no such core, or settings that do not fit: mp_error() says which
 *   EBUSY   the core's context has been created before
 *   EMFILE  1024 contexts exist in the process, or there is no descriptor left
 *   EPERM   a capability is missing: CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF for AF_XDP,
 *           CAP_NET_RAW for AF_PACKET, CAP_NET_ADMIN for TAP; or the stacks were made before a
 *           fork, by the parent
 *   ENODEV, ...  the device cannot be opened: mp_error() names the remedy
 */
mctx_t mtcp_create_context(int cpu);

/*
 * Destroys a context of the calling thread: all of its sockets are closed. What was written is
 * still sent, for at most socket.grace_ms; connections that need longer are reset.
 */
int mtcp_destroy_context(mctx_t mctx);

/*
 * Sets the handler of a signal for the whole process, as signal(2) does, so that it also ends
 * waiting: all contexts' mtcp_epoll_wait() that wait, or else the next ones that would, fail with
 * EINTR. Other calls go on.
 *
 * handler: a function, SIG_DFL or SIG_IGN. It runs on the thread that the signal interrupts, and
 * may call nothing of this library.
 *
 * Returns the handler before; or SIG_ERR and errno.
 *
 * Errors:
 *   EINVAL  there is no such signal, or it can have no handler
 */
mtcp_sighandler_t mtcp_register_signal(int signum, mtcp_sighandler_t handler);

/*
 * Creates a socket, as socket(2) does (paper, Table 1).
 *
 * domain: AF_INET, or AF_INET6, which then is IPv6 only. type: SOCK_STREAM, or MTCP_SOCK_STREAM,
 * which is the same; with SOCK_NONBLOCK its calls do not block; SOCK_CLOEXEC says what holds
 * anyway. protocol: 0 or IPPROTO_TCP.
 *
 * Returns its number, the lowest that is free in the context, from 0; or -1 and errno. It is no
 * file descriptor.
 *
 * Errors:
 *   EAFNOSUPPORT     the domain is another
 *   ESOCKTNOSUPPORT  the type is another
 *   EPROTONOSUPPORT  the protocol is another
 *   EMFILE           socket.max_descriptors are open
 */
int mtcp_socket(mctx_t mctx, int domain, int type, int protocol);

/*
 * Gives a socket its local address, as bind(2) does (paper, Table 1). Port 0 takes a free one.
 *
 * Errors:
 *   EINVAL         it is bound or connected already, or addrlen does not suit the family
 *   EAFNOSUPPORT   the family of the address is not that of the socket
 *   EADDRNOTAVAIL  the address is none of the stack's
 *   EADDRINUSE     another socket has it
 */
int mtcp_bind(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/*
 * Begins to listen, as listen(2) does (paper, Table 1); a socket that is not bound gets a free
 * port. Each core listens for itself: connections that steer to a core on which none listens are
 * refused.
 *
 * backlog: how many connections may wait for mtcp_accept(); below 0 as many as can be.
 *
 * Errors:
 *   EINVAL           it is connected
 *   EADDRINUSE       another socket listens there
 *   EADDRNOTAVAIL    the address is the stack's no more
 *   ENFILE           tcp.max_sockets exist
 */
int mtcp_listen(mctx_t mctx, int sockid, int backlog);

/*
 * Takes a connection that has come in, as accept(2) does (paper, Table 1). Its calls block,
 * whether or not those of the listener do; it has the listener's options.
 *
 * addr may be NULL. Else the peer's address is written there, with *addrlen as in
 * mtcp_getpeername().
 *
 * Returns the number of the new socket, or -1 and errno.
 *
 * Errors:
 *   EINVAL           it does not listen
 *   EAGAIN           there is none, and the listener does not block, or SO_RCVTIMEO is over
 *   EMFILE           socket.max_descriptors are open; the connection waits on
 */
int mtcp_accept(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Connects a socket, as connect(2) does (paper, Table 1). A blocking one waits for the outcome, at
 * most its SO_SNDTIMEO. The outcome of another is told by MTCP_EPOLLOUT, or by MTCP_EPOLLERR and
 * SO_ERROR.
 *
 * Errors:
 *   EINPROGRESS      it does not block and has begun, or SO_SNDTIMEO is over
 *   EALREADY         it does not block and has not ended
 *   EISCONN          it is connected
 *   EINVAL           it listens, or addrlen does not suit the family
 *   ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH  the attempt has failed; another one may be made
 *   EADDRNOTAVAIL, EADDRINUSE  no port is free for this destination
 *   EAFNOSUPPORT     the family of the address is not that of the socket
 *   ENFILE           tcp.max_sockets exist
 */
int mtcp_connect(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

/*
 * Chooses from which addresses sockets connect that are bound to none: num_addr from saddr_base
 * on, in turn (paper, Table 1). INADDR_ANY for saddr_base leaves the choice to the stack.
 *
 * daddr and dport: for connections to that address only; INADDR_ANY for all. All are in network
 * byte order. Every port is chosen so that the answers come to this core, with this call or
 * without: what it adds is that more addresses give more ports to one destination.
 *
 * Errors:
 *   EINVAL         num_addr is not 1 to 65536, or dport is no port
 *   EADDRNOTAVAIL  one of the addresses is none of the stack's
 */
int mtcp_init_rss(mctx_t mctx,
                  in_addr_t saddr_base,
                  int num_addr,
                  in_addr_t daddr,
                  in_addr_t dport);

/*
 * Gives a socket, an epoll or an end of a pipe up, as close(2) does (paper, Table 1). What was
 * written is still sent, unless something that came was not read: then the peer sees a reset. With
 * SO_LINGER it waits as long as that says.
 *
 * Errors:
 *   EAGAIN  SO_LINGER was not long enough; sockid is closed nevertheless
 */
int mtcp_close(mctx_t mctx, int sockid);

/* Gives a socket up with a reset; what was written and not sent is lost. */
int mtcp_abort(mctx_t mctx, int sockid);

/*
 * Ends one or both directions of a connection, as shutdown(2) does: SHUT_RD, SHUT_WR, SHUT_RDWR.
 *
 * Errors:
 *   ENOTCONN         it is not connected
 *   EINVAL           how is none of the three
 */
int mtcp_shutdown(mctx_t mctx, int sockid, int how);

/*
 * The local address of a socket, as getsockname(2) gives it; unspecified if there is none yet.
 * *addrlen: before the call the room at addr, after it the size of the address, of which no more
 * than the room was filled.
 */
int mtcp_getsockname(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * The address of the other side of a connection, as getpeername(2) gives it. *addrlen as in
 * mtcp_getsockname().
 *
 * Errors:
 *   ENOTCONN         it is not connected
 */
int mtcp_getpeername(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

/*
 * Reads what has come, at most len bytes, as read(2) does (paper, Table 1); also from a pipe. A
 * blocking socket waits for the first byte, at most its SO_RCVTIMEO.
 *
 * Returns how many bytes there are, 0 at the end of the stream (and for a len of 0), or -1 and
 * errno.
 *
 * Errors:
 *   EBADF       it is the writing end of a pipe
 *   EAGAIN      nothing is there, and the socket does not block, or SO_RCVTIMEO is over
 *   ENOTCONN    it is not connected
 *   ECONNRESET, ETIMEDOUT, EHOSTUNREACH  the connection has failed; told once
 *   EINVAL      it is an epoll, or len is above SSIZE_MAX
 */
ssize_t mtcp_read(mctx_t mctx, int sockid, void *buf, size_t len);

/*
 * Like mtcp_read(), with flags as in recv(2): MSG_PEEK leaves the data where it is, MSG_DONTWAIT
 * does not block, MSG_WAITALL waits until all of len is there or the stream ends, MSG_OOB takes
 * the urgent byte (tcp(7)).
 *
 * Returns as mtcp_read().
 *
 * Errors:
 *   EOPNOTSUPP  another flag
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
 * Writes, as write(2) does (paper, Table 1); also to a pipe. A blocking socket takes all of it, at
 * most for its SO_SNDTIMEO; another what it has room for. No SIGPIPE is raised.
 *
 * The writing end of a pipe may be written to by every thread of the process, which wakes the
 * context whose pipe it is: up to 4096 bytes are written whole or not at all.
 *
 * Returns how many bytes were taken, or -1 and errno.
 *
 * Errors:
 *   EBADF     it is the reading end of a pipe
 *   EAGAIN    there is no room, and the socket does not block, or SO_SNDTIMEO is over
 *   EPIPE     it is not connected, this side has ended its direction, or the connection has failed
 *             and that was told; of a pipe, the reading end is closed
 *   ECONNRESET, ETIMEDOUT, EHOSTUNREACH  the connection has failed; told once
 *   EINVAL    it is an epoll, or len is above SSIZE_MAX
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
 * Makes a pipe within the process, as pipe(2) does: pipeid[0] is the end to read from, pipeid[1]
 * the one to write to. Both belong to the context, never block, and may be watched by an epoll.
 * See mtcp_write() for how other threads use it.
 *
 * Errors:
 *   EMFILE  socket.max_descriptors are open
 */
int mtcp_pipe(mctx_t mctx, int *pipeid);

/*
 * Tells an option, as getsockopt(2) does, with the levels, names and forms of socket(7) and
 * tcp(7). *optlen: before the call the room at optval, after it the length of the value.
 *
 * At SOL_SOCKET: SO_ERROR, SO_TYPE, SO_ACCEPTCONN, SO_REUSEADDR, SO_KEEPALIVE, SO_LINGER,
 * SO_SNDBUF, SO_RCVBUF, SO_RCVLOWAT, SO_RCVTIMEO and SO_SNDTIMEO. At IPPROTO_TCP: TCP_NODELAY,
 * TCP_QUICKACK, TCP_USER_TIMEOUT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_MAXSEG,
 * TCP_CONGESTION, TCP_DEFER_ACCEPT and TCP_INFO. At IPPROTO_IPV6: IPV6_V6ONLY; without it a socket
 * on :: takes IPv4 connections as well.
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
 * Sets an option, as setsockopt(2) does; see mtcp_getsockopt() for which there are. SO_SNDBUF and
 * SO_RCVBUF are not doubled, and TCP_QUICKACK stays set.
 *
 * Errors:
 *   ENOPROTOOPT      there is no such option, or it can only be told
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
 * with FIONBIO can undo it. Ends of pipes never block.
 *
 * Errors:
 *   EINVAL  it is an epoll
 */
int mtcp_setsock_nonblock(mctx_t mctx, int sockid);

/*
 * Asks about a socket, as ioctl(2) does. argp points to an int: FIONREAD writes how many bytes can
 * be read, TIOCOUTQ how many were written and are not acknowledged; FIONBIO reads whether calls
 * shall return instead of blocking.
 *
 * Errors:
 *   ENOTTY           another request
 *   EINVAL           the socket listens
 */
int mtcp_socket_ioctl(mctx_t mctx, int sockid, int request, void *argp);

/*
 * Creates an epoll, as epoll_create(2) does; size must be above 0 and says nothing.
 *
 * Returns its number, for mtcp_close() as well; or -1 and errno.
 *
 * Errors:
 *   EINVAL  size is not above 0
 *   EMFILE  socket.max_descriptors are open
 */
int mtcp_epoll_create(mctx_t mctx, int size);

/*
 * Creates an epoll, as epoll_create1(2) does. flags: 0 or EPOLL_CLOEXEC, which says what holds
 * anyway.
 *
 * Returns its number, or -1 and errno.
 *
 * Errors:
 *   EINVAL  flags are unknown
 *   EMFILE  socket.max_descriptors are open
 */
int mtcp_epoll_create1(mctx_t mctx, int flags);

/*
 * Changes what an epoll watches, as epoll_ctl(2) does: sockets, ends of pipes, other epolls.
 *
 * op: one of enum mtcp_epoll_op. event is not looked at by MTCP_EPOLL_CTL_DEL. What is closed is
 * watched no longer.
 *
 * Errors:
 *   EINVAL  epid is no epoll, or sockid the same; op is unknown
 *   EEXIST  it is watched already
 *   ENOENT  it is not watched
 *   ELOOP   epolls would watch each other, or too deeply
 */
int mtcp_epoll_ctl(mctx_t mctx, int epid, int op, int sockid, struct mtcp_epoll_event *event);

/*
 * Waits until something is ready, as epoll_wait(2) does, and moves the stack meanwhile if that has
 * no thread of its own (paper, section 3.2).
 *
 * maxevents: above 0; a call gives at most 4096 events. timeout: in milliseconds, 0 to look only,
 * below 0 to wait for ever. What is not dealt with is told again, unless it is watched with
 * MTCP_EPOLLET or MTCP_EPOLLONESHOT; those that came late have their turn first.
 *
 * Returns how many events there are, 0 if the time is up, or -1 and errno.
 *
 * Errors:
 *   EINVAL  epid is no epoll, or maxevents is not above 0
 *   EINTR   a signal handler ran while it waited, or one that mtcp_register_signal() has set since
 *           the last wait
 *   ENXIO, ENETDOWN, ...  the device is gone
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
