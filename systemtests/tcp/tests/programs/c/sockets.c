/* Prints what a program sees of its connections when they are reset, shut down and connected: the
   output is the same on the kernel and on the stack. Usage: sockets CASE OWN PEER NETWORK */
#include "sockets.h"

static int begin_to_connect(int port) {
    struct sockaddr_in to = at(far, port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1 && errno == EINPROGRESS);
    moving = fd;
    return fd;
}

static int is(const char *state, const char *part) { return strstr(state, part) != NULL; }

static int arrive_asynchronously(const char *state) {
    if (is(state, "unanswered")) {
        struct sockaddr_in to = at(far, 9);
        /* There is no such host. */
        to.sin_addr.s_addr ^= htonl(64);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1 && errno == EINPROGRESS);
        return fd;
    }
    if (is(state, "refused")) {
        int fd = begin_to_connect(peer(REFUSE, 0));
        await(fd, POLLHUP);
        return fd;
    }
    int fd = begin_to_connect(peer(LISTEN, 0));
    peer(ACCEPT, 0);
    if (is(state, "data")) peer(SEND, 5);
    if (is(state, "reset")) peer(RESET, 0);
    await(fd, is(state, "reset") ? POLLHUP : POLLOUT);
    if (is(state, "data")) await(fd, POLLIN);
    return fd;
}

static void await_over(int fd) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    long end = now_ms() + LIMIT_MS;
    while (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state != 7) {
        CHECK(now_ms() < end);
        events_of(fd);
        usleep(50);
    }
}

/* Creates a connection in the named state. */
static int arrive(const char *state) {
    if (is(state, "async")) return arrive_asynchronously(state);
    if (strcmp(state, "listening") == 0) {
        int listener = listen_at(at(own, 0));
        set_nonblocking(listener, 1);
        return listener;
    }
    int fd = dial();
    if (is(state, "shut-write")) CHECK(shutdown(fd, SHUT_WR) == 0);
    if (is(state, "shut-read")) CHECK(shutdown(fd, SHUT_RD) == 0);
    if (is(state, "both")) CHECK(shutdown(fd, SHUT_RDWR) == 0);
    if (is(state, "data")) {
        peer(SEND, 5);
        await_bytes(fd, 5);
    }
    if (is(state, "both-ended")) peer(AWAIT_END, 0);
    if (is(state, "end")) {
        peer(SHUT, 0);
        await(fd, POLLRDHUP);
    }
    if (is(state, "both-ended")) await_over(fd);
    if (is(state, "read-end")) CHECK(recv(fd, (char[8]){0}, 8, 0) == 0);
    if (is(state, "reset")) {
        peer(RESET, 0);
        await(fd, POLLHUP);
        /* Both directions may have ended before. */
        if (is(state, "both")) await(fd, POLLERR);
    }
    set_nonblocking(fd, 1);
    return fd;
}

static ssize_t receive_parts(int fd, int flags) {
    char one[2], two[64];
    struct iovec parts[2] = {{one, 2}, {two, sizeof two}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return flags < 0 ? readv(fd, parts, 2) : recvmsg(fd, &message, flags);
}

static ssize_t send_parts(int fd) {
    struct iovec parts[2] = {{"ab", 2}, {"cde", 3}};
    return writev(fd, parts, 2);
}

static const char *const CALLS[] = {
    "events", "error", "read",     "peek",  "none",    "readv",     "all",
    "send",   "empty", "writev",   "name",  "peername", "count",    "connect",
    "shut-read", "shut-write", "shut-both", "accept", "unspec"};

/* Whether a call has begun an action whose result the next call may or may not see. */
static int begun;

static void call(int fd, const char *name) {
    if (begun) return;
    char room[64];
    int number = 0;
    socklen_t size = sizeof number;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    if (strcmp(name, "events") == 0) {
        tell_events(fd);
    } else if (strcmp(name, "error") == 0) {
        int result = getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size);
        errno = number;
        tell(name, result < 0 || number != 0 ? -1 : 0);
    } else if (strcmp(name, "read") == 0) {
        tell(name, read(fd, room, sizeof room));
    } else if (strcmp(name, "peek") == 0) {
        tell(name, recv(fd, room, sizeof room, MSG_PEEK));
    } else if (strcmp(name, "none") == 0) {
        tell(name, recv(fd, room, 0, 0));
    } else if (strcmp(name, "readv") == 0) {
        tell(name, receive_parts(fd, -1));
    } else if (strcmp(name, "all") == 0) {
        tell(name, receive_parts(fd, MSG_WAITALL));
    } else if (strcmp(name, "send") == 0) {
        tell(name, send(fd, "hello", 5, 0));
    } else if (strcmp(name, "empty") == 0) {
        tell(name, send(fd, "", 0, MSG_NOSIGNAL));
    } else if (strcmp(name, "writev") == 0) {
        tell(name, send_parts(fd));
    } else if (strcmp(name, "name") == 0) {
        int result = getsockname(fd, (struct sockaddr *)&address, &length);
        tell(name, result < 0 ? -1 : address.sin_addr.s_addr == own.sin_addr.s_addr);
    } else if (strcmp(name, "peername") == 0) {
        tell(name, getpeername(fd, (struct sockaddr *)&address, &length));
    } else if (strcmp(name, "count") == 0) {
        int result = ioctl(fd, FIONREAD, &number);
        tell(name, result < 0 ? -1 : number);
    } else if (strcmp(name, "connect") == 0) {
        address = at(far, 9);
        int result = connect(fd, (struct sockaddr *)&address, sizeof address);
        begun = result < 0 && errno == EINPROGRESS;
        tell(name, result);
    } else if (strcmp(name, "unspec") == 0) {
        address.sin_family = AF_UNSPEC;
        tell(name, connect(fd, (struct sockaddr *)&address, sizeof address));
    } else if (strcmp(name, "accept") == 0) {
        tell(name, accept(fd, NULL, NULL));
    } else {
        int how = is(name, "both") ? SHUT_RDWR : is(name, "read") ? SHUT_RD : SHUT_WR;
        tell(name, shutdown(fd, how));
    }
}

/* Whether calls of this kind send packets that change what a later call sees. */
static int disturbs(const char *name) {
    return is(name, "send") || is(name, "writev") || is(name, "shut") || is(name, "connect") ||
           is(name, "unspec");
}

/* Tests each call after each other one, in each state. */
static void orders(const char *state) {
    for (int first = 0; first < COUNT(CALLS); first++) {
        for (int second = 0; second < COUNT(CALLS); second++) {
            if (is(state, "listening") &&
                (is(CALLS[first], "shut") || is(CALLS[second], "shut") ||
                 is(CALLS[first], "unspec") || is(CALLS[second], "unspec")))
                continue;
            int fd = arrive(state), last = !is(state, "reset") && !is(state, "async-");
            begun = 0;
            printf("%s:", state);
            call(fd, CALLS[first]);
            if (!last || !disturbs(CALLS[first])) {
                call(fd, CALLS[second]);
                if (!last || !disturbs(CALLS[second])) {
                    call(fd, CALLS[first]);
                    call(fd, "events");
                }
            }
            putchar('\n');
            reset(fd);
        }
    }
}

/* Tests a reset after data, with calls that request more data than there is. */
static void errors_behind_data(void) {
    static const int FLAGS[] = {-1, 0, MSG_WAITALL, MSG_PEEK, MSG_PEEK | MSG_WAITALL};
    for (int index = 0; index < COUNT(FLAGS); index++)
        for (int accepted = 0; accepted < 2; accepted++) {
            int fd = accepted ? answer() : dial();
            peer(SEND, 5);
            peer(RESET, 0);
            await(fd, POLLHUP);
            printf("flags %d:", FLAGS[index]);
            for (int times = 0; times < 4; times++)
                tell("received", receive_parts(fd, FLAGS[index]));
            putchar('\n');
            close(fd);
        }
}

/* Tests that the call after a blocking write that a reset has interrupted reports the reset. */
static void short_writes(void) {
    static char much[64 << 20];
    for (int vector = 0; vector < 2; vector++) {
        int fd = dial();
        /* The peer resets the connection after it has read a part, while the write waits. */
        ask(RECEIVE, 1 << 20);
        ask(RESET, 0);
        struct iovec parts[2] = {{much, sizeof much / 2}, {much, sizeof much / 2}};
        ssize_t sent = vector ? writev(fd, parts, 2) : write(fd, much, sizeof much);
        answered();
        answered();
        printf("short %d:", vector);
        tell("partly", sent > 0 && sent < (ssize_t)sizeof much);
        tell("again", write(fd, "x", 1));
        tell("again", write(fd, "x", 1));
        tell("read", read(fd, much, 1));
        putchar('\n');
        close(fd);
    }
}

/* Tests data after the program's own shutdowns. */
static void data_after_shutdown(void) {
    static const int HOW[] = {SHUT_RD, SHUT_WR, SHUT_RDWR};
    for (int index = 0; index < COUNT(HOW); index++) {
        int fd = dial();
        char room[64];
        set_nonblocking(fd, 1);
        peer(SEND, 3);
        await_bytes(fd, 3);
        printf("how %d:", HOW[index]);
        tell("shutdown", shutdown(fd, HOW[index]));
        tell_events(fd);
        tell("read", read(fd, room, sizeof room));
        tell_events(fd);
        peer(SEND, 5);
        if (HOW[index] == SHUT_RDWR) {
            await(fd, POLLERR);
            tell("peer", peer(AWAIT_END, 0));
        } else {
            await_bytes(fd, 5);
        }
        tell_events(fd);
        tell("peek", recv(fd, room, sizeof room, MSG_PEEK));
        tell("read", read(fd, room, sizeof room));
        tell("read", read(fd, room, sizeof room));
        tell("write", write(fd, "x", 1));
        putchar('\n');
        close(fd);
    }
}

/* Tests data, and a reset, before the program uses its connection for the first time. */
static void early_data(void) {
    for (int look = 0; look < 4; look++) {
        int fd = begin_to_connect(peer(LISTEN, 0));
        char room[64];
        peer(ACCEPT, 0);
        peer(SEND, 5);
        peer(RESET, 0);
        await(fd, POLLHUP);
        printf("look %d:", look);
        if (look == 1) call(fd, "error");
        if (look == 2) call(fd, "peername");
        if (look == 3) call(fd, "send");
        tell("read", read(fd, room, sizeof room));
        tell("read", read(fd, room, sizeof room));
        tell("read", read(fd, room, sizeof room));
        putchar('\n');
        close(fd);
    }
}

static void async_connects(void) {
    for (int between = -1; between < COUNT(CALLS); between++) {
        int fd = begin_to_connect(peer(LISTEN, 0));
        peer(ACCEPT, 0);
        await(fd, POLLOUT);
        printf("connect:");
        if (between >= 0 && !is(CALLS[between], "shut")) call(fd, CALLS[between]);
        for (int times = 0; times < 3; times++)
            call(fd, "connect");
        putchar('\n');
        reset(fd);
    }
}

int main(int count, char **arguments) {
    static const struct test_case CASES[] = {
        {"errors-behind-data", errors_behind_data},
        {"short-writes", short_writes},
        {"data-after-shutdown", data_after_shutdown},
        {"early-data", early_data},
        {"async-connects", async_connects},
    };
    prepare(count, arguments);
    const char *name = arguments[1];
    if (!is(name, "state:")) return run_case(name, CASES, COUNT(CASES));
    orders(name + strlen("state:"));
    return 0;
}
