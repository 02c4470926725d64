/*
 * Tests flows between two processes over the name daemon: messages keep their bounds, transports
 * change, processes end. A child sends each message back.
 */
#define _GNU_SOURCE
#include "xio_check.h"

#include <signal.h>
#include <sys/wait.h>

static pid_t server;
static xio_context *me;
static char name[64];

/* Sends the available messages back; returns -1 at the end. */
static int answer(xio_handle flow)
{
    struct xio_buffer message;
    int result;

    while ((result = xio_getreadbuf(flow, &message, 1, 0)) == 1) {
        struct xio_buffer reply = room(flow, message.bytes);

        memcpy(reply.data, message.data, message.bytes);
        CHECK(xio_commit(flow, &reply) == 0);
        CHECK(xio_release(&message) == 0);
    }
    if (result < 0) {
        CHECK(errno == ENODATA || errno == ECONNRESET);
        CHECK(xio_shutdown(flow) == 0 || errno == ECONNRESET);
    }
    return result;
}

/* Sends messages back until it is killed. */
static void serve(void)
{
    struct xio_options options = { .trust = XIO_TRUSTED };
    struct server here = serve_as(name, &options);
    struct xio_poll polls[8] = { { .handle = here.listener, .events = POLLIN } };
    size_t count = 1;

    while (xpoll(NULL, 0, polls, count, PATIENCE_MS) > 0) {
        for (size_t at = count - 1; at > 0; at--) {
            if (polls[at].revents && answer(polls[at].handle) < 0) {
                CHECK(xio_close(polls[at].handle) == 0);
                polls[at] = polls[--count];
            }
        }
        if (polls[0].revents && count < 8) {
            polls[count] = (struct xio_poll){ .handle = xio_accept(here.listener, 0),
                                              .events = POLLIN };
            CHECK(polls[count].handle > 0 || errno == EAGAIN);
            count += polls[count].handle > 0;
        }
    }
    exit(EXIT_FAILURE);
}

static xio_handle connect_flow(void)
{
    xio_handle flow = xio_connect(me, name);

    CHECK(flow > 0);
    return flow;
}

static void end_flow(xio_handle flow)
{
    struct xio_buffer buffer;

    CHECK(xio_shutdown(flow) == 0);
    FAILS(xio_getreadbuf(flow, &buffer, 1, PATIENCE_MS), ENODATA);
    CHECK(xio_close(flow) == 0);
}

static void messages_keep_their_bounds(void)
{
    static const size_t sizes[] = { 1, 0, 64, 4096, 0, 50000, 7 };
    enum { SIZES = sizeof sizes / sizeof *sizes };
    struct xio_buffer buffer;
    struct xio_peer_info peer;
    xio_handle flow = connect_flow();

    CHECK(xio_peer(flow, &peer) == 0 && peer.pid == server && peer.uid == getuid());
    CHECK(strlen(peer.program) > 0 && strlen(peer.host) > 0);
    CHECK(xio_epoch(flow) == 1 && xio_transport(flow));
    for (int at = 0; at < SIZES; at++) {
        buffer = room(flow, sizes[at]);
        CHECK(buffer.epoch == 1);
        memset(buffer.data, 'a' + at, buffer.bytes);
        CHECK(xio_commit(flow, &buffer) == 0);
    }
    for (int at = 0; at < SIZES; at++) {
        CHECK(xio_getreadbuf(flow, &buffer, 1, PATIENCE_MS) == 1);
        CHECK(buffer.bytes == sizes[at] && buffer.epoch == 1);
        for (size_t byte = 0; byte < buffer.bytes; byte++)
            CHECK(((char *)buffer.data)[byte] == 'a' + at);
        CHECK(xio_release(&buffer) == 0);
    }
    end_flow(flow);
}

static struct xio_event await_event(xio_handle flow)
{
    struct xio_poll poll = { .handle = flow, .events = POLLIN };
    struct xio_event event;
    int taken;

    while ((taken = xio_getevent(flow, &event)) == 0)
        CHECK(xpoll(NULL, 0, &poll, 1, PATIENCE_MS) == 1);
    CHECK(taken == 1);
    return event;
}

/* Sends messages before, during and after each move, while it holds buffers of old epochs. */
static void flows_move_between_transports(void)
{
    static const char *const transports[] = { "mempipe-futex-safe", "unix", "tcp-nodelay", "tcp",
                                              "mempipe-futex-unsafe", "mempipe-futex-safe" };
    xio_handle flow = connect_flow();
    struct xio_counters counters;

    for (size_t at = 0; at < sizeof transports / sizeof *transports; at++) {
        struct xio_buffer old, kept;
        struct xio_event event;

        say(flow, "before");
        kept = hear(flow, "before");
        old = room(flow, 3);
        CHECK(xio_move(flow, transports[at]) == 0);
        event = await_event(flow);
        if (event.type != XIO_MOVED)
            fprintf(stderr, "%s: %s\n", event.transport, event.reason);
        CHECK(event.type == XIO_MOVED && !strcmp(event.transport, transports[at]));
        CHECK(event.epoch == old.epoch + 1 && strlen(event.reason) > 0);
        CHECK(!strcmp(xio_transport(flow), transports[at]) && xio_epoch(flow) == event.epoch);
        memcpy(old.data, "old", 3);
        CHECK(xio_commit(flow, &old) == 0);
        say(flow, "new");
        hear_and_release(flow, "old");
        hear_and_release(flow, "new");
        CHECK(kept.epoch == event.epoch - 1 && !memcmp(kept.data, "before", 6));
        CHECK(xio_release(&kept) == 0);
    }
    CHECK(xio_statistics(flow, &counters, sizeof counters) == 0);
    CHECK(counters.moves >= sizeof transports / sizeof *transports);
    /* A move that is impossible. */
    CHECK(xio_move(flow, "tls") == 0 || errno == ECONNREFUSED);
    say(flow, "still there");
    hear_and_release(flow, "still there");
    end_flow(flow);
}

/* Tests what another user gets, if this process may change its user. */
static void become_another_and_connect(const char *closed)
{
    struct xio_options options = { .timeout_ms = PATIENCE_MS };
    xio_context *other;

    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK((other = xio_register_name(NULL, &options)));
    FAILS(xio_connect(other, closed), ECONNREFUSED);
    execl("/bin/true", "true", NULL);
    _exit(EXIT_FAILURE);
}

/* The name is this process's: a client that requires another user does not get it. */
static void another_owner_is_refused(void)
{
    struct xio_options options = { .requires_owner = 1, .owner = geteuid() + 1,
                                   .timeout_ms = PATIENCE_MS };
    xio_context *client;

    CHECK((client = xio_register_name(NULL, &options)));
    FAILS(xio_connect(client, name), EACCES);
    CHECK(strstr(mp_error(), "belongs to user"));
    CHECK(xio_unregister_name(client) == 0);
}

static void strangers_are_refused(void)
{
    uint32_t somebody = 65533;
    struct xio_options options = { .users = &somebody, .users_count = 1 };
    struct server closed;
    char other[80];
    int status;
    pid_t child;

    FAILS(xio_connect(me, "fable://xio-test-nobody-has-this"), ECONNREFUSED);
    FAILS_NULL(xio_register_name(name, NULL), ECONNREFUSED);
    another_owner_is_refused();
    snprintf(other, sizeof other, "fable://xio-closed-%d", (int)getpid());
    closed = serve_as(other, &options);
    if (geteuid() == 0) {
        CHECK((child = fork()) >= 0);
        if (!child)
            become_another_and_connect(other);
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    }
    end_server(closed);
}

static void deaths_are_noticed(void)
{
    struct xio_buffer buffer;
    xio_handle flow = connect_flow();
    int status, result;

    say(flow, "a last word");
    hear_and_release(flow, "a last word");
    CHECK(kill(server, SIGKILL) == 0 && waitpid(server, &status, 0) == server);
    CHECK(WIFSIGNALED(status));
    while ((result = xio_getreadbuf(flow, &buffer, 1, PATIENCE_MS)) == 1)
        CHECK(xio_release(&buffer) == 0);
    CHECK(result == -1 && errno == ECONNRESET);
    FAILS(xio_getwritebuf(flow, 1, &buffer, 1, PATIENCE_MS), ECONNRESET);
    CHECK(xio_close(flow) == 0);
    FAILS(xio_connect(me, name), ECONNREFUSED);
}

int main(void)
{
    struct xio_options options = { .trust = XIO_TRUSTED, .timeout_ms = PATIENCE_MS };

    snprintf(name, sizeof name, "fable://xio-moves-%d/only", (int)getpid());
    CHECK((server = fork()) >= 0);
    if (server == 0)
        serve();
    CHECK((me = xio_register_name(NULL, &options)));
    /* The child may take some time. */
    for (int tries = 0; tries < PATIENCE_MS; tries++) {
        xio_handle flow = xio_connect(me, name);

        if (flow > 0) {
            end_flow(flow);
            break;
        }
        usleep(1000);
    }
    messages_keep_their_bounds();
    flows_move_between_transports();
    strangers_are_refused();
    deaths_are_noticed();
    CHECK(xio_unregister_name(me) == 0);
    puts("all is well");
    return EXIT_SUCCESS;
}
