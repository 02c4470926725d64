/*
 * Makes random calls with random arguments: whatever handles, tokens and structs a program passes,
 * nothing crashes, hangs or leaks, and every byte arrives once and in order. Memory is always
 * valid, as the header requires.
 *
 *   xio_fuzz SEED CALLS [named]
 */
#define _GNU_SOURCE
#include "xio_check.h"
#include "fuzz.h"

enum { PAIRS = 4, HANDLES = 2 * PAIRS, BUFFERS = 64, BATCH = 8 };

static struct server server;
static xio_handle handles[HANDLES];
/* Bytes that were committed on the flow, and that its other end has obtained. */
static uint8_t sent[HANDLES], obtained[HANDLES];
static struct xio_buffer buffers[BUFFERS];

static xio_handle handle(void)
{
    if (any(10))
        return handles[any(HANDLES)];
    return any(2) ? server.listener : (xio_handle)((uint64_t)any(UINT32_MAX) << 32 | any(99));
}

static int number(void)
{
    static const int numbers[] = { 0, 1, 1, 2, BATCH, -1, INT32_MIN };

    return numbers[any(sizeof numbers / sizeof *numbers)];
}

static int place_of(xio_handle flow)
{
    for (int at = 0; at < HANDLES; at++)
        if (handles[at] == flow)
            return at;
    return -1;
}

/* Forgets buffers of a previous flow of the entry, which must be valid nevertheless. */
static void let_go(struct xio_buffer *buffer)
{
    if (buffer->data)
        count(xio_release(buffer));
    *buffer = (struct xio_buffer){ .handle = XIO_NONE };
}

static void replace_pair(void)
{
    int at = (int)any(PAIRS) * 2;

    if (any(20))
        return;
    for (int end = at; end < at + 2; end++)
        if (handles[end] != XIO_NONE)
            CHECK(xio_close(handles[end]) == 0);
    CHECK((handles[at] = xio_connect(server.context, server.name)) > 0);
    CHECK((handles[at + 1] = xio_accept(server.listener, PATIENCE_MS)) > 0);
    sent[at] = sent[at + 1] = obtained[at] = obtained[at + 1] = 0;
}

static void look(const struct xio_buffer *buffer)
{
    int at = place_of(buffer->handle);
    const uint8_t *bytes = buffer->data;

    CHECK(at >= 0);
    for (size_t byte = 0; byte < buffer->bytes; byte++)
        CHECK(bytes[byte] == obtained[at]++);
}

static void obtain(void)
{
    struct xio_buffer some[BATCH];
    int limit = number(), result = xio_getreadbuf(handle(), some, limit, (int)any(2));

    count(result);
    CHECK(result <= limit || result == -1);
    for (int at = 0; at < result; at++) {
        look(&some[at]);
        let_go(&some[at]);
    }
}

/* Fills buffers in the order of the bytes, so only one buffer is open at a time. */
static void transmit(void)
{
    struct xio_buffer buffer, copy;
    xio_handle flow = handle();
    int at = place_of(flow), result = xio_getwritebuf(flow, any(300), &buffer, 1, 0);
    size_t bytes;

    count(result);
    if (result != 1)
        return;
    bytes = any((uint32_t)buffer.bytes + 1);
    for (size_t byte = 0; byte < bytes; byte++)
        ((uint8_t *)buffer.data)[byte] = (uint8_t)(sent[at] + byte);
    buffer.bytes = bytes;
    copy = buffer;
    if (any(5) == 0) {
        count(xio_release(&buffer));
    } else {
        result = xio_commit(flow, &buffer);
        count(result);
        if (result == 0)
            sent[at] += (uint8_t)bytes;
    }
    CHECK(xio_commit(flow, &copy) == -1 && errno == ESTALE);
}

/* Obtains room and keeps it, even after its flow is closed. */
static void hoard(void)
{
    int at = (int)any(BUFFERS), result;

    let_go(&buffers[at]);
    result = xio_getwritebuf(handle(), any(9) ? any(100) : XIO_ANY, &buffers[at], 1, 0);
    count(result);
    if (result != 1)
        buffers[at] = (struct xio_buffer){ .handle = XIO_NONE };
}

static void misuse(void)
{
    struct xio_buffer wrong = buffers[any(BUFFERS)];

    switch (any(5)) {
    case 0: wrong.token += any(3); break;
    case 1: wrong.handle = handle(); break;
    case 2: wrong.data = &wrong; break;
    case 3: wrong.bytes = SIZE_MAX; break;
    default: memset(&wrong, (int)any(256), sizeof wrong);
    }
    if (any(2) && wrong.data == &wrong)
        count(xio_release(&wrong));
    else if (wrong.bytes > 1 << 24)
        count(xio_commit(handle(), &wrong));
}

static void ask(void)
{
    struct xio_poll polls[3] = { { .handle = handle(), .events = POLLIN },
                                 { .handle = handle(), .events = (int16_t)any(9) },
                                 { .handle = XIO_NONE, .events = POLLIN } };
    static const char *transports[] = { "mempipe-futex", "unix", "nothing", "" };
    struct xio_peer_info peer;
    struct xio_counters counters;
    struct xio_event event;

    switch (any(10)) {
    case 0: count(xpoll(NULL, 0, any(9) ? polls : NULL, any(4), (int)any(2))); break;
    case 1: count(xio_peer(handle(), any(9) ? &peer : NULL)); break;
    case 2: count(xio_statistics(handle(), &counters, any(sizeof counters + 1))); break;
    case 3: count(xio_getevent(handle(), any(9) ? &event : NULL)); break;
    case 4: count(xio_epoch(handle()) < 0 ? -1 : 0); break;
    case 5: count(xio_transport(handle()) ? 0 : -1); break;
    case 6: count(xio_move(handle(), any(9) ? transports[any(4)] : NULL)); break;
    case 7: count(xio_flush(handle())); break;
    case 8: count(xio_batch(handle(), number())); break;
    case 9: count(xio_accept(any(9) ? handle() : XIO_NONE, 0) < 0 ? -1 : 0); break;
    }
}

static void step(void)
{
    switch (any(8)) {
    case 0: replace_pair(); break;
    case 1: hoard(); break;
    case 2: misuse(); break;
    case 3: ask(); break;
    case 4: case 5: transmit(); break;
    case 6: case 7: obtain(); break;
    }
}

int main(int argc, char **argv)
{
    unsigned long calls = argc > 2 ? strtoul(argv[2], NULL, 10) : 10000;
    int before;

    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    is_named = argc > 3;
    before = descriptors_kept();
    server = serve_somewhere();
    for (int at = 0; at < HANDLES; at += 2) {
        CHECK((handles[at] = xio_connect(server.context, server.name)) > 0);
        CHECK((handles[at + 1] = xio_accept(server.listener, PATIENCE_MS)) > 0);
    }
    for (int at = 0; at < BUFFERS; at++)
        buffers[at].handle = XIO_NONE;
    for (unsigned long at = 0; at < calls; at++)
        step();
    for (int at = 0; at < BUFFERS; at++)
        let_go(&buffers[at]);
    for (int at = 0; at < HANDLES; at++)
        CHECK(xio_close(handles[at]) == 0);
    end_server(server);
    expect_descriptors(before);
    printf("xio_fuzz: %lu calls, %lu refused\n", done, refused);
    return 0;
}
