/*
 * Makes random calls with random arguments: whatever contexts, numbers and settings a program
 * passes, nothing crashes, hangs or leaks. Memory is always valid, as the header requires. The
 * kernel is the peer of some connections.
 *
 *   mtcp_fuzz SEED CONFIG CALLS
 */
#define _GNU_SOURCE
#include "mtcp_check.h"
#include "fuzz.h"

enum { SOCKETS = 24, PEERS = 8, PORTS = 3, EVENTS = 8, FIRST_PORT = 80 };

static mctx_t contexts[3];
static int peers[PEERS];
static unsigned long moved_bytes;

/* Returns mostly the existing context. */
static mctx_t context(void)
{
    return any(20) ? mctx : contexts[any(3)];
}

static int number(void)
{
    static const int numbers[] = { 0, 1, 2, 7, 64, 4096, -1, INT32_MIN, INT32_MAX };

    return numbers[any(sizeof numbers / sizeof *numbers)];
}

static int sockid(void)
{
    return any(15) ? (int)any(SOCKETS) : number();
}

static struct sockaddr_in address(void)
{
    static const char *const addresses[] = { STACK, STACK, STACK, KERNEL, "0.0.0.0", "192.0.2.1" };

    return at(addresses[any(6)], any(4) ? FIRST_PORT + any(PORTS) : any(UINT16_MAX));
}

/* A blocking socket could wait without a limit. */
static void add(int made)
{
    count(made);
    if (made < 0)
        return;
    if (made >= SOCKETS)
        count(mtcp_close(mctx, made));
    else
        count(mtcp_setsock_nonblock(mctx, made));
}

static void make(void)
{
    int ends[2], made;

    switch (any(6)) {
    case 0:
        count(made = mtcp_pipe(context(), ends));
        for (int end = 0; made == 0 && end < 2; end++)
            if (ends[end] >= SOCKETS)
                count(mtcp_close(mctx, ends[end]));
        break;
    case 1:
        count(made = any(2) ? mtcp_epoll_create(context(), number())
                            : mtcp_epoll_create1(context(), any(8) ? 0 : number()));
        if (made >= SOCKETS)
            count(mtcp_close(mctx, made));
        break;
    default:
        add(mtcp_socket(context(), any(20) ? AF_INET : number(), any(20) ? SOCK_STREAM : number(),
                        any(20) ? 0 : number()));
    }
}

static void name(void)
{
    struct sockaddr_in address_in = address(), told;
    struct sockaddr *any_address = (struct sockaddr *)&address_in, *to = (struct sockaddr *)&told;
    socklen_t size = any(20) ? sizeof address_in : any(sizeof address_in + 1);

    switch (any(6)) {
    case 0:
        count(mtcp_bind(context(), sockid(), any_address, size));
        break;
    case 1:
        count(mtcp_listen(context(), sockid(), number()));
        break;
    case 2:
        add(mtcp_accept(context(), sockid(), any(2) ? to : NULL, &size));
        break;
    case 3:
        count(mtcp_connect(context(), sockid(), any_address, size));
        break;
    case 4:
        count(mtcp_getsockname(context(), sockid(), to, &size));
        break;
    default:
        count(mtcp_getpeername(context(), sockid(), to, &size));
    }
}

static void transfer(void)
{
    static char room[20000];
    struct iovec parts[] = { { room, any(100) }, { NULL, 0 }, { room + 100, any(5000) } };
    size_t bytes = any(3) ? any(2000) : any(sizeof room);
    ssize_t moved;

    switch (any(5)) {
    case 0:
        moved = mtcp_read(context(), sockid(), room, bytes);
        break;
    case 1:
        moved = mtcp_recv(context(), sockid(), room, bytes, any(4) ? MSG_PEEK : number());
        break;
    case 2:
        moved = mtcp_readv(context(), sockid(), parts, any(5) - 1);
        break;
    case 3:
        moved = mtcp_write(context(), sockid(), room, bytes);
        break;
    default:
        moved = mtcp_writev(context(), sockid(), parts, any(5) - 1);
    }
    count(moved);
    moved_bytes += moved > 0 ? moved : 0;
}

static void ask(void)
{
    static const int options[] = { 2, 4, 7, 8, 9, 18, 20, 21, 30, 1, 5, 6, 11, 12, 13 };
    char value[200] = { (char)any(256), (char)any(4) };
    int level = any(2) ? SOL_SOCKET : IPPROTO_TCP, option = options[any(15)];
    socklen_t size = any(sizeof value);

    switch (any(3)) {
    case 0:
        count(mtcp_getsockopt(context(), sockid(), level, option, value, &size));
        break;
    case 1:
        /* SO_LINGER would block. */
        if (level != SOL_SOCKET || option != SO_LINGER)
            count(mtcp_setsockopt(context(), sockid(), level, option, value, size));
        break;
    default:
        count(mtcp_socket_ioctl(context(), sockid(), any(2) ? 0x541b : 0x5411, value));
    }
}

static void wait_for(void)
{
    struct mtcp_epoll_event events[EVENTS] = { { .events = any(UINT32_MAX) } };
    int most = any(5) ? EVENTS : (int)any(EVENTS + 1) - 1;

    if (any(2))
        count(mtcp_epoll_ctl(context(), sockid(), any(4), sockid(), events));
    else
        count(mtcp_epoll_wait(context(), sockid(), events, most, any(2)));
}

static void end(void)
{
    switch (any(3)) {
    case 0:
        count(mtcp_close(context(), sockid()));
        break;
    case 1:
        count(mtcp_abort(context(), sockid()));
        break;
    default:
        count(mtcp_shutdown(context(), sockid(), any(10) ? (int)any(3) : number()));
    }
}

/* Acts as the kernel at the other ends. */
static void play_the_peer(void)
{
    struct sockaddr_in to = at(STACK, FIRST_PORT + any(PORTS));
    static char room[8000];
    int *peer = &peers[any(PEERS)];

    switch (any(4)) {
    case 0:
        if (*peer >= 0)
            close(*peer);
        *peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        CHECK(*peer >= 0);
        (void)!connect(*peer, (struct sockaddr *)&to, sizeof to);
        break;
    case 1:
        (void)!send(*peer, room, any(sizeof room), MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
    case 2:
        (void)!recv(*peer, room, any(sizeof room), MSG_DONTWAIT);
        break;
    default:
        shutdown(*peer, any(3));
    }
}

int main(int argc, char **argv)
{
    static void (*const kinds[])(void) = {
        make, name, name, transfer, transfer, ask, wait_for, wait_for, end, play_the_peer,
    };
    unsigned long calls;

    CHECK(argc == 4);
    state = strtoull(argv[1], NULL, 10);
    calls = strtoul(argv[3], NULL, 10);
    memset(peers, -1, sizeof peers);
    start(argv[2], 1);
    contexts[1] = (mctx_t)&state;
    contexts[2] = (mctx_t)((uintptr_t)mctx + 1);
    while (done < calls)
        kinds[any(sizeof kinds / sizeof *kinds)]();
    for (int at = 0; at < PEERS; at++)
        if (peers[at] >= 0)
            close(peers[at]);
    stop();
    printf("%lu calls, %lu refused, %lu bytes: all is well\n", done, refused, moved_bytes);
    return EXIT_SUCCESS;
}
