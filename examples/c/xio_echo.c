/*
 * Answers every message with itself, to many clients at once.
 *
 *   xio_echo [NAME]      fable://echo (needs the name daemon, fabled), unix:///run/echo, tcp://...
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xio.h>

enum { FLOWS_MAX = 64, MESSAGES_MAX = 16, PATIENCE_MS = 10000 };

static int answer(xio_handle flow, const struct xio_buffer *message)
{
    struct xio_buffer reply;

    /* A client that does not obtain its answers is given up. */
    if (xio_getwritebuf(flow, message->bytes, &reply, 1, PATIENCE_MS) != 1)
        return -1;
    memcpy(reply.data, message->data, message->bytes);
    return xio_commit(flow, &reply);
}

/* Answers what has arrived; 0 if more may come. */
static int serve(xio_handle flow)
{
    struct xio_buffer messages[MESSAGES_MAX];
    int count = xio_getreadbuf(flow, messages, MESSAGES_MAX, 0), failed = count < 0;

    if (failed && errno == ENODATA)
        xio_shutdown(flow);
    for (int at = 0; at < count; at++) {
        failed = failed || answer(flow, &messages[at]) != 0;
        xio_release(&messages[at]);
    }
    return failed ? -1 : 0;
}

int main(int argc, char **argv)
{
    xio_context *echo = xio_register_name(argc > 1 ? argv[1] : "fable://echo", NULL);
    struct xio_poll polls[1 + FLOWS_MAX] = { { .handle = XIO_NONE, .events = POLLIN } };
    size_t count = 1;
    char name[256];

    if (!echo || (polls[0].handle = xio_listen(echo)) < 0)
        return fprintf(stderr, "xio_echo: %s\n", mp_error()), 1;
    xio_name(echo, name, sizeof name);
    printf("listening on %s\n", name);
    fflush(stdout);
    while (xpoll(NULL, 0, polls, count, -1) > 0) {
        for (size_t at = count - 1; at > 0; at--) {
            if (polls[at].revents && serve(polls[at].handle) != 0) {
                xio_close(polls[at].handle);
                polls[at] = polls[--count];
            }
        }
        if (polls[0].revents) {
            xio_handle flow = xio_accept(polls[0].handle, 0);

            if (flow >= 0)
                polls[count++] = (struct xio_poll){ .handle = flow, .events = POLLIN };
        }
        /* Further clients wait until one leaves. */
        polls[0].events = count <= FLOWS_MAX ? POLLIN : 0;
    }
    return fprintf(stderr, "xio_echo: %s\n", mp_error()), 1;
}
