/*
 * Tests what the calls do, and which calls are refused for end-points, flows and buffers.
 *
 *   xio_calls [named]    over the name daemon, else over sockets
 */
#define _GNU_SOURCE
#include "xio_check.h"

#include <pthread.h>
#include <sys/wait.h>

static void options_are_checked(void)
{
    struct xio_options options = { .trust = 2 };
    uint32_t ids[] = { 1, 2 };
    char name[8];
    xio_context *context;

    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ .ring_bytes = 100 };
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ .transport = "carrier-pigeon" };
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    CHECK(strstr(mp_error(), "mempipe-futex-safe"));
    options = (struct xio_options){ .users_count = 1 };
    FAILS_NULL(xio_register_name(NULL, &options), EFAULT);
    options = (struct xio_options){ .groups = ids, .groups_count = 5000 };
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ 0 };
    options.reserved[1] = 1;
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ .reserved_word = 1 };
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ .owner = 1000 };
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ .requires_owner = 2 };
    FAILS_NULL(xio_register_name(NULL, &options), EINVAL);
    options = (struct xio_options){ .trust = XIO_TRUSTED, .timeout_ms = 100, .spin_us = 1,
                                    .ring_bytes = 4096, .users = ids, .users_count = 2,
                                    .transport = "mempipe-futex", .socket = "/nowhere" };
    CHECK((context = xio_register_name(NULL, &options)));
    CHECK(xio_name(context, name, sizeof name) == 0 && !name[0]);
    FAILS(xio_listen(context), ECONNREFUSED);
    FAILS(xio_connect(context, "fable://nobody"), ENOENT);
    CHECK(strstr(mp_error(), "/nowhere"));
    FAILS_NULL(xio_register_name("fable://somebody", &options), ENOENT);
    CHECK(xio_unregister_name(context) == 0);
}

static void names_are_checked(void)
{
    struct server server = serve_somewhere();
    char name[8];

    FAILS_NULL(xio_register_name("no name", NULL), EINVAL);
    FAILS_NULL(xio_register_name("fable://", NULL), EINVAL);
    FAILS_NULL(xio_register_name("\xff\xfe", NULL), EINVAL);
    FAILS_NULL(xio_register_name(server.name, NULL), ECONNREFUSED);
    FAILS(xio_connect(server.context, "no name"), EINVAL);
    FAILS(xio_connect(server.context, NULL), EFAULT);
    FAILS(xio_connect(server.context, "unix:///nowhere/at/all"), ENOENT);
    CHECK(xio_name(server.context, NULL, 0) == (int)strlen(server.name));
    CHECK(xio_name(server.context, name, sizeof name) == (int)strlen(server.name));
    CHECK(strlen(name) == sizeof name - 1 && !strncmp(name, server.name, sizeof name - 1));
    FAILS(xio_name(server.context, NULL, 1), EFAULT);
    end_server(server);
    server = serve_as("tcp://127.0.0.1:0", NULL);
    CHECK(strncmp(server.name, "tcp://127.0.0.1:", 16) == 0 && atoi(server.name + 16) > 0);
    end_server(server);
}

static void contexts_go_stale(void)
{
    struct server server = serve_somewhere(), later = serve_somewhere();
    char odd;

    FAILS(xio_unregister_name(NULL), EFAULT);
    FAILS(xio_listen(NULL), EFAULT);
    FAILS(xio_unregister_name((xio_context *)&odd), EBADF);
    FAILS(xio_connect((xio_context *)UINTPTR_MAX, server.name), EBADF);
    CHECK(xio_unregister_name(server.context) == 0);
    FAILS(xio_unregister_name(server.context), EBADF);
    FAILS(xio_listen(server.context), EBADF);
    FAILS(xio_connect(server.context, server.name), EBADF);
    FAILS(xio_name(server.context, NULL, 0), EBADF);
    /* The listener keeps the name. */
    FAILS_NULL(xio_register_name(server.name, NULL), ECONNREFUSED);
    CHECK(xio_close(server.listener) == 0);
    FAILS(xio_close(server.listener), EBADF);
    FAILS(xio_accept(server.listener, 0), EBADF);
    end_server(later);
}

static void bytes_go_both_ways(void)
{
    struct xio_peer_info peer;
    struct xio_counters counters;
    struct xio_event event;
    struct xio_buffer none;
    xio_handle ends[2];

    flow_pair(ends);
    CHECK(xio_getreadbuf(ends[1], &none, 1, 0) == 0);
    CHECK(xio_getreadbuf(ends[1], &none, 1, 1) == 0);
    say(ends[0], "there");
    hear_and_release(ends[1], "there");
    say(ends[1], "and back");
    hear_and_release(ends[0], "and back");
    CHECK(is_named || !strcmp(xio_transport(ends[0]), "unix"));
    CHECK(xio_transport(ends[0]) == xio_transport(ends[1]) && xio_epoch(ends[0]) >= 1);
    CHECK(xio_peer(ends[1], &peer) == 0);
    CHECK(peer.pid == getpid() && peer.uid == getuid() && peer.gid == getgid());
    CHECK(xio_statistics(ends[0], &counters, sizeof counters) == 0);
    CHECK(counters.messages_sent == 1 && counters.bytes_sent == 5);
    CHECK(counters.messages_received == 1 && counters.bytes_received == 8);
    CHECK(xio_getevent(ends[0], &event) == 0);
    CHECK(xio_batch(ends[0], 16) == 0);
    say(ends[0], "batched");
    CHECK(xio_flush(ends[0]) == 1);
    hear_and_release(ends[1], "batched");
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
}

static void arguments_are_checked(void)
{
    struct server server = serve_somewhere();
    struct xio_buffer buffers[2];
    xio_handle ends[2];

    flow_pair(ends);
    FAILS(xio_getreadbuf(ends[0], NULL, 1, 0), EFAULT);
    FAILS(xio_getreadbuf(ends[0], buffers, 0, 0), EINVAL);
    FAILS(xio_getwritebuf(ends[0], 1, NULL, 1, 0), EFAULT);
    FAILS(xio_getwritebuf(ends[0], 1, buffers, -1, 0), EINVAL);
    FAILS(xio_getwritebuf(ends[0], SIZE_MAX, buffers, 1, 0), EMSGSIZE);
    FAILS(xio_batch(ends[0], 0), EINVAL);
    FAILS(xio_move(ends[0], NULL), EFAULT);
    FAILS(xio_move(ends[0], "carrier-pigeon"), EINVAL);
    FAILS(xio_getevent(ends[0], NULL), EFAULT);
    FAILS(xio_peer(ends[0], NULL), EFAULT);
    FAILS(xio_statistics(ends[0], NULL, 8), EFAULT);
    FAILS(xio_accept(ends[0], 0), EOPNOTSUPP);
    FAILS(xio_accept(server.listener, 0), EAGAIN);
    FAILS(xio_accept(server.listener, 1), EAGAIN);
    FAILS(xio_getreadbuf(server.listener, buffers, 1, 0), EOPNOTSUPP);
    FAILS(xio_epoch(server.listener), EOPNOTSUPP);
    FAILS_NULL(xio_transport(server.listener), EOPNOTSUPP);
    for (int wrong = 0; wrong < 4; wrong++) {
        xio_handle handle = (xio_handle[]){ XIO_NONE, 0, INT64_MAX, ends[1] + 100 }[wrong];

        FAILS(xio_getreadbuf(handle, buffers, 1, 0), EBADF);
        FAILS(xio_getwritebuf(handle, 1, buffers, 1, 0), EBADF);
        FAILS(xio_close(handle), EBADF);
        FAILS(xio_shutdown(handle), EBADF);
        FAILS(xio_descriptor(handle), EBADF);
        FAILS(xio_accept(handle, 0), EBADF);
    }
    CHECK(xio_getwritebuf(ends[0], XIO_ANY, buffers, 1, 0) == 1 && buffers[0].bytes >= 1024);
    CHECK(xio_release(buffers) == 0);
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
    end_server(server);
}

static void buffers_are_single_use(void)
{
    struct xio_buffer buffer, copy;
    xio_handle ends[2], others[2];

    flow_pair(ends);
    flow_pair(others);
    FAILS(xio_release(NULL), EFAULT);
    FAILS(xio_commit(ends[0], NULL), EFAULT);
    memset(&buffer, 0, sizeof buffer);
    FAILS(xio_release(&buffer), ESTALE);
    memset(&buffer, 0xff, sizeof buffer);
    FAILS(xio_commit(ends[0], &buffer), ESTALE);
    copy = buffer = room(ends[0], 5);
    memcpy(buffer.data, "hello", 5);
    copy.bytes = 6;
    FAILS(xio_commit(ends[0], &copy), EINVAL);
    copy.bytes = 5;
    FAILS(xio_commit(others[0], &copy), EXDEV);
    copy.handle = others[0];
    FAILS(xio_commit(others[0], &copy), ESTALE);
    copy = buffer;
    copy.data = (char *)copy.data + 1;
    FAILS(xio_commit(ends[0], &copy), ESTALE);
    copy = buffer;
    copy.token++;
    FAILS(xio_commit(ends[0], &copy), ESTALE);
    FAILS(xio_commit(XIO_NONE, &buffer), EXDEV);
    copy = buffer;
    buffer.bytes = 4;
    CHECK(xio_commit(ends[0], &buffer) == 0);
    FAILS(xio_commit(ends[0], &copy), ESTALE);
    FAILS(xio_release(&copy), ESTALE);
    FAILS(xio_release(&buffer), ESTALE);
    /* Another buffer has the entry now. */
    buffer = room(ends[0], 5);
    FAILS(xio_release(&copy), ESTALE);
    CHECK(xio_release(&buffer) == 0);
    copy = buffer = hear(ends[1], "hell");
    copy.bytes = 3;
    FAILS(xio_commit(others[0], &copy), EINVAL);
    CHECK(xio_release(&buffer) == 0);
    copy.bytes = 4;
    FAILS(xio_release(&copy), ESTALE);
    FAILS(xio_commit(others[0], &copy), ESTALE);
    for (int end = 0; end < 2; end++)
        CHECK(xio_close(ends[end]) == 0 && xio_close(others[end]) == 0);
}

static void messages_go_on_to_other_flows(void)
{
    struct xio_buffer buffer;
    xio_handle ends[2], others[2];
    int sent = 0;

    flow_pair(ends);
    flow_pair(others);
    say(ends[0], "pass it on");
    buffer = hear(ends[1], "pass it on");
    CHECK(xio_commit(others[0], &buffer) == 0 && !buffer.data);
    hear_and_release(others[1], "pass it on");
    say(ends[0], "return it");
    buffer = hear(ends[1], "return it");
    CHECK(xio_commit(ends[1], &buffer) == 0);
    hear_and_release(ends[0], "return it");
    /* If there is no room, the message still belongs to the caller. */
    say(ends[0], "later");
    for (int size = 0; size < 2; size++) {
        while (xio_getwritebuf(others[0], size ? 5 : XIO_ANY, &buffer, 1, 0) == 1) {
            memset(buffer.data, 'x', buffer.bytes);
            CHECK(xio_commit(others[0], &buffer) == 0 && sent++ < 100000);
        }
    }
    buffer = hear(ends[1], "later");
    FAILS(xio_commit(others[0], &buffer), EAGAIN);
    CHECK(buffer.bytes == 5 && !memcmp(buffer.data, "later", 5));
    CHECK(xio_release(&buffer) == 0);
    for (int end = 0; end < 2; end++)
        CHECK(xio_close(ends[end]) == 0 && xio_close(others[end]) == 0);
}

static void buffers_outlive_their_flow(void)
{
    struct xio_buffer message, unsent, other;
    xio_handle ends[2], others[2];

    flow_pair(ends);
    flow_pair(others);
    say(ends[0], "last words");
    message = hear(ends[1], "last words");
    unsent = room(ends[1], 100);
    other = room(ends[0], 100);
    CHECK(xio_close(ends[1]) == 0 && xio_close(ends[0]) == 0);
    memset(unsent.data, 'x', 100);
    FAILS(xio_commit(ends[1], &unsent), EBADF);
    CHECK(unsent.data && xio_release(&unsent) == 0);
    CHECK(xio_release(&other) == 0);
    CHECK(!memcmp(message.data, "last words", 10));
    FAILS(xio_commit(ends[0], &message), EBADF);
    CHECK(xio_commit(others[0], &message) == 0);
    hear_and_release(others[1], "last words");
    CHECK(xio_close(others[0]) == 0 && xio_close(others[1]) == 0);
}

static void directions_end(void)
{
    struct xio_buffer buffer;
    xio_handle ends[2];

    flow_pair(ends);
    say(ends[0], "the end");
    CHECK(xio_shutdown(ends[0]) == 0);
    FAILS(xio_getwritebuf(ends[0], 1, &buffer, 1, 0), EPIPE);
    hear_and_release(ends[1], "the end");
    FAILS(xio_getreadbuf(ends[1], &buffer, 1, PATIENCE_MS), ENODATA);
    FAILS(xio_getreadbuf(ends[1], &buffer, 1, 0), ENODATA);
    say(ends[1], "the other direction");
    hear_and_release(ends[0], "the other direction");
    CHECK(xio_shutdown(ends[1]) == 0);
    FAILS(xio_getreadbuf(ends[0], &buffer, 1, -1), ENODATA);
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
}

static void held_buffers_are_bounded(void)
{
    static struct xio_buffer held[100000];
    xio_handle ends[2];
    int count = 0;

    flow_pair(ends);
    while (xio_getwritebuf(ends[0], 16, held + count, 1, 0) == 1)
        CHECK(++count < 100000);
    CHECK(count > 16);
    FAILS(xio_getwritebuf(ends[0], 16, held + count, 1, 0), ENOSPC);
    for (int at = 0; at < count; at++)
        CHECK(xio_release(held + at) == 0);
    CHECK(xio_getwritebuf(ends[0], 16, held, 8, 0) == 8);
    for (int at = 0; at < 8; at++)
        CHECK(xio_release(held + at) == 0);
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
}

struct foreign {
    struct server server;
    xio_handle flow;
    struct xio_buffer buffer;
};

static void *use_in_thread(void *argument)
{
    struct foreign *foreign = argument;
    struct xio_buffer buffer = foreign->buffer;
    xio_handle flow;

    FAILS(xio_getreadbuf(foreign->flow, &buffer, 1, 0), EBADF);
    FAILS(xio_close(foreign->flow), EBADF);
    buffer = foreign->buffer;
    FAILS(xio_release(&buffer), ESTALE);
    FAILS(xio_commit(foreign->flow, &buffer), ESTALE);
    /* All threads may use end-points and listeners. The flows are closed with the thread. */
    CHECK((flow = xio_connect(foreign->server.context, foreign->server.name)) > 0);
    CHECK((flow = xio_accept(foreign->server.listener, PATIENCE_MS)) > 0);
    CHECK(flow != foreign->flow);
    return NULL;
}

static void flows_belong_to_their_thread(void)
{
    struct foreign foreign = { .server = serve_somewhere() };
    xio_handle ends[2];
    pthread_t thread;

    flow_pair(ends);
    foreign.flow = ends[0];
    foreign.buffer = room(ends[0], 8);
    CHECK(pthread_create(&thread, NULL, use_in_thread, &foreign) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    memcpy(foreign.buffer.data, "still me", 8);
    CHECK(xio_commit(ends[0], &foreign.buffer) == 0);
    hear_and_release(ends[1], "still me");
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
    end_server(foreign.server);
}

static void children_have_nothing(void)
{
    struct server server = serve_somewhere();
    struct xio_buffer buffer;
    xio_handle ends[2];
    pid_t child;
    int status;

    flow_pair(ends);
    buffer = room(ends[0], 5);
    memcpy(buffer.data, "mine!", 5);
    CHECK((child = fork()) >= 0);
    if (!child) {
        struct xio_buffer other;

        FAILS(xio_getreadbuf(ends[1], &other, 1, 0), EPERM);
        FAILS(xio_getwritebuf(ends[0], 1, &other, 1, 0), EPERM);
        FAILS(xio_commit(ends[0], &buffer), EPERM);
        FAILS(xio_accept(server.listener, 0), EPERM);
        FAILS(xio_connect(server.context, server.name), EPERM);
        CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
        end_server(server);
        /* Flows that the child opens itself work. */
        flow_pair(ends);
        say(ends[0], "child");
        hear_and_release(ends[1], "child");
        /* Without a check for leaks, because the child must not free the parent's buffers. */
        execl("/bin/true", "true", NULL);
        _exit(EXIT_FAILURE);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(xio_commit(ends[0], &buffer) == 0);
    hear_and_release(ends[1], "mine!");
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
    end_server(server);
}

static void closing_tells_what_was_not_delivered(void)
{
    struct xio_options options = { .linger_ms = 1, .timeout_ms = PATIENCE_MS };
    struct server server = serve_somewhere();
    struct xio_counters counters;
    struct xio_buffer buffer;
    xio_handle ends[2];
    xio_context *me;
    uint64_t undelivered = 7, sent = 0;

    CHECK((me = xio_register_name(NULL, &options)));
    CHECK((ends[0] = xio_connect(me, server.name)) > 0);
    CHECK((ends[1] = xio_accept(server.listener, PATIENCE_MS)) > 0);
    FAILS(xio_close_wait(server.listener, 0, NULL), EOPNOTSUPP);
    for (; xio_getwritebuf(ends[0], 60000, &buffer, 1, 0) == 1; sent++)
        CHECK(xio_commit(ends[0], &buffer) == 0);
    CHECK(sent > 0 && xio_undelivered(me) == 0);
    CHECK(xio_statistics(ends[0], &counters, sizeof counters) == 0);
    if (is_named) { /* It lies in a ring. */
        CHECK(counters.undelivered == 0);
        CHECK(xio_close_wait(ends[0], 0, &undelivered) == 0 && undelivered == 0);
    } else { /* The socket has not taken all. */
        FAILS(xio_close_wait(ends[0], 20, &undelivered), ETIMEDOUT);
        CHECK(strstr(mp_error(), "not delivered"));
        CHECK(0 < undelivered && undelivered <= sent && undelivered == counters.undelivered);
    }
    CHECK(xio_undelivered(me) == (int64_t)undelivered);
    FAILS(xio_close_wait(ends[0], 0, &undelivered), EBADF);
    CHECK(undelivered == 0);
    CHECK(xio_close_wait(ends[1], -1, NULL) == 0);
    CHECK(xio_unregister_name(me) == 0);
    FAILS(xio_undelivered(me), EBADF);
    end_server(server);
}

int main(int argc, char **argv)
{
    int before;

    is_named = argc > 1 && !strcmp(argv[1], "named");
    before = descriptors_kept();
    options_are_checked();
    names_are_checked();
    contexts_go_stale();
    bytes_go_both_ways();
    arguments_are_checked();
    buffers_are_single_use();
    messages_go_on_to_other_flows();
    buffers_outlive_their_flow();
    directions_end();
    closing_tells_what_was_not_delivered();
    held_buffers_are_bounded();
    flows_belong_to_their_thread();
    children_have_nothing();
    expect_descriptors(before);
    puts("all is well");
    return EXIT_SUCCESS;
}
