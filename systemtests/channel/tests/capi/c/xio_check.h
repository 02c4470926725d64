/* Shared by the test programs of flows, in addition to check.h: names of their own, and flow
 * pairs. */
#ifndef XIO_CHECK_H
#define XIO_CHECK_H

#include "check.h"

#include <dirent.h>
#include <xio.h>

/* Longer than any call takes; a call that waits that long has failed. */
enum { PATIENCE_MS = 60000 };

/* A context with a listener, and the name that leads to it. */
struct server {
    xio_context *context;
    xio_handle listener;
    char name[128];
};

static inline struct server serve_as(const char *name, const struct xio_options *options)
{
    struct xio_options patient = options ? *options : (struct xio_options){ 0 };
    struct server server;

    patient.timeout_ms = PATIENCE_MS;
    CHECK((server.context = xio_register_name(name, &patient)));
    CHECK((server.listener = xio_listen(server.context)) > 0);
    CHECK(xio_name(server.context, server.name, sizeof server.name) > 0);
    return server;
}

/* Whether a name daemon runs and names are registered with it; else they are sockets. */
static int is_named;

/* Returns a server at a name that no other test uses. */
static inline struct server serve_somewhere(void)
{
    const char *form = is_named ? "fable://xio-test-%d-%d/only" : "unix://@xio-test-%d-%d";
    static int number;
    char name[64];

    snprintf(name, sizeof name, form, (int)getpid(), number++);
    return serve_as(name, NULL);
}

static inline void end_server(struct server server)
{
    CHECK(xio_close(server.listener) == 0);
    CHECK(xio_unregister_name(server.context) == 0);
}

/* Opens a flow and returns both ends. */
static inline void flow_pair(xio_handle ends[2])
{
    struct server server = serve_somewhere();

    CHECK((ends[0] = xio_connect(server.context, server.name)) > 0);
    CHECK((ends[1] = xio_accept(server.listener, PATIENCE_MS)) > 0);
    end_server(server);
}

static inline struct xio_buffer room(xio_handle flow, size_t bytes)
{
    struct xio_buffer buffer;

    CHECK(xio_getwritebuf(flow, bytes, &buffer, 1, PATIENCE_MS) == 1);
    CHECK(buffer.bytes == bytes && buffer.handle == flow && buffer.data);
    return buffer;
}

static inline void say(xio_handle flow, const char *text)
{
    struct xio_buffer buffer = room(flow, strlen(text));

    memcpy(buffer.data, text, strlen(text));
    CHECK(xio_commit(flow, &buffer) == 0);
    CHECK(!buffer.data && !buffer.bytes && buffer.handle == XIO_NONE && !buffer.token);
}

static inline struct xio_buffer hear(xio_handle flow, const char *text)
{
    struct xio_buffer buffer;

    CHECK(xio_getreadbuf(flow, &buffer, 1, PATIENCE_MS) == 1);
    CHECK(buffer.bytes == strlen(text) && !memcmp(buffer.data, text, strlen(text)));
    CHECK(buffer.handle == flow);
    return buffer;
}

static inline void hear_and_release(xio_handle flow, const char *text)
{
    struct xio_buffer buffer = hear(flow, text);

    CHECK(xio_release(&buffer) == 0);
    CHECK(!buffer.data && !buffer.bytes && buffer.handle == XIO_NONE && !buffer.token);
}

static inline int open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;

    CHECK(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/*
 * Counts the open descriptors after the library's first flow, of which it keeps some. The library
 * closes others in a thread of its own, which may take a while. Then the count is too high, and the
 * comparison at the end weaker, but not wrong.
 */
static inline int descriptors_kept(void)
{
    xio_handle ends[2];

    flow_pair(ends);
    CHECK(xio_close(ends[0]) == 0 && xio_close(ends[1]) == 0);
    usleep(100000);
    return open_descriptors();
}

static inline void expect_descriptors(int most)
{
    for (int waited_ms = 0; open_descriptors() > most && waited_ms < PATIENCE_MS; waited_ms++)
        usleep(1000);
    CHECK(open_descriptors() <= most);
}

#endif
