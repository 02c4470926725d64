/*
 * Tests waiting for flows: in xpoll(), by their descriptors, and in a channel.
 *
 *   xio_waiting [named]    over the name daemon, else over sockets
 */
#define _GNU_SOURCE
#include "xio_check.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>

static struct xio_poll entry(xio_handle handle)
{
    return (struct xio_poll){ .handle = handle, .events = POLLIN, .revents = -1 };
}

/* A flow without messages or events is not reported after it was read. */
static void expect_quiet(xio_handle flow)
{
    struct xio_poll poll = entry(flow);
    struct xio_buffer none;

    CHECK(xpoll(NULL, 0, &poll, 1, 0) >= 0);
    CHECK(xio_getreadbuf(flow, &none, 1, 0) == 0);
    CHECK(xpoll(NULL, 0, &poll, 1, 0) == 0);
    CHECK(xpoll(NULL, 0, &poll, 1, 1) == 0);
}

static void xpoll_tells_what_may_go_on(void)
{
    struct server server = serve_somewhere();
    struct xio_poll polls[3] = { entry(server.listener), entry(XIO_NONE) };
    struct pollfd fds[2];
    int pipes[2];
    xio_handle client, flow;

    CHECK(pipe(pipes) == 0);
    fds[0] = (struct pollfd){ .fd = pipes[0], .events = POLLIN };
    fds[1] = (struct pollfd){ .fd = -1, .events = POLLIN };
    CHECK(xpoll(NULL, 0, NULL, 0, 0) == 0);
    CHECK(xpoll(fds, 2, polls, 2, 0) == 0);
    CHECK(!fds[0].revents && !fds[1].revents && !polls[0].revents && !polls[1].revents);
    CHECK(xpoll(fds, 2, polls, 2, 1) == 0);
    CHECK((client = xio_connect(server.context, server.name)) > 0);
    CHECK(xpoll(fds, 2, polls, 2, PATIENCE_MS) == 1 && polls[0].revents == POLLIN);
    CHECK((flow = xio_accept(server.listener, 0)) > 0);
    polls[1] = entry(flow);
    xpoll(fds, 2, polls, 2, 0);
    expect_quiet(flow);
    say(client, "ready");
    CHECK(write(pipes[1], "x", 1) == 1);
    CHECK(xpoll(fds, 2, polls, 2, PATIENCE_MS) >= 1);
    CHECK(xpoll(fds, 2, polls, 2, PATIENCE_MS) == 2);
    CHECK(fds[0].revents == POLLIN && polls[1].revents == POLLIN && !polls[0].revents);
    /* It is reported again, unless it is not requested. */
    polls[1].events = 0;
    CHECK(xpoll(fds, 2, polls, 2, 0) == 1 && !polls[1].revents);
    polls[1].events = POLLIN;
    CHECK(xpoll(NULL, 0, polls, 2, 0) == 1 && polls[1].revents == POLLIN);
    hear_and_release(flow, "ready");
    expect_quiet(flow);
    CHECK(xio_shutdown(client) == 0);
    CHECK(xpoll(NULL, 0, polls, 2, PATIENCE_MS) == 1 && polls[1].revents & POLLIN);
    CHECK(xio_close(flow) == 0 && xio_close(client) == 0);
    /* Closed handles do not wait. */
    CHECK(xpoll(NULL, 0, polls, 2, -1) == 1 && polls[1].revents == POLLNVAL);
    FAILS(xpoll(NULL, 1, NULL, 0, 0), EFAULT);
    FAILS(xpoll(NULL, 0, NULL, 1, 0), EFAULT);
    FAILS(xpoll(fds, SIZE_MAX, NULL, 0, 0), EINVAL);
    FAILS(xpoll(NULL, 0, polls, (size_t)1 << 40, 0), EINVAL);
    close(pipes[0]);
    close(pipes[1]);
    end_server(server);
}

static xio_handle interrupted;
static volatile sig_atomic_t refused;

static void on_alarm(int signal)
{
    int kept = errno;

    (void)signal;
    if (xio_epoch(interrupted) == -1 && errno == EDEADLK)
        refused = 1;
    errno = kept;
}

static void signals_end_xpoll_and_may_not_call(void)
{
    struct sigaction action = { .sa_handler = on_alarm };
    /* The first signal may arrive before the call sleeps. */
    struct itimerval soon = { { 0, 100000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
    struct xio_poll poll;
    xio_handle ends[2];

    flow_pair(ends);
    interrupted = ends[0];
    poll = entry(ends[0]);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    expect_quiet(ends[0]);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    FAILS(xpoll(NULL, 0, &poll, 1, PATIENCE_MS), EINTR);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(refused);
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
}

static void room_wakes_who_has_found_none(void)
{
    struct xio_buffer buffer;
    struct xio_poll poll;
    xio_handle ends[2];
    size_t sent = 0;

    flow_pair(ends);
    poll = entry(ends[0]);
    while (xio_getwritebuf(ends[0], XIO_ANY, &buffer, 1, 0) == 1) {
        memset(buffer.data, 'x', buffer.bytes);
        sent += buffer.bytes;
        CHECK(xio_commit(ends[0], &buffer) == 0 && sent < (size_t)1 << 30);
    }
    CHECK(sent > 0);
    xpoll(NULL, 0, &poll, 1, 0);
    CHECK(xio_getwritebuf(ends[0], XIO_ANY, &buffer, 1, 0) == 0);
    CHECK(xpoll(NULL, 0, &poll, 1, 0) == 0);
    while (sent > 0) {
        CHECK(xio_getreadbuf(ends[1], &buffer, 1, 0) >= 0);
        if (buffer.handle == ends[1]) {
            sent -= buffer.bytes;
            CHECK(xio_release(&buffer) == 0);
        }
        /* The sender hands over the messages that it held back. */
        CHECK(xio_flush(ends[0]) >= 0);
    }
    CHECK(xpoll(NULL, 0, &poll, 1, PATIENCE_MS) == 1);
    CHECK(xio_getwritebuf(ends[0], XIO_ANY, &buffer, 1, PATIENCE_MS) == 1);
    CHECK(xio_release(&buffer) == 0);
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
}

static void descriptors_fit_into_other_loops(void)
{
    struct epoll_event event = { .events = EPOLLIN };
    int loop = epoll_create1(EPOLL_CLOEXEC), fd;
    xio_handle ends[2];

    flow_pair(ends);
    CHECK(loop >= 0 && (fd = xio_descriptor(ends[1])) >= 0);
    CHECK(xio_descriptor(ends[1]) == fd);
    CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
    expect_quiet(ends[1]);
    CHECK(epoll_wait(loop, &event, 1, 0) == 0);
    for (int round = 0; round < 3; round++) {
        say(ends[0], "wake up");
        CHECK(epoll_wait(loop, &event, 1, PATIENCE_MS) == 1);
        hear_and_release(ends[1], "wake up");
        expect_quiet(ends[1]);
        CHECK(epoll_wait(loop, &event, 1, 0) == 0);
    }
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
    close(loop);
}

static void channels_tell_of_flows(void)
{
    int before = open_descriptors(), fds[2];
    struct server server = serve_somewhere();
    mp_channel *channel = channel_new();
    mp_handle watched, listening;
    struct mp_event event;
    xio_handle client, flow;

    pair(fds);
    CHECK((listening = xio_watch(channel, server.listener, &server)) >= 0);
    CHECK((client = xio_connect(server.context, server.name)) > 0);
    event = expect(channel, MP_POLL);
    CHECK(event.cookie == &server && event.handle == listening && event.revents & POLLIN);
    CHECK(!event.error && event.flags & MP_MORE);
    CHECK((flow = xio_accept(server.listener, 0)) > 0);
    FAILS(xio_accept(server.listener, 0), EAGAIN);
    CHECK((watched = xio_watch(channel, flow, &flow)) >= 0);
    for (int round = 0; round < 10; round++) {
        struct xio_buffer buffer;

        say(client, "through the channel");
        do
            event = expect(channel, MP_POLL);
        while (event.cookie != &flow);
        hear_and_release(flow, "through the channel");
        CHECK(xio_getreadbuf(flow, &buffer, 1, 0) == 0);
    }
    /* Together with a socket. */
    CHECK(mp_write(mp_register(channel, fds[0], NULL, NULL), "x", 1) == 0);
    do
        CHECK(mp_dispatch(channel, &event, PATIENCE_MS) == 1);
    while (event.cmd != MP_WRITE);
    FAILS(xio_watch(channel, XIO_NONE, NULL), EBADF);
    FAILS(xio_watch(NULL, flow, NULL), EFAULT);
    CHECK(mp_unregister(watched) == 0 && mp_unregister(listening) == 0);
    FAILS(mp_unregister(watched), EBADF);
    say(client, "unwatched");
    hear_and_release(flow, "unwatched");
    CHECK(xio_close(flow) == 0 && xio_close(client) == 0);
    /* A watch that is not unregistered ends with the channel. */
    CHECK(xio_watch(channel, server.listener, NULL) >= 0);
    CHECK(mp_destroy(channel) == 0);
    close(fds[0]);
    close(fds[1]);
    end_server(server);
    expect_descriptors(before);
}

int main(int argc, char **argv)
{
    int before;

    is_named = argc > 1 && !strcmp(argv[1], "named");
    before = descriptors_kept();
    xpoll_tells_what_may_go_on();
    signals_end_xpoll_and_may_not_call();
    room_wakes_who_has_found_none();
    descriptors_fit_into_other_loops();
    channels_tell_of_flows();
    expect_descriptors(before);
    puts("all is well");
    return EXIT_SUCCESS;
}
