/*
 * Sends messages to xio_echo, one after the other, and checks what comes back. In the middle it
 * may ask for another transport, and tells what becomes of that.
 *
 *   xio_client [NAME [MESSAGES [BYTES [TRANSPORT]]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xio.h>

enum { PATIENCE_MS = 60000 };

static void fail(const char *what)
{
    fprintf(stderr, "xio_client: %s: %s\n", what, mp_error());
    exit(EXIT_FAILURE);
}

static void send_message(xio_handle flow, int letter, size_t bytes)
{
    struct xio_buffer message;

    if (xio_getwritebuf(flow, bytes, &message, 1, PATIENCE_MS) != 1)
        fail("no room for a message");
    memset(message.data, letter, bytes);
    if (xio_commit(flow, &message) != 0)
        fail("the message was not sent");
}

/* A flow brings the message in one piece, a connection of tcp:// or unix:// perhaps in several. */
static void expect_message(xio_handle flow, int letter, size_t bytes)
{
    struct xio_buffer piece;

    do {
        if (xio_getreadbuf(flow, &piece, 1, PATIENCE_MS) != 1 || piece.bytes > bytes)
            fail("no answer");
        for (size_t at = 0; at < piece.bytes; at++)
            if (((unsigned char *)piece.data)[at] != letter)
                fail("the answer is not the message");
        bytes -= piece.bytes;
        xio_release(&piece);
    } while (bytes > 0);
}

static void tell_events(xio_handle flow)
{
    struct xio_event event;

    while (xio_getevent(flow, &event) == 1)
        printf("%s %s, epoch %u: %s\n", event.type == XIO_MOVED ? "moved to" : "not moved to",
               event.transport, event.epoch, event.reason);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "fable://echo";
    long messages = argc > 2 ? atol(argv[2]) : 1000;
    size_t bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 64;
    struct xio_options options = { .timeout_ms = PATIENCE_MS };
    xio_context *me = xio_register_name(NULL, &options);
    xio_handle flow = me ? xio_connect(me, name) : XIO_NONE;

    if (flow < 0)
        fail(name);
    for (long number = 0; number < messages; number++) {
        send_message(flow, number % 256, bytes);
        expect_message(flow, number % 256, bytes);
        if (argc > 4 && number == messages / 2 && xio_move(flow, argv[4]) != 0)
            fail("no move");
        tell_events(flow);
    }
    printf("%ld messages over %s\n", messages, xio_transport(flow));
    if (xio_shutdown(flow) != 0 || xio_close(flow) != 0 || xio_unregister_name(me) != 0)
        fail("the end");
    return EXIT_SUCCESS;
}
