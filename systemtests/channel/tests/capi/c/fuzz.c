/*
 * Makes random calls with random arguments: whatever numbers a program passes, nothing crashes,
 * hangs, panics or leaks a descriptor, and a handle that no channel has any more is refused. Memory
 * is always valid, as the header requires.
 *
 *   fuzz SEED CALLS
 *
 * It is also the fuzz target `handles`, whose input bytes choose the calls.
 */
#define _GNU_SOURCE
#include "check.h"
#include "fuzz.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>

enum { CHANNELS = 3, HANDLES = 1024, FILES = 48, BUFFERS = 16, ARENA = 1 << 16, EVENTS = 32 };

/* Most calls for one input of a fuzzer; more show nothing new. */
enum { INPUT_CALLS = 200 };

/* A handle that a channel has given. */
struct known {
    mp_handle handle;
    mp_channel *channel;
    /* The number of its file, which is this program's again without the handle; -1 for others. */
    int file;
    enum { LIVE, CLOSING, ENDED } life;
};

static char arena[ARENA];
static mp_channel *channels[CHANNELS];
static struct known handles[HANDLES];
static int handle_count, files[FILES];
/* The channel with which a file is registered. */
static mp_channel *owner_of[FILES];
static int64_t buffers[BUFFERS];
static int known[4096];
static struct sockaddr_in address;

static int number(void)
{
    static const int numbers[] = { 0, 0, 0, 1, 1, 2, 3, -1, 7, 1024, 1025, INT32_MAX, INT32_MIN };

    return numbers[any(sizeof numbers / sizeof *numbers)];
}

static size_t size(void)
{
    return any(8) ? any(ARENA / 2) : any(2) ? 0 : SIZE_MAX - any(9);
}

/* Returns memory with room for that many bytes, or NULL; larger sizes are refused before use. */
static char *memory(void)
{
    return any(10) ? arena + any(ARENA / 2) : NULL;
}

static mp_channel *channel(void)
{
    if (any(20))
        return channels[any(CHANNELS)];
    return any(2) ? NULL : (mp_channel *)(arena + any(ARENA));
}

/* Returns one of the newest handles, or one that differs from it in a bit, or any number. */
static mp_handle handle(void)
{
    int from = handle_count > 64 ? handle_count - 64 : 0;

    if (any(20) && handle_count)
        return handles[from + (int)any((uint32_t)(handle_count - from))].handle;
    if (any(2) && handle_count)
        return handles[handle_count - 1].handle ^ (mp_handle)(UINT64_C(1) << any(64));
    return (mp_handle)((uint64_t)any(UINT32_MAX) << 32 | any(UINT32_MAX));
}

static struct known *known_as(mp_handle handle)
{
    for (int at = 0; at < handle_count; at++)
        if (handles[at].handle == handle)
            return &handles[at];
    return NULL;
}

/* Counts a call on a handle, which only a handle that a channel has may take. */
static void count_on(mp_handle on, long result)
{
    struct known *known = known_as(on);

    count(result);
    CHECK(result < 0 || (known && known->life != ENDED));
}

static int64_t buffer(void)
{
    return any(10) ? buffers[any(BUFFERS)] : number();
}

static void remember(int fd)
{
    if (fd >= 0 && fd < 4096)
        known[fd] = 1;
}

static void open_file(int at)
{
    int fds[2];

    if (files[at] >= 0 || at + 1 >= FILES || files[at + 1] >= 0)
        return;
    if (any(4) == 0)
        CHECK(pipe2(fds, O_CLOEXEC) == 0);
    else if (any(5) == 0)
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds) == 0);
    else
        pair(fds);
    if (any(6) == 0) {
        close(fds[0]);
        fds[0] = listening(&address);
    } else if (any(6) == 0) {
        close(fds[0]);
        fds[0] = memfd_create("fuzz", MFD_CLOEXEC);
    } else if (any(6) == 0 && address.sin_port) {
        close(fds[0]);
        fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)!connect(fds[0], (struct sockaddr *)&address, sizeof address);
    }
    for (int end = 0; end < 2; end++) {
        files[at + end] = fds[end];
        remember(fds[end]);
    }
}

static void close_file(int at)
{
    if (files[at] >= 0 && !owner_of[at]) {
        close(files[at]);
        files[at] = -1;
    }
}

static void keep_handle(mp_channel *from, mp_handle handle, int file, void *cookie)
{
    CHECK(handle > 0 && !known_as(handle) && handle_count < HANDLES);
    CHECK(mp_cookie(handle) == cookie);
    handles[handle_count++] = (struct known){ handle, from, file, LIVE };
}

static void register_something(void)
{
    int at = (int)any(FILES);
    cpu_set_t mask;
    mp_channel *to;
    mp_handle handle;
    void *cookie = arena + any(ARENA);

    open_file(at);
    CHECK(mp_register(channel(), MP_LWSOCKET_FIRST + 99999, NULL, NULL) < 0);
    CHECK(mp_register(channel(), -1 - (int)any(99), NULL, NULL) < 0);
    CPU_ZERO(&mask);
    CPU_SET(any(4), &mask);
    /* A second registration would let two handles close one descriptor, which this program
     * cannot handle. */
    if (owner_of[at] || handle_count == HANDLES)
        return;
    to = channel();
    handle = mp_register(to, files[at], cookie, any(8) ? NULL : &mask);
    count(handle < 0 ? -1 : 0);
    if (handle >= 0) {
        owner_of[at] = to;
        keep_handle(to, handle, at, cookie);
    }
}

/* A descriptor that was registered and ended with mp_close() may have another owner by now. */
static void let_go(mp_handle handle, int closes)
{
    struct known *known = known_as(handle);
    int (*end)(mp_handle) = !closes ? mp_unregister : any(2) ? mp_close : mp_abort;
    int result = end(handle);

    count_on(handle, result);
    if (result < 0)
        return;
    known->life = closes ? CLOSING : ENDED;
    if (known->file < 0)
        return;
    if (closes)
        files[known->file] = -1;
    owner_of[known->file] = NULL;
    /* mp_abort() succeeds once more while the close is in progress. */
    known->file = -1;
}

static void dispatch(void)
{
    struct mp_event events[EVENTS];
    mp_channel *from = channel();
    int limit = any(4) ? EVENTS : number();
    int many = mp_dispatch_batch(from, events, limit > EVENTS ? EVENTS : limit, (int)any(2));

    count(many);
    CHECK(many <= EVENTS);
    for (int at = 0; at < many; at++) {
        CHECK(events[at].cmd >= MP_ACCEPT && events[at].cmd <= MP_FSYNC);
        CHECK(events[at].error >= 0 && events[at].size <= ARENA);
        if (events[at].buffer >= 0)
            buffers[any(BUFFERS)] = events[at].buffer;
        if (events[at].fd >= 0 && handle_count < HANDLES && any(4)) {
            mp_handle handle = mp_register(from, events[at].fd, NULL, NULL);

            if (handle >= 0)
                keep_handle(from, handle, -1, NULL);
        }
        remember(events[at].fd);
    }
}

/* A fuzzer has only the epoll driver, which is quicker to create. */
static void create(int at)
{
    struct mp_options options = { .driver = input ? 2 : any(3), .max_requests = any(2) ? 8 : 0 };

    CHECK((channels[at] = mp_create(input || any(10) ? &options : NULL)));
}

static void destroy(int at)
{
    CHECK(mp_destroy(channels[at]) == 0);
    CHECK(mp_destroy(channels[at]) < 0);
    for (int file = 0; file < FILES; file++)
        if (owner_of[file] == channels[at])
            owner_of[file] = NULL;
    for (int known = 0; known < handle_count; known++)
        if (handles[known].channel == channels[at])
            handles[known].life = ENDED;
}

static void replace_channel(void)
{
    int at = (int)any(CHANNELS);

    if (any(20))
        return;
    destroy(at);
    create(at);
}

static void release(void)
{
    mp_channel *from = channel();
    int64_t held = buffer();
    int result = mp_release(from, held);

    count(result);
    CHECK(result < 0 || mp_release(from, held) < 0);
}

static void sockets(void)
{
    socklen_t room = any(2) ? 128 : 4;
    int value = number();
    mp_handle on = handle();

    switch (any(5)) {
    case 0:
        value = mp_to_fd(on);
        remember(value);
        count_on(on, value);
        if (value >= 0)
            close(value);
        break;
    case 1: count_on(on, mp_sockopt(on, SOL_SOCKET, SO_RCVBUF, any(9) ? &value : NULL, 4)); break;
    case 2:
        count_on(on, mp_sockopt_get(on, SOL_SOCKET, SO_TYPE, arena, any(9) ? &room : NULL));
        break;
    case 3: count_on(on, mp_peer_address(on, (struct sockaddr *)arena, &room)); break;
    case 4:
        count_on(on, mp_connect(on, (struct sockaddr *)&address, any(2) ? sizeof address : 3));
        break;
    }
}

/* Receives a message without room for descriptors, because this program would not close them. */
static void message(mp_handle on)
{
    static struct msghdr messages[16];
    static char control[64];
    struct iovec vector[2] = { { memory(), any(99) }, { arena, any(99) } };
    struct msghdr *chosen = &messages[any(16)];

    memset(chosen, 0, sizeof *chosen);
    chosen->msg_iov = any(20) ? vector : NULL;
    chosen->msg_iovlen = any(9) ? any(3) : 1025;
    chosen->msg_control = any(9) ? control : NULL;
    chosen->msg_controllen = any(2) ? 0 : sizeof control;
    if (any(2))
        count_on(on, mp_recvmsg(on, any(20) ? chosen : NULL));
    else
        count_on(on, mp_sendmsg(on, any(20) ? chosen : NULL));
}

static void request(void)
{
    struct iovec vector[3] = { { memory(), any(99) }, { arena, any(99) }, { arena + 99, any(9) } };
    mp_handle on = handle();
    int vectors = any(4) ? 3 : number();

    vectors = vectors > 3 && vectors < 1025 ? 3 : vectors;
    switch (any(24)) {
    case 0: count_on(on, mp_accept(on, number(), any(9) ? (int)any(4) : number())); break;
    case 1: count_on(on, mp_read(on, memory(), size())); break;
    case 2: count_on(on, mp_write(on, memory(), size())); break;
    case 3: count_on(on, mp_readv(on, vector, vectors)); break;
    case 4: count_on(on, mp_writev(on, vector, vectors)); break;
    case 5: count_on(on, mp_pread(on, memory(), size(), any(3) ? any(99) : UINT64_MAX)); break;
    case 6: count_on(on, mp_pwrite(on, memory(), size(), any(99))); break;
    case 7: count_on(on, mp_recv(on, any(9) ? (int)any(2) : number())); break;
    case 8: count_on(on, mp_write_buffer(on, buffer(), any(3), any(9) ? any(9) : size())); break;
    case 9: count_on(on, mp_poll(on, any(9) ? POLLIN : (uint32_t)number(), (int)any(2))); break;
    case 10: count_on(on, mp_cancel(on, any(9) ? (int)any(4) : number())); break;
    case 11: count_on(on, mp_disconnect(on)); break;
    case 12: count_on(on, mp_shutdown(on, (int)any(4))); break;
    case 13: count_on(on, mp_request_peer_address(on)); break;
    case 14: count_on(on, mp_set_timeout(on, any(9) ? (int)any(4) : number(), number())); break;
    case 15: count_on(on, mp_timer_set(on, any(2) ? any(9999) : UINT64_MAX, any(9999))); break;
    case 16: CHECK(mp_queued(on) >= -1); break;
    case 17: count_on(on, mp_peek(on, memory(), size())); break;
    case 18: count_on(on, mp_write_more(on, memory(), size())); break;
    case 19: count_on(on, mp_send_file(on, handle(), any(9) ? any(99) : UINT64_MAX, size())); break;
    case 20: message(on); break;
    case 21: count_on(on, mp_recvfrom(on, any(9) ? (int)any(2) : number())); break;
    case 22:
        count_on(on, mp_sendto(on, memory(), size(), any(9) ? (struct sockaddr *)&address : NULL,
                        any(9) ? sizeof address : any(9)));
        break;
    case 23: count_on(on, any(2) ? mp_fsync(on) : mp_fdatasync(on)); break;
    }
}

static void step(void)
{
    struct mp_counters counters;
    mp_handle other = handle();
    mp_channel *from;

    switch (any(13)) {
    case 0: register_something(); break;
    case 1: let_go(handle(), (int)any(2)); break;
    case 2: case 3: dispatch(); break;
    case 4: release(); break;
    case 5: sockets(); break;
    case 6: replace_channel(); break;
    case 7: close_file((int)any(FILES)); break;
    case 8:
        count(mp_statistics(channel(), any(9) ? &counters : NULL, any(sizeof counters)));
        count(mp_flush(channel()));
        count_on(other, mp_set_cookie(other, mp_cookie(handle())));
        CHECK(strlen(mp_error()) < 1000);
        break;
    case 9:
        if (handle_count == HANDLES)
            break;
        from = channel();
        other = any(2) ? mp_timer(from, arena)
                       : mp_connect_to(from, (struct sockaddr *)&address,
                                       any(9) ? sizeof address : any(9), arena);
        count(other < 0 ? -1 : 0);
        if (other >= 0)
            keep_handle(from, other, -1, arena);
        break;
    default: request(); break;
    }
}

static void play(unsigned long calls)
{
    int before = open_files();

    handle_count = 0;
    memset(buffers, 0, sizeof buffers);
    memset(known, 0, sizeof known);
    memset(&address, 0, sizeof address);
    for (int at = 0; at < FILES; at++) {
        files[at] = -1;
        owner_of[at] = NULL;
    }
    for (int at = 0; at < CHANNELS; at++)
        create(at);
    for (unsigned long at = 0; at < calls && !(input && input_bytes == 0); at++)
        step();
    for (int at = 0; at < CHANNELS; at++)
        destroy(at);
    for (int at = 0; at < handle_count; at++)
        CHECK(mp_close(handles[at].handle) < 0);
    for (int fd = 3; fd < 4096; fd++)
        if (known[fd])
            close(fd);
    CHECK(open_files() == before);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count_of_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count_of_bytes)
{
    input = bytes;
    input_bytes = count_of_bytes;
    play(count_of_bytes ? INPUT_CALLS : 0);
    return 0;
}

#ifndef LLVMFuzzerTestOneInput
int main(int argc, char **argv)
{
    /* The readers of some pipes are closed. */
    signal(SIGPIPE, SIG_IGN);
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    play(argc > 2 ? strtoul(argv[2], NULL, 10) : 10000);
    printf("fuzz: %lu calls, %lu refused\n", done, refused);
    return 0;
}
#endif
