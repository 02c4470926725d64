/* Tests how handles begin and end: close, abort, unregister, and what a failed register leaves. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

enum { CLIENTS = 50 };

/* Each connection is a lightweight socket, and is closed when the call that ends it is
 * complete. */
static void lightweight_connections_leave_nothing(int (*end)(mp_handle), int has_event)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    int fd = listening(&address), before;
    mp_handle listener = mp_register(channel, fd, NULL, NULL);
    struct mp_event event;
    char byte;

    CHECK(mp_accept(listener, 0, 1) == 0);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    before = open_files();
    for (int round = 0; round < CLIENTS; round++) {
        int client = connected(&address), number = expect(channel, MP_ACCEPT).fd;
        mp_handle handle;

        CHECK(number >= MP_LWSOCKET_FIRST);
        handle = mp_register(channel, number, &client, NULL);
        FAILS(mp_register(channel, number, NULL, NULL), EBADF);
        CHECK(mp_write(handle, "bye", 3) == 0);
        expect(channel, MP_WRITE);
        CHECK(end(handle) == 0);
        if (has_event) {
            event = expect(channel, MP_CLOSE);
            CHECK(event.handle == handle && event.cookie == &client && event.error == 0);
        } else {
            CHECK(mp_dispatch(channel, &event, 0) == 0);
        }
        /* The end of the stream, or a reset. */
        while (read(client, &byte, 1) > 0)
            ;
        CHECK(close(client) == 0);
        CHECK(open_files() == before);
    }
    CHECK(mp_destroy(channel) == 0);
    close(fd);
}

/* A listener of Multipath TCP is one, which answers like a connection to some questions; Go makes
 * such listeners. */
static void a_listener_of_multipath_tcp_accepts(void)
{
    enum { MULTIPATH_TCP = 262 };
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof address;
    mp_channel *channel = channel_new();
    int fd = socket(AF_INET, SOCK_STREAM, MULTIPATH_TCP), client;

    if (fd < 0) {
        CHECK(errno == EPROTONOSUPPORT || errno == ENOPROTOOPT);
        CHECK(mp_destroy(channel) == 0);
        return;
    }
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    CHECK(mp_accept(mp_register(channel, fd, NULL, NULL), 1, MP_LWSOCKET) == 0);
    client = connected(&address);
    CHECK(expect(channel, MP_ACCEPT).error == 0);
    close(client);
    CHECK(mp_destroy(channel) == 0);
    close(fd);
}

/* A connection ends without a handle, even if there is no room for one; and a server that opens its
 * listener again at the same address, as for a reload, finds it free. */
static void connections_are_refused_and_listeners_reopened(void)
{
    struct mp_options options = { .max_handles = 1 };
    mp_channel *channel = channel_with(&options);
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t size = sizeof address;
    mp_handle listener;
    int fd, before;
    char byte;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen((struct sockaddr *)&address, size, 0);
    CHECK(fd >= 0 && getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    listener = mp_register(channel, fd, NULL, NULL);
    CHECK(mp_accept(listener, 1, MP_LWSOCKET) == 0 && mp_flush(channel) == 0);
    before = open_files();
    for (int round = 0; round < 8; round++) {
        int reset = round & 1, is_light = !(round & 2);
        int client = connected(&address), number = expect(channel, MP_ACCEPT).fd;

        CHECK((number >= MP_LWSOCKET_FIRST) == is_light);
        FAILS(mp_refuse(channel, number, 2), EINVAL);
        CHECK(mp_refuse(channel, number, reset ? MP_RESET : 0) == 0);
        FAILS(mp_refuse(channel, number, 0), EBADF);
        CHECK(mp_accept(listener, 1, (round + 1) & 2 ? 0 : MP_LWSOCKET) == 0);
        CHECK(mp_flush(channel) == 0);
        errno = 0;
        CHECK(read(client, &byte, 1) == (reset ? -1 : 0) && errno == (reset ? ECONNRESET : 0));
        CHECK(close(client) == 0);
        CHECK(open_files() == before);
    }
    CHECK(mp_close(listener) == 0);
    fd = mp_listen((struct sockaddr *)&address, sizeof address, 0);
    CHECK(fd >= 0);
    CHECK(expect(channel, MP_CLOSE).error == 0);
    close(fd);
    CHECK(mp_destroy(channel) == 0);
}

/* A connection that was accepted and is not registered belongs to the channel, and is closed
 * with it. */
static void what_is_not_registered_goes_with_the_channel(void)
{
    int before = open_files(), client, fd;
    mp_channel *channel = channel_new();
    struct sockaddr_in address;

    fd = listening(&address);
    CHECK(mp_accept(mp_register(channel, fd, NULL, NULL), 0, 1) == 0);
    client = connected(&address);
    CHECK(expect(channel, MP_ACCEPT).fd >= MP_LWSOCKET_FIRST);
    CHECK(mp_destroy(channel) == 0);
    close(client);
    close(fd);
    CHECK(open_files() == before);
}

/* Reads to the end and returns the number of bytes. */
static size_t drained(int fd)
{
    static char room[65536];
    size_t sum = 0;
    ssize_t bytes;

    while ((bytes = read(fd, room, sizeof room)) > 0)
        sum += (size_t)bytes;
    return bytes == 0 ? sum : SIZE_MAX;
}

/* Starts a child that reads to the end and reports the number of bytes by its exit status. */
static pid_t reader_of(int fds[2])
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        close(fds[0]);
        _exit(drained(fds[1]) == BIG ? 0 : 1);
    }
    return child;
}

static void a_close_writes_what_is_queued_first(void)
{
    mp_channel *channel = channel_new();
    char *memory = big_memory();
    struct mp_event event;
    mp_handle handle;
    int fds[2], status, cookie;
    pid_t child;

    pair(fds);
    child = reader_of(fds);
    close(fds[1]);
    handle = mp_register(channel, fds[0], &cookie, NULL);
    CHECK(mp_recv(handle, MP_REPEAT) == 0);
    for (size_t at = 0; at < BIG; at += BIG / 8)
        CHECK(mp_write(handle, memory + at, BIG / 8) == 0);
    CHECK(mp_close(handle) == 0);
    FAILS(mp_write(handle, "x", 1), EBADF);
    FAILS(mp_close(handle), EBADF);
    event = expect(channel, MP_CLOSE);
    CHECK(event.error == 0 && event.cookie == &cookie && event.handle == handle);
    free(memory);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(!is_open(fds[0]));
    CHECK(mp_destroy(channel) == 0);
}

/* A program that frees what a write uses at its event needs the events of a closing handle, too. */
static void writes_have_their_events_after_close(void)
{
    struct mp_options options = { .events_after_close = 1 };
    mp_channel *channel = channel_with(&options);
    char *memory = big_memory();
    struct mp_event event;
    int fds[2], cookie;
    mp_handle handle;

    for (int aborts = 0; aborts < 2; aborts++) {
        size_t left = BIG, sent = 0;

        pair(fds);
        handle = mp_register(channel, fds[0], &cookie, NULL);
        for (size_t at = 0; at < BIG; at += BIG / 8)
            CHECK(mp_write(handle, memory + at, BIG / 8) == 0);
        CHECK(mp_close(handle) == 0);
        CHECK(mp_dispatch(channel, &event, 5) == 0);
        if (aborts)
            CHECK(mp_abort(handle) == 0);
        for (size_t at = 0; at < BIG; at += BIG / 8) {
            while (!aborts && mp_dispatch(channel, &event, 0) == 0) {
                ssize_t bytes = recv(fds[1], memory, BIG, MSG_DONTWAIT);

                CHECK(bytes > 0 || errno == EAGAIN);
                left -= bytes > 0 ? (size_t)bytes : 0;
            }
            if (aborts)
                event = expect(channel, MP_WRITE);
            CHECK(event.cmd == MP_WRITE && event.data >= (void *)memory);
            CHECK((char *)event.data < memory + BIG);
            CHECK(event.handle == handle && event.cookie == &cookie);
            CHECK(aborts ? event.size < BIG / 8 : !event.error && event.size == BIG / 8);
            sent += event.size;
        }
        event = expect(channel, MP_CLOSE);
        CHECK(event.handle == handle && event.cookie == &cookie && event.error == 0);
        if (!aborts)
            CHECK(left < BIG && sent == BIG);
        CHECK(mp_dispatch(channel, &event, 0) == 0);
        close(fds[1]);
    }
    free(memory);
    CHECK(mp_destroy(channel) == 0);
}

/* What the kernel took of a write is told also if the write fails. */
static void a_failed_write_tells_what_was_written(void)
{
    mp_channel *channel = channel_new();
    char *memory = big_memory();
    struct mp_event event;
    size_t got = 0;
    ssize_t bytes;
    int fds[2];
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_write(handle, memory, BIG) == 0);
    CHECK(mp_dispatch(channel, &event, 5) == 0);
    CHECK(mp_queued(handle) < BIG);
    CHECK(mp_set_timeout(handle, MP_OUT, 5) == 0);
    event = expect(channel, MP_WRITE);
    CHECK(event.error == ETIMEDOUT && event.data == memory);
    while ((bytes = recv(fds[1], memory, BIG, MSG_DONTWAIT)) > 0)
        got += (size_t)bytes;
    CHECK(errno == EAGAIN && got > 0 && event.size == got);
    free(memory);
    CHECK(mp_abort(handle) == 0);
    expect(channel, MP_CLOSE);
    close(fds[1]);
    CHECK(mp_destroy(channel) == 0);
}

/* The peer does not read: the close waits, and an abort ends it. */
static void an_abort_overtakes_a_close(void)
{
    mp_channel *channel = channel_new();
    char *memory = big_memory();
    struct mp_event event;
    struct sockaddr_in address;
    int fd = listening(&address), near = connected(&address), far = accept(fd, NULL, NULL);
    mp_handle handle = mp_register(channel, near, memory, NULL);

    CHECK(far >= 0);
    CHECK(mp_write(handle, memory, BIG) == 0);
    CHECK(mp_queued(handle) == BIG);
    CHECK(mp_close(handle) == 0);
    CHECK(mp_dispatch(channel, &event, 20) == 0);
    CHECK(is_open(near));
    CHECK(mp_abort(handle) == 0);
    event = expect(channel, MP_CLOSE);
    CHECK(event.cookie == memory && event.handle == handle);
    free(memory);
    CHECK(!is_open(near));
    FAILS(mp_abort(handle), EBADF);
    /* The peer has received a part of the data, and sees the reset. */
    CHECK(drained(far) == SIZE_MAX && errno == ECONNRESET);
    CHECK(mp_dispatch(channel, &event, 0) == 0);
    CHECK(mp_destroy(channel) == 0);
    close(far);
    close(fd);
}

static void a_close_that_gets_nowhere_is_ended(void)
{
    struct mp_options options = { .close_timeout_ms = 50 };
    mp_channel *channel = channel_with(&options);
    char *memory = big_memory();
    struct mp_event event;
    int fds[2];
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_write(handle, memory, BIG) == 0 && mp_close(handle) == 0);
    event = expect(channel, MP_CLOSE);
    CHECK(event.error == ETIMEDOUT && !is_open(fds[0]));
    free(memory);
    CHECK(mp_destroy(channel) == 0);
    close(fds[1]);
}

/* The descriptor of a closing handle does not return to the caller when the channel ends. */
static void a_closing_handle_ends_with_the_channel(void)
{
    mp_channel *channel = channel_new();
    char *memory = big_memory();
    int fds[2];
    mp_handle handle;

    pair(fds);
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_write(handle, memory, BIG) == 0 && mp_close(handle) == 0);
    CHECK(mp_destroy(channel) == 0);
    CHECK(!is_open(fds[0]));
    free(memory);
    close(fds[1]);
}

/* Whatever the failure, the descriptor still belongs to the caller. */
static void a_failed_register_closes_nothing(void)
{
    struct mp_options options = { .max_handles = 1 };
    mp_channel *channel = channel_with(&options);
    char *memory = big_memory();
    int fds[2], more[2], ends[2], path = open("/dev/null", O_PATH | O_CLOEXEC), status;
    mp_handle handle;
    pid_t child;

    CHECK(path >= 0);
    pair(fds);
    pair(more);
    CHECK(pipe(ends) == 0);
    /* The driver cannot make it non-blocking. */
    FAILS(mp_register(channel, path, NULL, NULL), EBADF);
    CHECK(is_open(path));
    /* A handle that is being closed occupies the only entry. */
    handle = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_write(handle, memory, BIG) == 0 && mp_close(handle) == 0);
    FAILS(mp_register(channel, more[0], NULL, NULL), ENFILE);
    FAILS(mp_register(channel, ends[0], NULL, NULL), ENFILE);
    FAILS(mp_timer(channel, NULL), ENFILE);
    CHECK(is_open(more[0]) && is_open(ends[0]));
    CHECK(!(fcntl(ends[0], F_GETFL) & O_NONBLOCK));
    CHECK(mp_abort(handle) == 0);
    expect(channel, MP_CLOSE);
    free(memory);
    /* A process that does not own the channel. */
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(mp_register(channel, more[0], NULL, NULL), EPERM);
        FAILS(mp_register(channel, ends[0], NULL, NULL), EPERM);
        CHECK(is_open(more[0]) && is_open(ends[0]));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* Now there is room. */
    handle = mp_register(channel, more[0], NULL, NULL);
    CHECK(handle >= 0);
    CHECK(mp_destroy(channel) == 0);
    CHECK(is_open(more[0]));
    close(fds[1]);
    close(more[0]);
    close(more[1]);
    close(ends[0]);
    close(ends[1]);
    close(path);
}

/* The same holds for a refused share of a listener. */
static void a_refused_share_closes_nothing(void)
{
    mp_channel *channel = channel_new();
    struct sockaddr_in address;
    int fd = listening(&address), fds[2];
    cpu_set_t none, first;

    pair(fds);
    CPU_ZERO(&none);
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    FAILS(mp_register(channel, fd, NULL, &none), EINVAL);
    FAILS(mp_register(channel, fds[0], NULL, &first), EOPNOTSUPP);
    CHECK(is_open(fd) && is_open(fds[0]));
    CHECK(mp_register(channel, fd, NULL, &first) >= 0);
    CHECK(mp_destroy(channel) == 0);
    CHECK(is_open(fd));
    close(fds[0]);
    close(fds[1]);
    close(fd);
}

/* A lightweight socket that cannot be registered now can be registered later. */
static void a_lightweight_socket_waits_for_room(void)
{
    struct mp_options options = { .max_handles = 2 };
    mp_channel *channel = channel_with(&options);
    struct sockaddr_in address;
    int fd = listening(&address), client, number, fds[2];
    mp_handle listener, other, handle;

    pair(fds);
    listener = mp_register(channel, fd, NULL, NULL);
    other = mp_register(channel, fds[0], NULL, NULL);
    CHECK(mp_accept(listener, 1, 1) == 0);
    client = connected(&address);
    number = expect(channel, MP_ACCEPT).fd;
    FAILS(mp_register(channel, number, NULL, NULL), ENFILE);
    CHECK(mp_unregister(other) == 0);
    handle = mp_register(channel, number, NULL, NULL);
    CHECK(handle >= 0 && mp_write(handle, "x", 1) == 0);
    expect(channel, MP_WRITE);
    CHECK(mp_destroy(channel) == 0);
    close(client);
    close(fds[0]);
    close(fds[1]);
    close(fd);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    lightweight_connections_leave_nothing(mp_unregister, 0);
    lightweight_connections_leave_nothing(mp_close, 1);
    lightweight_connections_leave_nothing(mp_abort, 1);
    a_listener_of_multipath_tcp_accepts();
    connections_are_refused_and_listeners_reopened();
    what_is_not_registered_goes_with_the_channel();
    a_close_writes_what_is_queued_first();
    writes_have_their_events_after_close();
    a_failed_write_tells_what_was_written();
    an_abort_overtakes_a_close();
    a_close_that_gets_nowhere_is_ended();
    a_closing_handle_ends_with_the_channel();
    a_failed_register_closes_nothing();
    a_refused_share_closes_nothing();
    a_lightweight_socket_waits_for_room();
    puts("endings: all is well");
    return 0;
}
