/*
 * Tests what the calls do, and which calls are refused for contexts and sockets, with the kernel as
 * the peer. Needs permission to create a TAP device.
 *
 *   mtcp_calls CONFIG
 */
#define _GNU_SOURCE
#include "mtcp_check.h"

#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>

static int is_child;

/* AddressSanitizer calls this: a forked child does not free the parent's memory. */
int __lsan_is_turned_off(void)
{
    return is_child;
}

static void settings_are_checked(const char *settings)
{
    struct mtcp_conf conf = { 0 }, bad[] = {
        { .num_cores = 257 }, { .max_concurrency = INT32_MAX }, { .rcvbuf_size = 4095 },
        { .sndbuf_size = (64 << 20) + 1 },
    };

    mtcp_destroy();
    unsetenv("MTCP_CONFIG");
    FAILS_NULL(mtcp_create_context(0), EINVAL);
    FAILS(mtcp_init(NULL), ENOENT);
    CHECK(strstr(mp_error(), "MTCP_CONFIG"));
    FAILS(mtcp_init("/nowhere"), ENOENT);
    FAILS(mtcp_init("/proc/self/status"), EINVAL);
    FAILS(mtcp_getconf(NULL), EFAULT);
    FAILS(mtcp_setconf(NULL), EFAULT);
    for (size_t index = 0; index < sizeof bad / sizeof *bad; index++)
        FAILS(mtcp_setconf(&bad[index]), EINVAL);
    CHECK(mtcp_setconf(&conf) == 0);
    conf.num_cores = 1;
    CHECK(mtcp_setconf(&conf) == 0);
    CHECK(mtcp_init(settings) == 0);
    FAILS(mtcp_init(settings), EBUSY);
    CHECK(mtcp_getconf(&conf) == 0 && conf.num_cores == 1 && conf.max_concurrency == 1 << 18);
    conf.max_concurrency = 1234;
    conf.rcvbuf_size = 65536;
    CHECK(mtcp_setconf(&conf) == 0);
    CHECK(mtcp_getconf(&conf) == 0 && conf.max_concurrency == 1234 && conf.rcvbuf_size == 65536);
    FAILS_NULL(mtcp_create_context(1), EINVAL);
    FAILS_NULL(mtcp_create_context(-1), EINVAL);
    CHECK((mctx = mtcp_create_context(0)));
    FAILS_NULL(mtcp_create_context(0), EBUSY);
    FAILS(mtcp_setconf(&conf), EBUSY);
    stop();
    /* The setting has its first value again. */
    CHECK(mtcp_getconf(&conf) == 0 && conf.max_concurrency == 1 << 18);
    FAILS_NULL(mtcp_create_context(0), EINVAL);
    FAILS(mtcp_core_affinitize(-1), EINVAL);
    FAILS(mtcp_core_affinitize(1 << 20), EINVAL);
    CHECK(mtcp_core_affinitize(sched_getcpu()) == 0);
}

static void contexts_are_checked(void)
{
    char odd;

    FAILS(mtcp_socket(NULL, AF_INET, SOCK_STREAM, 0), EINVAL);
    FAILS(mtcp_socket((mctx_t)&odd, AF_INET, SOCK_STREAM, 0), EINVAL);
    FAILS(mtcp_socket((mctx_t)UINTPTR_MAX, AF_INET, SOCK_STREAM, 0), EINVAL);
    FAILS(mtcp_destroy_context(NULL), EINVAL);
    FAILS(mtcp_write(NULL, 0, &odd, 1), EINVAL);
    FAILS(mtcp_epoll_wait((mctx_t)&odd, 0, NULL, 1, 0), EINVAL);
}

static void sockets_are_checked(void)
{
    struct sockaddr_in address = at(STACK, 80), foreign = at("192.0.2.1", 80);
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
    struct sockaddr_un path = { .sun_family = AF_UNIX };
    struct sockaddr *any = (struct sockaddr *)&address;
    socklen_t size = sizeof address;
    int sockid = mtcp_socket(mctx, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP), other;

    CHECK(sockid == 0 && mtcp_socket(mctx, AF_INET6, MTCP_SOCK_STREAM, 0) == 1);
    FAILS(mtcp_socket(mctx, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_DGRAM, 0), ESOCKTNOSUPPORT);
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(mtcp_bind(mctx, sockid, NULL, size), EFAULT);
    FAILS(mtcp_bind(mctx, sockid, any, size - 1), EINVAL);
    FAILS(mtcp_bind(mctx, sockid, any, 1), EINVAL);
    FAILS(mtcp_bind(mctx, sockid, any, UINT32_MAX), EINVAL);
    FAILS(mtcp_bind(mctx, sockid, (struct sockaddr *)&path, sizeof path), EAFNOSUPPORT);
    FAILS(mtcp_bind(mctx, sockid, (struct sockaddr *)&v6, sizeof v6), EAFNOSUPPORT);
    FAILS(mtcp_bind(mctx, sockid, (struct sockaddr *)&foreign, size), EADDRNOTAVAIL);
    FAILS(mtcp_bind(mctx, -1, any, size), EBADF);
    FAILS(mtcp_bind(mctx, 1000, any, size), EBADF);
    CHECK(mtcp_bind(mctx, sockid, any, size) == 0);
    FAILS(mtcp_bind(mctx, sockid, any, size), EINVAL);
    other = socket_new();
    FAILS(mtcp_bind(mctx, other, any, size), EADDRINUSE);
    FAILS(mtcp_accept(mctx, sockid, NULL, NULL), EINVAL);
    CHECK(mtcp_listen(mctx, sockid, -1) == 0);
    FAILS(mtcp_accept(mctx, sockid, any, NULL), EFAULT);
    FAILS(mtcp_accept(mctx, sockid, NULL, NULL), EAGAIN);
    FAILS(mtcp_getpeername(mctx, sockid, any, &size), ENOTCONN);
    FAILS(mtcp_getsockname(mctx, sockid, NULL, &size), EFAULT);
    FAILS(mtcp_getsockname(mctx, sockid, any, NULL), EFAULT);
    memset(&address, 0xff, sizeof address);
    size = 4;
    CHECK(mtcp_getsockname(mctx, sockid, any, &size) == 0 && size == sizeof address);
    CHECK(ntohs(address.sin_port) == 80 && address.sin_addr.s_addr == UINT32_MAX);
    FAILS(mtcp_shutdown(mctx, other, SHUT_WR), ENOTCONN);
    FAILS(mtcp_shutdown(mctx, other, 3), EINVAL);
    FAILS(mtcp_read(mctx, other, &address, sizeof address), ENOTCONN);
    FAILS(mtcp_write(mctx, other, &address, sizeof address), EPIPE);
    CHECK(mtcp_close(mctx, sockid) == 0 && mtcp_close(mctx, 1) == 0);
    FAILS(mtcp_close(mctx, sockid), EBADF);
    FAILS(mtcp_abort(mctx, sockid), EBADF);
    FAILS(mtcp_setsock_nonblock(mctx, sockid), EBADF);
    CHECK(socket_new() == sockid && mtcp_abort(mctx, sockid) == 0);
    CHECK(mtcp_close(mctx, other) == 0);
}

static void bytes_go_both_ways(void)
{
    char room[64], left[4], right[64];
    struct iovec rooms[] = { { left, sizeof left }, { NULL, 0 }, { right, sizeof right } };
    struct iovec words[] = { { (void *)"there ", 6 }, { NULL, 0 }, { (void *)"and back", 8 } };
    struct iovec wrong = { NULL, 1 }, large[] = { { room, SIZE_MAX / 2 }, { room, 64 } };
    struct sockaddr_in peer, own;
    socklen_t size = sizeof peer, own_size = sizeof own;
    int listener = stack_listening(80), fd, sockid, count;

    connect_pair(listener, 80, &fd, &sockid);
    CHECK(mtcp_getpeername(mctx, sockid, (struct sockaddr *)&peer, &size) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&own, &own_size) == 0);
    CHECK(size == own_size && !memcmp(&peer, &own, size));
    FAILS(mtcp_read(mctx, sockid, room, sizeof room), EAGAIN);
    FAILS(mtcp_read(mctx, sockid, NULL, 1), EFAULT);
    FAILS(mtcp_read(mctx, sockid, room, SIZE_MAX), EINVAL);
    FAILS(mtcp_write(mctx, sockid, NULL, 1), EFAULT);
    CHECK(mtcp_read(mctx, sockid, NULL, 0) == 0);
    CHECK(write(fd, "0123456789", 10) == 10);
    CHECK(await(sockid, MTCP_EPOLLIN) == MTCP_EPOLLIN);
    FAILS(mtcp_socket_ioctl(mctx, sockid, FIONREAD, NULL), EFAULT);
    FAILS(mtcp_socket_ioctl(mctx, sockid, TIOCGWINSZ, &count), ENOTTY);
    CHECK(mtcp_socket_ioctl(mctx, sockid, FIONREAD, &count) == 0 && count == 10);
    FAILS(mtcp_recv(mctx, sockid, room, sizeof room, MSG_OOB), EINVAL);
    CHECK(mtcp_recv(mctx, sockid, room, 3, MSG_PEEK) == 3 && !memcmp(room, "012", 3));
    FAILS(mtcp_readv(mctx, sockid, NULL, 1), EFAULT);
    FAILS(mtcp_readv(mctx, sockid, rooms, -1), EINVAL);
    FAILS(mtcp_readv(mctx, sockid, rooms, 1025), EINVAL);
    FAILS(mtcp_readv(mctx, sockid, &wrong, 1), EFAULT);
    FAILS(mtcp_readv(mctx, sockid, large, 2), EINVAL);
    CHECK(mtcp_readv(mctx, sockid, rooms, 3) == 10);
    CHECK(!memcmp(left, "0123", 4) && !memcmp(right, "456789", 6));
    FAILS(mtcp_writev(mctx, sockid, &wrong, 1), EFAULT);
    CHECK(mtcp_writev(mctx, sockid, words, 3) == 14);
    CHECK(kernel_read(fd, room, sizeof room) == 14 && !memcmp(room, "there and back", 14));
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(await(sockid, MTCP_EPOLLRDHUP) & MTCP_EPOLLRDHUP);
    CHECK(mtcp_recv(mctx, sockid, room, sizeof room, 0) == 0);
    CHECK(mtcp_write(mctx, sockid, "still", 5) == 5);
    CHECK(mtcp_shutdown(mctx, sockid, SHUT_WR) == 0);
    FAILS(mtcp_write(mctx, sockid, "no more", 7), EPIPE);
    CHECK(kernel_read(fd, room, sizeof room) == 5 && kernel_read(fd, room, sizeof room) == 0);
    CHECK(mtcp_close(mctx, sockid) == 0 && close(fd) == 0);
    /* A reset works in both directions, too. */
    connect_pair(listener, 80, &fd, &sockid);
    CHECK(mtcp_abort(mctx, sockid) == 0);
    CHECK(kernel_read(fd, room, sizeof room) == -1 && errno == ECONNRESET);
    CHECK(close(fd) == 0);
    connect_pair(listener, 80, &fd, &sockid);
    struct linger reset = { 1, 0 };
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0 && close(fd) == 0);
    CHECK(await(sockid, 0) & MTCP_EPOLLERR);
    FAILS(mtcp_read(mctx, sockid, room, sizeof room), ECONNRESET);
    CHECK(mtcp_close(mctx, sockid) == 0 && mtcp_close(mctx, listener) == 0);
}

static void connecting(void)
{
    struct sockaddr_in address;
    int fd = kernel_listening(&address), sockid = socket_new(), accepted, error = -1;
    struct sockaddr *to = (struct sockaddr *)&address;
    socklen_t size = sizeof address, bytes = sizeof error;
    char room[8];

    FAILS(mtcp_connect(mctx, sockid, NULL, size), EFAULT);
    FAILS(mtcp_connect(mctx, sockid, to, 3), EINVAL);
    CHECK(mtcp_connect(mctx, sockid, to, size) == 0);
    FAILS(mtcp_connect(mctx, sockid, to, size), EISCONN);
    CHECK((accepted = accept(fd, NULL, NULL)) >= 0);
    CHECK(mtcp_write(mctx, sockid, "hello", 5) == 5);
    CHECK(kernel_read(accepted, room, sizeof room) == 5);
    CHECK(mtcp_close(mctx, sockid) == 0 && close(accepted) == 0);
    sockid = socket_new();
    CHECK(mtcp_setsock_nonblock(mctx, sockid) == 0);
    FAILS(mtcp_connect(mctx, sockid, to, size), EINPROGRESS);
    CHECK(await(sockid, MTCP_EPOLLOUT) == MTCP_EPOLLOUT);
    CHECK(mtcp_getsockopt(mctx, sockid, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && !error);
    CHECK((accepted = accept(fd, NULL, NULL)) >= 0);
    CHECK(mtcp_close(mctx, sockid) == 0 && close(accepted) == 0 && close(fd) == 0);
    sockid = socket_new();
    FAILS(mtcp_connect(mctx, sockid, to, size), ECONNREFUSED);
    CHECK(mtcp_close(mctx, sockid) == 0);
    FAILS(mtcp_init_rss(mctx, inet_addr(STACK), 0, INADDR_ANY, 0), EINVAL);
    FAILS(mtcp_init_rss(mctx, inet_addr(STACK), 1, INADDR_ANY, 1 << 16), EINVAL);
    FAILS(mtcp_init_rss(mctx, inet_addr(STACK), 2, INADDR_ANY, 0), EADDRNOTAVAIL);
    CHECK(mtcp_init_rss(mctx, inet_addr(STACK), 1, inet_addr(KERNEL), htons(80)) == 0);
    CHECK(mtcp_init_rss(mctx, INADDR_ANY, 1, INADDR_ANY, 0) == 0);
}

static void options_do_what_they_say(void)
{
    int sockid = socket_new(), on = 1, value = -1;
    struct timeval time = { 0, 50000 }, told;
    socklen_t size = sizeof value;
    struct tcp_info info;
    char name[16];

    CHECK(mtcp_setsockopt(mctx, sockid, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(mtcp_getsockopt(mctx, sockid, IPPROTO_TCP, TCP_NODELAY, &value, &size) == 0);
    CHECK(value != 0 && size == sizeof value);
    CHECK(mtcp_getsockopt(mctx, sockid, SOL_SOCKET, SO_TYPE, &value, &size) == 0);
    CHECK(value == SOCK_STREAM);
    CHECK(mtcp_setsockopt(mctx, sockid, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    size = sizeof told;
    CHECK(mtcp_getsockopt(mctx, sockid, SOL_SOCKET, SO_RCVTIMEO, &told, &size) == 0);
    CHECK(size == sizeof told && told.tv_sec == 0 && told.tv_usec == 50000);
    size = sizeof name;
    CHECK(mtcp_setsockopt(mctx, sockid, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0);
    CHECK(mtcp_getsockopt(mctx, sockid, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0);
    CHECK(!strcmp(name, "reno"));
    size = sizeof info;
    FAILS(mtcp_getsockopt(mctx, sockid, IPPROTO_TCP, TCP_INFO, &info, &size), ENOTCONN);
    FAILS(mtcp_getsockopt(mctx, sockid, IPPROTO_TCP, 4711, &value, &size), ENOPROTOOPT);
    FAILS(mtcp_setsockopt(mctx, sockid, 4711, TCP_NODELAY, &on, sizeof on), ENOPROTOOPT);
    FAILS(mtcp_setsockopt(mctx, sockid, SOL_SOCKET, SO_ERROR, &on, sizeof on), ENOPROTOOPT);
    FAILS(mtcp_setsockopt(mctx, sockid, IPPROTO_TCP, TCP_NODELAY, &on, 1), EINVAL);
    FAILS(mtcp_setsockopt(mctx, sockid, IPPROTO_TCP, TCP_NODELAY, &on, UINT32_MAX), EINVAL);
    FAILS(mtcp_setsockopt(mctx, sockid, IPPROTO_TCP, TCP_NODELAY, NULL, 4), EFAULT);
    FAILS(mtcp_getsockopt(mctx, sockid, IPPROTO_TCP, TCP_NODELAY, &value, NULL), EFAULT);
    /* A time-out ends a blocking call; a non-blocking call has none. */
    struct sockaddr_in address = at(STACK, 80);
    CHECK(mtcp_bind(mctx, sockid, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mtcp_listen(mctx, sockid, 1) == 0);
    FAILS(mtcp_accept(mctx, sockid, NULL, NULL), EAGAIN);
    CHECK(mtcp_socket_ioctl(mctx, sockid, FIONBIO, &on) == 0);
    FAILS(mtcp_accept(mctx, sockid, NULL, NULL), EAGAIN);
    CHECK(mtcp_close(mctx, sockid) == 0);
}

static void epolls_tell_what_was_asked_for(void)
{
    struct mtcp_epoll_event event = { .events = MTCP_EPOLLIN, .data.u64 = UINT64_MAX }, events[4];
    int listener = stack_listening(80), fd, sockid, epoll, outer, bytes;
    char room[8];

    FAILS(mtcp_epoll_create(mctx, 0), EINVAL);
    FAILS(mtcp_epoll_create1(mctx, 1), EINVAL);
    connect_pair(listener, 80, &fd, &sockid);
    CHECK((epoll = mtcp_epoll_create(mctx, 1)) >= 0);
    FAILS(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, sockid, NULL), EFAULT);
    FAILS(mtcp_epoll_ctl(mctx, epoll, 0, sockid, &event), EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_MOD, sockid, &event), ENOENT);
    FAILS(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_DEL, sockid, NULL), ENOENT);
    FAILS(mtcp_epoll_ctl(mctx, sockid, MTCP_EPOLL_CTL_ADD, epoll, &event), EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, epoll, &event), EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, -5, &event), EBADF);
    FAILS(mtcp_epoll_ctl(mctx, -5, MTCP_EPOLL_CTL_ADD, sockid, &event), EBADF);
    CHECK(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, sockid, &event) == 0);
    FAILS(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, sockid, &event), EEXIST);
    FAILS(mtcp_epoll_wait(mctx, epoll, events, 0, 0), EINVAL);
    FAILS(mtcp_epoll_wait(mctx, epoll, events, -1, 0), EINVAL);
    FAILS(mtcp_epoll_wait(mctx, epoll, NULL, 4, 0), EFAULT);
    FAILS(mtcp_epoll_wait(mctx, sockid, events, 4, 0), EINVAL);
    FAILS(mtcp_epoll_wait(mctx, 1000, events, 4, 0), EBADF);
    FAILS(mtcp_read(mctx, epoll, room, sizeof room), EINVAL);
    FAILS(mtcp_listen(mctx, epoll, 1), ENOTSOCK);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, 0) == 0);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, 10) == 0);
    outer = watching(epoll, MTCP_EPOLLIN);
    CHECK(write(fd, "a", 1) == 1);
    CHECK(mtcp_epoll_wait(mctx, outer, events, 4, PATIENCE_MS) == 1);
    CHECK(events[0].data.sockid == epoll);
    /* Reported as long as it holds. */
    for (int round = 0; round < 3; round++) {
        CHECK(mtcp_epoll_wait(mctx, epoll, events, INT32_MAX, PATIENCE_MS) == 1);
        CHECK(events[0].events == MTCP_EPOLLIN && events[0].data.u64 == UINT64_MAX);
    }
    /* Reported when it occurs. */
    event.events = MTCP_EPOLLIN | MTCP_EPOLLET;
    CHECK(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_MOD, sockid, &event) == 0);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, PATIENCE_MS) == 1);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, 0) == 0);
    CHECK(write(fd, "b", 1) == 1);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, PATIENCE_MS) == 1);
    /* Reported once. */
    event.events = MTCP_EPOLLIN | MTCP_EPOLLONESHOT;
    CHECK(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_MOD, sockid, &event) == 0);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, PATIENCE_MS) == 1);
    CHECK(write(fd, "c", 1) == 1);
    CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, 10) == 0);
    CHECK(mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_DEL, sockid, NULL) == 0);
    do
        CHECK(mtcp_epoll_wait(mctx, epoll, events, 4, 1) == 0);
    while (mtcp_socket_ioctl(mctx, sockid, FIONREAD, &bytes) == 0 && bytes < 3);
    CHECK(mtcp_read(mctx, sockid, room, sizeof room) == 3 && !memcmp(room, "abc", 3));
    CHECK(mtcp_close(mctx, outer) == 0 && mtcp_close(mctx, epoll) == 0);
    CHECK(mtcp_close(mctx, sockid) == 0 && mtcp_close(mctx, listener) == 0 && close(fd) == 0);
}

static int ends[2];

static void *write_from_elsewhere(void *unused)
{
    char odd = 'x';

    (void)unused;
    usleep(20000);
    FAILS(mtcp_write(mctx, ends[0], &odd, 1), EPERM);
    FAILS(mtcp_write(mctx, -1, &odd, 1), EBADF);
    FAILS(mtcp_write(mctx, ends[1], NULL, 1), EFAULT);
    CHECK(mtcp_write(mctx, ends[1], "wake", 4) == 4);
    return NULL;
}

static void pipes_wake(void)
{
    pthread_t thread;
    char room[8];

    FAILS(mtcp_pipe(mctx, NULL), EFAULT);
    CHECK(mtcp_pipe(mctx, ends) == 0);
    FAILS(mtcp_read(mctx, ends[0], room, sizeof room), EAGAIN);
    FAILS(mtcp_read(mctx, ends[1], room, sizeof room), EBADF);
    FAILS(mtcp_write(mctx, ends[0], "no", 2), EBADF);
    FAILS(mtcp_bind(mctx, ends[0], NULL, 0), EFAULT);
    FAILS(mtcp_shutdown(mctx, ends[0], SHUT_WR), ENOTSOCK);
    CHECK(pthread_create(&thread, NULL, write_from_elsewhere, NULL) == 0);
    CHECK(await(ends[0], MTCP_EPOLLIN) == MTCP_EPOLLIN);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mtcp_read(mctx, ends[0], room, sizeof room) == 4 && !memcmp(room, "wake", 4));
    CHECK(mtcp_close(mctx, ends[1]) == 0);
    CHECK(await(ends[0], 0) & MTCP_EPOLLHUP);
    CHECK(mtcp_read(mctx, ends[0], room, sizeof room) == 0);
    CHECK(mtcp_close(mctx, ends[0]) == 0);
}

static volatile sig_atomic_t signals, errno_within, made_within;
static pthread_t waiting;

static void on_signal(int signum)
{
    signals += signum == SIGUSR1;
    made_within = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    errno_within = made_within == -1 ? errno : 0;
    errno = EDOM;
}

static void *send_signals(void *to_thread)
{
    usleep(20000);
    CHECK((to_thread ? pthread_kill(waiting, SIGUSR1) : kill(getpid(), SIGUSR1)) == 0);
    return NULL;
}

/* Waits until a thread has sent a signal: to this thread, or to the process. */
static void wait_for_signal(int epoll, int to_thread)
{
    struct mtcp_epoll_event event;
    pthread_t thread;

    signals = 0;
    CHECK(pthread_create(&thread, NULL, send_signals, to_thread ? &event : NULL) == 0);
    FAILS(mtcp_epoll_wait(mctx, epoll, &event, 1, -1), EINTR);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(signals == 1);
    /* The signal of another thread may have been reported already, and its wake-up ends this
     * wait. */
    while (mtcp_epoll_wait(mctx, epoll, &event, 1, 1) < 0)
        CHECK(errno == EINTR);
    /* A signal that arrived before or after the wait did not interrupt a call. */
    if (errno_within == 0)
        CHECK(mtcp_close(mctx, made_within) == 0);
}

static void signals_end_waiting(void)
{
    struct mtcp_epoll_event event;
    int epoll = mtcp_epoll_create1(mctx, 0);
    int tries = 0;

    CHECK(mtcp_register_signal(0, on_signal) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(65, on_signal) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(SIGKILL, on_signal) == SIG_ERR && errno == EINVAL);
    CHECK(mtcp_register_signal(SIGUSR1, SIG_IGN) == SIG_DFL);
    CHECK(mtcp_register_signal(SIGUSR1, on_signal) == SIG_IGN);
    CHECK(mtcp_register_signal(SIGUSR1, on_signal) == on_signal);
    waiting = pthread_self();
    wait_for_signal(epoll, 0);
    /* This thread may be slower than the other, and may not wait yet. */
    do
        wait_for_signal(epoll, 1);
    while (errno_within == 0 && ++tries < 100);
    CHECK(errno_within == EDEADLK);
    /* A signal that arrived before the wait is not missed. */
    signals = 0;
    errno = 0;
    CHECK(raise(SIGUSR1) == 0 && errno == 0 && signals == 1 && errno_within == 0);
    CHECK(mtcp_close(mctx, made_within) == 0);
    FAILS(mtcp_epoll_wait(mctx, epoll, &event, 1, -1), EINTR);
    CHECK(mtcp_epoll_wait(mctx, epoll, &event, 1, 1) == 0);
    CHECK(mtcp_register_signal(SIGUSR1, SIG_DFL) == on_signal);
    CHECK(mtcp_close(mctx, epoll) == 0);
}

static mctx_t elsewhere;

static void *have_another(void *unused)
{
    (void)unused;
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0), EPERM);
    FAILS(mtcp_close(mctx, 0), EPERM);
    FAILS(mtcp_destroy_context(mctx), EPERM);
    FAILS_NULL(mtcp_create_context(0), EBUSY);
    CHECK((elsewhere = mtcp_create_context(1)));
    CHECK(mtcp_socket(elsewhere, AF_INET, SOCK_STREAM, 0) == 0);
    /* The end of the thread destroys it. */
    return NULL;
}

static void contexts_belong_to_their_threads(void)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, have_another, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    FAILS(mtcp_socket(elsewhere, AF_INET, SOCK_STREAM, 0), EINVAL);
    FAILS_NULL(mtcp_create_context(1), EBUSY);
}

static void children_leave_contexts_alone(const char *settings)
{
    int listener = stack_listening(80), fd, sockid, status = -1;
    char room[8];
    pid_t child;

    connect_pair(listener, 80, &fd, &sockid);
    fflush(stdout);
    if ((child = fork()) == 0) {
        FAILS(mtcp_write(mctx, sockid, "child", 5), EPERM);
        FAILS(mtcp_destroy_context(mctx), EPERM);
        FAILS_NULL(mtcp_create_context(1), EPERM);
        is_child = 1;
        mtcp_destroy();
        CHECK(mtcp_init(settings) == 0);
        exit(EXIT_SUCCESS);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(mtcp_write(mctx, sockid, "parent", 6) == 6);
    CHECK(kernel_read(fd, room, sizeof room) == 6 && !memcmp(room, "parent", 6));
    CHECK(mtcp_close(mctx, sockid) == 0 && mtcp_close(mctx, listener) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    settings_are_checked(argv[1]);
    start(argv[1], 1);
    contexts_are_checked();
    sockets_are_checked();
    bytes_go_both_ways();
    connecting();
    options_do_what_they_say();
    epolls_tell_what_was_asked_for();
    pipes_wake();
    signals_end_waiting();
    stop();
    start(argv[1], 2);
    contexts_belong_to_their_threads();
    stop();
    start(argv[1], 1);
    children_leave_contexts_alone(argv[1]);
    stop();
    FAILS(mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0), EINVAL);
    printf("all is well\n");
    return EXIT_SUCCESS;
}
