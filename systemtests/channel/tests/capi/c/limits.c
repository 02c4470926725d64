/* Tests limits of messages, of queued output, and of time. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/resource.h>
#include <time.h>

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void packets_keep_their_bounds(void)
{
    mp_channel *channel = channel_new();
    struct mp_event event;
    char room[4];
    int fds[2];
    mp_handle handle;

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(handle >= 0);
    CHECK(send(fds[1], "one", 3, 0) == 3 && send(fds[1], "four", 4, 0) == 4);
    CHECK(mp_recv(handle, 0) == 0);
    event = expect(channel, MP_RECV);
    CHECK(event.size == 3 && !memcmp(event.data, "one", 3));
    CHECK(mp_release(channel, event.buffer) == 0);
    CHECK(mp_read(handle, room, sizeof room) == 0);
    CHECK(expect(channel, MP_READ).size == 4 && !memcmp(room, "four", 4));
    /* A message that is too long is reported as such, and the next one arrives complete. */
    CHECK(send(fds[1], "longer", 6, 0) == 6 && send(fds[1], "ok", 2, 0) == 2);
    CHECK(mp_read(handle, room, sizeof room) == 0);
    CHECK(expect(channel, MP_READ).error == EMSGSIZE);
    CHECK(mp_read(handle, room, sizeof room) == 0);
    event = expect(channel, MP_READ);
    CHECK(event.error == 0 && event.size == 2 && !memcmp(room, "ok", 2));
    /* An empty message has a buffer, the end has none. */
    CHECK(send(fds[1], "", 0, 0) == 0 && send(fds[1], "x", 1, 0) == 1);
    CHECK(mp_recv(handle, MP_REPEAT) == 0);
    event = expect(channel, MP_RECV);
    CHECK(event.error == 0 && event.size == 0 && event.buffer != -1 && event.flags == MP_MORE);
    CHECK(mp_release(channel, event.buffer) == 0);
    event = expect(channel, MP_RECV);
    CHECK(event.size == 1 && *(char *)event.data == 'x');
    CHECK(mp_release(channel, event.buffer) == 0);
    close(fds[1]);
    event = expect(channel, MP_RECV);
    CHECK(event.size == 0 && event.buffer == -1 && !(event.flags & MP_MORE));
    CHECK(mp_close(handle) == 0);
    expect(channel, MP_CLOSE);
    CHECK(mp_destroy(channel) == 0);
}

static void what_waits_to_be_written_is_limited(void)
{
    struct mp_options options = { .output_limit = 1000, .output_pause = 500 };
    mp_channel *channel = channel_with(&options);
    char *memory = big_memory();
    struct mp_event event;
    int fds[2];
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_queued(handle) == 0);
    CHECK(mp_recv(handle, MP_REPEAT) == 0);
    CHECK(mp_write(handle, memory, BIG) == 0);
    CHECK(mp_write(handle, memory, 999) == 0 && mp_write(handle, memory, 2) == 0);
    FAILS(mp_write(handle, memory, 1), EAGAIN);
    CHECK(strstr(mp_error(), "1001 bytes") && strstr(mp_error(), "1000"));
    CHECK(mp_queued(handle) == BIG + 1001);
    /* Its receive pauses after the kernel has the cancellation. */
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(write(fds[1], "x", 1) == 1);
    CHECK(mp_dispatch(channel, &event, 50) == 0);
    CHECK(mp_abort(handle) == 0);
    expect(channel, MP_CLOSE);
    CHECK(mp_queued(handle) == -1 && errno == EBADF);
    CHECK(mp_destroy(channel) == 0);
    free(memory);
    close(fds[1]);
}

static void requests_have_time_limits(void)
{
    mp_channel *channel = channel_new();
    char *memory = big_memory();
    struct mp_event event;
    int64_t begun;
    int fds[2];
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    FAILS(mp_set_timeout(handle, 0, 10), EINVAL);
    FAILS(mp_set_timeout(handle, 4, 10), EINVAL);
    FAILS(mp_set_timeout(handle, MP_IN, 0), EINVAL);
    CHECK(mp_set_timeout(handle, MP_IN | MP_OUT, 30) == 0);
    begun = now_ns();
    CHECK(mp_recv(handle, MP_REPEAT) == 0);
    event = expect(channel, MP_RECV);
    CHECK(event.error == ETIMEDOUT && event.flags == 0 && event.buffer == -1);
    CHECK(now_ns() - begun >= 30 * 1000000);
    CHECK(mp_write(handle, memory, BIG) == 0);
    event = expect(channel, MP_WRITE);
    CHECK(event.error == ETIMEDOUT || (event.error == 0 && event.size < BIG));
    CHECK(mp_set_timeout(handle, MP_IN, -1) == 0);
    CHECK(mp_recv(handle, 0) == 0);
    CHECK(mp_dispatch(channel, &event, 100) == 0);
    CHECK(mp_destroy(channel) == 0);
    free(memory);
    close(fds[0]);
    close(fds[1]);
}

static void timers_are_set_again_and_again(void)
{
    mp_channel *channel = channel_new();
    struct mp_event event;
    mp_handle timer;
    int64_t begun;
    int fds[2], cookie;

    pair(fds);
    timer = mp_timer(channel, &cookie);
    CHECK(timer >= 0);
    CHECK(mp_dispatch(channel, &event, 20) == 0);
    for (int round = 0; round < 20; round++) {
        begun = now_ns();
        CHECK(mp_timer_set(timer, UINT64_C(60000000000), 0) == 0);
        CHECK(mp_timer_set(timer, 5000000, 0) == 0);
        event = expect(channel, MP_TIMER);
        CHECK(event.handle == timer && event.cookie == &cookie && event.error == 0);
        CHECK(event.count == 1 && event.flags == MP_MORE && now_ns() - begun >= 5000000);
    }
    CHECK(mp_timer_set(timer, 1, 1000000) == 0);
    for (uint64_t sum = 0; sum < 20; sum += event.count) {
        event = expect(channel, MP_TIMER);
        CHECK(event.count >= 1);
    }
    /* Stopped: only an event that the channel already holds may follow. */
    CHECK(mp_timer_set(timer, 0, 0) == 0);
    while (mp_dispatch(channel, &event, 0) == 1)
        CHECK(event.cmd == MP_TIMER);
    CHECK(mp_dispatch(channel, &event, 30) == 0);
    CHECK(mp_timer_set(timer, 1, 0) == 0);
    expect(channel, MP_TIMER);
    FAILS(mp_timer_set(mp_register(channel, fds[0], NULL, NULL), 1, 0), EOPNOTSUPP);
    FAILS(mp_write(timer, "x", 1), EOPNOTSUPP);
    CHECK(mp_close(timer) == 0);
    expect(channel, MP_CLOSE);
    FAILS(mp_timer_set(timer, 1, 0), EBADF);
    CHECK(mp_destroy(channel) == 0);
    close(fds[0]);
    close(fds[1]);
}

static void timers_leave_no_descriptor(void)
{
    int before = open_files();
    mp_channel *channel = channel_new();

    CHECK(mp_timer(channel, NULL) >= 0);
    CHECK(mp_unregister(mp_timer(channel, NULL)) == 0);
    CHECK(mp_destroy(channel) == 0);
    CHECK(open_files() == before);
}

/* Accepting continues by itself when descriptors are free again. */
static void a_lack_of_descriptors_passes(int is_lwsocket)
{
    struct rlimit limit, tight;
    struct sockaddr_in address;
    int fd = listening(&address), client = connected(&address), highest, number;
    mp_channel *channel = channel_new();
    struct mp_event event;
    mp_handle listener = mp_register(channel, fd, NULL, NULL);

    CHECK(listener >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    highest = dup(fd);
    tight = limit;
    tight.rlim_cur = (rlim_t)highest;
    close(highest);
    CHECK(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    /* No number below the limit is free. */
    CHECK(dup(fd) == -1 && errno == EMFILE);
    CHECK(mp_accept(listener, 0, is_lwsocket) == 0);
    event = expect(channel, MP_ACCEPT);
    if (event.error) {
        CHECK(event.error == EMFILE && (event.flags & MP_MORE) && event.fd == -1);
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        do
            event = expect(channel, MP_ACCEPT);
        while (event.error == EMFILE && (event.flags & MP_MORE));
    } else {
        /* Lightweight sockets of io_uring need no descriptors. */
        CHECK(is_lwsocket && !strcmp(mp_driver(channel), "uring"));
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    CHECK(event.error == 0 && (event.flags & MP_MORE));
    number = event.fd;
    CHECK((number >= MP_LWSOCKET_FIRST) == is_lwsocket);
    CHECK(mp_destroy(channel) == 0);
    if (!is_lwsocket)
        close(number);
    close(client);
    close(fd);
}

/* The error for the channel's lack of lightweight sockets differs from that for descriptors. */
static void a_full_table_has_its_own_error(void)
{
    struct mp_options options = { .max_lwsockets = 2 };
    mp_channel *channel = channel_with(&options);
    struct sockaddr_in address;
    int fd = listening(&address), clients[3], last;
    struct mp_event event = { 0 };
    mp_handle first;

    if (strcmp(mp_driver(channel), "uring")) {
        /* On the other drivers only descriptors are a limit. */
        CHECK(mp_destroy(channel) == 0);
        close(fd);
        return;
    }
    CHECK(mp_accept(mp_register(channel, fd, NULL, NULL), 0, 1) == 0);
    for (int i = 0; i < 3; i++)
        clients[i] = connected(&address);
    first = mp_register(channel, expect(channel, MP_ACCEPT).fd, NULL, NULL);
    CHECK(first >= 0 && expect(channel, MP_ACCEPT).error == 0);
    event = expect(channel, MP_ACCEPT);
    CHECK(event.error == EUSERS && (event.flags & MP_MORE));
    CHECK(mp_close(first) == 0);
    last = connected(&address);
    for (int closed = 0, accepted = 0; !closed || !accepted;) {
        CHECK(mp_dispatch(channel, &event, 10000) == 1);
        closed |= event.cmd == MP_CLOSE;
        accepted |= event.cmd == MP_ACCEPT && event.error == 0;
        CHECK(event.error == 0 || event.error == EUSERS);
    }
    CHECK(mp_destroy(channel) == 0);
    for (int i = 0; i < 3; i++)
        close(clients[i]);
    close(last);
    close(fd);
}

/* Returns whether nothing happens for a while. */
static int is_quiet(mp_channel *channel)
{
    struct mp_event event;

    return mp_dispatch(channel, &event, 30) == 0;
}

/* Clients wait at the limit of connections, and one comes for each that is closed. */
static void clients_wait_at_the_limit(int flags)
{
    struct mp_options options = { .max_connections = 2 };
    mp_channel *channel = channel_with(&options);
    struct sockaddr_in address;
    int fd = listening(&address), clients[5];
    mp_handle open[2];

    for (int which = 0; which < 5; which++)
        clients[which] = connected(&address);
    CHECK(mp_accept(mp_register(channel, fd, NULL, NULL), 0, flags) == 0);
    for (int which = 0; which < 2; which++) {
        struct mp_event event = expect(channel, MP_ACCEPT);

        CHECK(event.error == 0);
        open[which] = mp_register(channel, event.fd, NULL, NULL);
        CHECK(open[which] >= 0);
    }
    CHECK(is_quiet(channel));
    for (int which = 2; which < 5; which++) {
        CHECK(mp_close(open[which % 2]) == 0);
        for (int closed = 0, accepted = 0; !closed || !accepted;) {
            struct mp_event event;

            CHECK(mp_dispatch(channel, &event, 10000) == 1 && event.error == 0);
            closed |= event.cmd == MP_CLOSE;
            if (event.cmd == MP_ACCEPT) {
                accepted = 1;
                open[which % 2] = mp_register(channel, event.fd, NULL, NULL);
            }
        }
        CHECK(is_quiet(channel));
    }
    for (int which = 0; which < 2; which++) {
        CHECK(mp_close(open[which]) == 0);
        CHECK(expect(channel, MP_CLOSE).error == 0);
    }
    CHECK(mp_destroy(channel) == 0);
    for (int which = 0; which < 5; which++)
        close(clients[which]);
    close(fd);
}

int main(void)
{
    packets_keep_their_bounds();
    what_waits_to_be_written_is_limited();
    requests_have_time_limits();
    timers_are_set_again_and_again();
    timers_leave_no_descriptor();
    a_lack_of_descriptors_passes(0);
    a_lack_of_descriptors_passes(1);
    a_full_table_has_its_own_error();
    clients_wait_at_the_limit(0);
    clients_wait_at_the_limit(MP_LWSOCKET);
    puts("limits: all is well");
    return 0;
}
