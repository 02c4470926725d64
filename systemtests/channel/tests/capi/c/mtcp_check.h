/* Shared by the test programs of contexts, in addition to check.h: the network, and
 * connections. */
#ifndef MTCP_CHECK_H
#define MTCP_CHECK_H

#include "check.h"

#include <mtcp.h>
#include <netinet/tcp.h>

/* Longer than any call takes; a call that waits that long has failed. */
enum { PATIENCE_MS = 20000 };

/* The addresses of the stack and of the kernel, at the two ends of the TAP device of the
 * settings. */
#define STACK "10.10.0.2"
#define KERNEL "10.10.0.1"

static mctx_t mctx;

/* Starts the stacks; the kernel's end of the device gets its address. */
static inline void start(const char *settings, int cores)
{
    struct mtcp_conf conf = { .num_cores = cores };

    CHECK(mtcp_setconf(&conf) == 0);
    CHECK(mtcp_init(settings) == 0);
    CHECK((mctx = mtcp_create_context(0)));
    CHECK(system("ip addr add " KERNEL "/24 dev mtcp0") == 0);
}

static inline void stop(void)
{
    CHECK(mtcp_destroy_context(mctx) == 0);
    mtcp_destroy();
}

static inline struct sockaddr_in at(const char *ip, int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

    CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
    return address;
}

static inline int socket_new(void)
{
    int sockid = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

    CHECK(sockid >= 0);
    return sockid;
}

/* Returns a non-blocking listening socket of the stack. */
static inline int stack_listening(int port)
{
    struct sockaddr_in address = at(STACK, port);
    int listener = socket_new();

    CHECK(mtcp_bind(mctx, listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mtcp_listen(mctx, listener, 16) == 0);
    CHECK(mtcp_setsock_nonblock(mctx, listener) == 0);
    return listener;
}

/* Returns a listening socket of the kernel at a free port. */
static inline int kernel_listening(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *address = at(KERNEL, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)address, size) == 0 && listen(fd, 16) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &size) == 0);
    return fd;
}

/* Returns a new epoll instance that watches one socket. */
static inline int watching(int sockid, uint32_t events)
{
    struct mtcp_epoll_event event = { .events = events, .data.sockid = sockid };
    int epoll = mtcp_epoll_create1(mctx, 0);

    CHECK(epoll >= 0);
    CHECK(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, sockid, &event) == 0);
    return epoll;
}

/* Waits until the socket is ready for one of the events; returns its ready events. */
static inline uint32_t await(int sockid, uint32_t events)
{
    struct mtcp_epoll_event event;
    int epoll = watching(sockid, events);

    CHECK(mtcp_epoll_wait(mctx, epoll, &event, 1, PATIENCE_MS) == 1);
    CHECK(event.data.sockid == sockid);
    CHECK(mtcp_close(mctx, epoll) == 0);
    return event.events;
}

/* Makes a connection that the kernel begins, and whose end in the stack does not block. */
static inline void connect_pair(int listener, int port, int *fd, int *sockid)
{
    struct sockaddr_in address = at(STACK, port);
    int on = 1;

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(connect(*fd, (struct sockaddr *)&address, sizeof address) == -1 && errno == EINPROGRESS);
    await(listener, MTCP_EPOLLIN);
    CHECK((*sockid = mtcp_accept(mctx, listener, NULL, NULL)) >= 0);
    CHECK(mtcp_setsock_nonblock(mctx, *sockid) == 0);
}

/* Reads what the kernel's end has received; runs the stack if necessary. */
static inline ssize_t kernel_read(int fd, void *room, size_t bytes)
{
    struct mtcp_epoll_event event;
    int epoll = mtcp_epoll_create1(mctx, 0);
    ssize_t got;

    for (int waited_ms = 0; (got = recv(fd, room, bytes, MSG_DONTWAIT)) < 0; waited_ms++) {
        if (errno != EAGAIN)
            break;
        CHECK(waited_ms < PATIENCE_MS);
        CHECK(mtcp_epoll_wait(mctx, epoll, &event, 1, 1) == 0);
    }
    int error = errno;
    CHECK(mtcp_close(mctx, epoll) == 0);
    errno = error;
    return got;
}

#endif
