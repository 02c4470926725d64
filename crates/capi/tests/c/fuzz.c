/*
 * Makes random calls with random arguments: whatever numbers a program passes, nothing crashes,
 * hangs, panics or leaks a descriptor. Memory is always valid, as the header requires.
 *
 *   fuzz SEED CALLS
 */
#define _GNU_SOURCE
#include "check.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>

enum { CHANNELS = 3, HANDLES = 64, FILES = 48, BUFFERS = 16, ARENA = 1 << 16, EVENTS = 32 };

static uint64_t state;
static char arena[ARENA];
static mp_channel *channels[CHANNELS];
static mp_handle handles[HANDLES];
static int fd_of[HANDLES], files[FILES];
/* The channel with which a file is registered. */
static mp_channel *owner_of[FILES];
static int64_t buffers[BUFFERS];
static int known[4096];
static struct sockaddr_in address;
static unsigned long done, refused;

static uint32_t any(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

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

static mp_handle handle(void)
{
    if (any(20))
        return handles[any(HANDLES)];
    return (mp_handle)((uint64_t)any(UINT32_MAX) << 32 | any(UINT32_MAX));
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

static void count(int result)
{
    done++;
    refused += result < 0;
    CHECK(result >= 0 || errno != ENOTRECOVERABLE);
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

static void keep_handle(mp_handle handle, int file)
{
    int at = (int)any(HANDLES);

    /* A handle that is overwritten stays registered until its channel ends. */
    handles[at] = handle;
    fd_of[at] = file;
}

static void register_something(void)
{
    int at = (int)any(FILES);
    cpu_set_t mask;
    mp_channel *to;
    mp_handle handle;

    open_file(at);
    CHECK(mp_register(channel(), MP_LWSOCKET_FIRST + 99999, NULL, NULL) < 0);
    CHECK(mp_register(channel(), -1 - (int)any(99), NULL, NULL) < 0);
    CPU_ZERO(&mask);
    CPU_SET(any(4), &mask);
    /* A second registration would let two handles close one descriptor, which this program
     * cannot handle. */
    if (owner_of[at])
        return;
    to = channel();
    handle = mp_register(to, files[at], arena, any(8) ? NULL : &mask);
    count(handle < 0 ? -1 : 0);
    if (handle >= 0) {
        owner_of[at] = to;
        keep_handle(handle, at);
    }
}

/* A descriptor that was registered and ended with mp_close() may have another owner by now. */
static void let_go(int at, int closes)
{
    mp_handle handle = handles[at];
    int (*end)(mp_handle) = !closes ? mp_unregister : any(2) ? mp_close : mp_abort;
    int result = end(handle);

    count(result);
    if (result < 0 || fd_of[at] < 0)
        return;
    if (closes)
        files[fd_of[at]] = -1;
    owner_of[fd_of[at]] = NULL;
    /* mp_abort() succeeds once more while the close is in progress. */
    fd_of[at] = -1;
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
        if (events[at].fd >= 0 && any(4)) {
            mp_handle handle = mp_register(from, events[at].fd, NULL, NULL);

            if (handle >= 0)
                keep_handle(handle, -1);
        }
        remember(events[at].fd);
    }
}

static void replace_channel(void)
{
    struct mp_options options = { .driver = any(3), .max_requests = any(2) ? 8 : 0 };
    int at = (int)any(CHANNELS);

    if (any(20))
        return;
    count(mp_destroy(channels[at]));
    for (int file = 0; file < FILES; file++)
        if (owner_of[file] == channels[at])
            owner_of[file] = NULL;
    channels[at] = mp_create(any(10) ? &options : NULL);
    CHECK(channels[at]);
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
        count(value < 0 ? -1 : 0);
        if (value >= 0)
            close(value);
        break;
    case 1: count(mp_sockopt(on, SOL_SOCKET, SO_RCVBUF, any(9) ? &value : NULL, 4)); break;
    case 2: count(mp_sockopt_get(on, SOL_SOCKET, SO_TYPE, arena, any(9) ? &room : NULL)); break;
    case 3: count(mp_peer_address(on, (struct sockaddr *)arena, &room)); break;
    case 4: count(mp_connect(on, (struct sockaddr *)&address, any(2) ? sizeof address : 3)); break;
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
        count(mp_recvmsg(on, any(20) ? chosen : NULL));
    else
        count(mp_sendmsg(on, any(20) ? chosen : NULL));
}

static void request(void)
{
    struct iovec vector[3] = { { memory(), any(99) }, { arena, any(99) }, { arena + 99, any(9) } };
    mp_handle on = handle();
    int vectors = any(4) ? 3 : number();

    vectors = vectors > 3 && vectors < 1025 ? 3 : vectors;
    switch (any(24)) {
    case 0: count(mp_accept(on, number(), any(9) ? (int)any(4) : number())); break;
    case 1: count(mp_read(on, memory(), size())); break;
    case 2: count(mp_write(on, memory(), size())); break;
    case 3: count(mp_readv(on, vector, vectors)); break;
    case 4: count(mp_writev(on, vector, vectors)); break;
    case 5: count(mp_pread(on, memory(), size(), any(3) ? any(99) : UINT64_MAX)); break;
    case 6: count(mp_pwrite(on, memory(), size(), any(99))); break;
    case 7: count(mp_recv(on, any(9) ? (int)any(2) : number())); break;
    case 8: count(mp_write_buffer(on, buffer(), any(3), any(9) ? any(9) : size())); break;
    case 9: count(mp_poll(on, any(9) ? POLLIN : (uint32_t)number(), (int)any(2))); break;
    case 10: count(mp_cancel(on, any(9) ? (int)any(4) : number())); break;
    case 11: count(mp_disconnect(on)); break;
    case 12: count(mp_shutdown(on, (int)any(4))); break;
    case 13: count(mp_request_peer_address(on)); break;
    case 14: count(mp_set_timeout(on, any(9) ? (int)any(4) : number(), number())); break;
    case 15: count(mp_timer_set(on, any(2) ? any(9999) : UINT64_MAX, any(9999))); break;
    case 16: CHECK(mp_queued(on) >= -1); break;
    case 17: count(mp_peek(on, memory(), size())); break;
    case 18: count(mp_write_more(on, memory(), size())); break;
    case 19: count(mp_send_file(on, handle(), any(9) ? any(99) : UINT64_MAX, size())); break;
    case 20: message(on); break;
    case 21: count(mp_recvfrom(on, any(9) ? (int)any(2) : number())); break;
    case 22:
        count(mp_sendto(on, memory(), size(), any(9) ? (struct sockaddr *)&address : NULL,
                        any(9) ? sizeof address : any(9)));
        break;
    case 23: count(any(2) ? mp_fsync(on) : mp_fdatasync(on)); break;
    }
}

static void step(void)
{
    struct mp_counters counters;
    mp_handle other;

    switch (any(13)) {
    case 0: register_something(); break;
    case 1: let_go((int)any(HANDLES), (int)any(2)); break;
    case 2: case 3: dispatch(); break;
    case 4: count(mp_release(channel(), buffer())); break;
    case 5: sockets(); break;
    case 6: replace_channel(); break;
    case 7: close_file((int)any(FILES)); break;
    case 8:
        count(mp_statistics(channel(), any(9) ? &counters : NULL, any(sizeof counters)));
        count(mp_flush(channel()));
        count(mp_set_cookie(handle(), mp_cookie(handle())));
        CHECK(strlen(mp_error()) < 1000);
        break;
    case 9:
        other = any(2) ? mp_timer(channel(), arena)
                       : mp_connect_to(channel(), (struct sockaddr *)&address,
                                       any(9) ? sizeof address : any(9), arena);
        count(other < 0 ? -1 : 0);
        if (other >= 0)
            keep_handle(other, -1);
        break;
    default: request(); break;
    }
}

int main(int argc, char **argv)
{
    unsigned long calls = argc > 2 ? strtoul(argv[2], NULL, 10) : 10000;
    int before = open_files();

    /* The readers of some pipes are closed. */
    signal(SIGPIPE, SIG_IGN);
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (int at = 0; at < FILES; at++)
        files[at] = -1;
    for (int at = 0; at < CHANNELS; at++)
        CHECK((channels[at] = mp_create(NULL)));
    for (unsigned long at = 0; at < calls; at++)
        step();
    for (int at = 0; at < CHANNELS; at++)
        CHECK(mp_destroy(channels[at]) == 0);
    for (int fd = 3; fd < 4096; fd++)
        if (known[fd])
            close(fd);
    CHECK(open_files() == before);
    printf("fuzz: %lu calls, %lu refused\n", done, refused);
    return 0;
}
