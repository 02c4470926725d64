/* Tests threads, waiting calls, and the events that end their wait. See like.h. */
#include "like.h"

/* Waits until a thread sleeps in the kernel, and a little longer. */
static void await_asleep(pid_t thread) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    for (long end = now_ms() + LONG_MS; now_ms() < end; pause_ms(5)) {
        FILE *file = fopen(path, "r");
        CHECK(file && fgets(text, sizeof text, file));
        fclose(file);
        char *state = strrchr(text, ')');
        if (state && state[2] == 'S') break;
    }
    pause_ms(50);
}

struct call {
    int fd;
    ssize_t (*make)(int fd, char *room, size_t size);
    pthread_t thread;
    atomic_int tid;
    ssize_t result;
    int error;
    char room[64];
};

static void *make_call(void *argument) {
    struct call *call = argument;
    call->tid = gettid();
    call->result = call->make(call->fd, call->room, sizeof call->room - 1);
    call->error = errno;
    return NULL;
}

static void start_call(struct call *call) {
    CHECK(pthread_create(&call->thread, NULL, make_call, call) == 0);
    while (!call->tid) sched_yield();
    await_asleep(call->tid);
}

static void show_call(const char *what, struct call *call) {
    CHECK(pthread_join(call->thread, NULL) == 0);
    if (call->result > 0) printf("%s: '%s'\n", what, call->room);
    else if (call->result == 0) printf("%s: the end\n", what);
    else printf("%s: %s\n", what, strerrorname_np(call->error));
}

static ssize_t call_read(int fd, char *room, size_t size) {
    return read(fd, room, size);
}
static ssize_t call_recv_all(int fd, char *room, size_t size) {
    (void)size;
    return recv(fd, room, 5, MSG_WAITALL);
}
static ssize_t call_readv(int fd, char *room, size_t size) {
    struct iovec parts[2] = {{room, 2}, {room + 2, size - 2}};
    return readv(fd, parts, 2);
}
static ssize_t call_recvmsg(int fd, char *room, size_t size) {
    struct iovec part = {room, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(fd, &message, 0);
}

/* Tests a thread that sleeps on a connection while another one closes the number and accepts
   another connection, which gets the same number. */
static void reused(ssize_t (*make)(int, char *, size_t)) {
    int port = 0, from = open_listener(&port);
    struct pair first = accept_pair(from, port);
    struct call call = {.fd = first.fd, .make = make};
    start_call(&call);
    CHECK(close(first.fd) == 0);
    struct pair second = accept_pair(from, port);
    printf("the same number: %d\n", first.fd == second.fd);
    CHECK(ask(SEND, second.which, 0, "later") == 5);
    char room[64] = "";
    CHECK(recv(second.fd, room, 5, MSG_WAITALL) == 5);
    printf("the later one: '%s'\n", room);
    CHECK(ask(SEND, first.which, 0, "early") == 5);
    show_call("the early one", &call);
    show_received("and then", first.which);
    CHECK(write(second.fd, "to the later one", 16) == 16);
    show_received("the later one", second.which);
}
static void reused_read(void) {
    reused(call_read);
}
static void reused_recv(void) {
    reused(call_recv_all);
}
static void reused_readv(void) {
    reused(call_readv);
}
static void reused_recvmsg(void) {
    reused(call_recvmsg);
}

static ssize_t call_accept(int fd, char *room, size_t size) {
    int got = accept(fd, NULL, NULL);
    if (got < 0) return -1;
    ssize_t bytes = read(got, room, size);
    close(got);
    return bytes;
}

static void reused_listener(void) {
    int port = 0, later_port = 0, from = open_listener(&port);
    struct call call = {.fd = from, .make = call_accept};
    start_call(&call);
    CHECK(close(from) == 0);
    int later = open_listener(&later_port);
    printf("the same number: %d\n", from == later);
    struct pair pair = accept_pair(later, later_port);
    CHECK(write(pair.fd, "hello", 5) == 5);
    show_received("the later listener", pair.which);
    int which = ask(DIAL, 0, port, NULL);
    CHECK(which >= 0 && ask(SEND, which, 0, "early") == 5);
    show_call("the early listener", &call);
}

static ssize_t call_write(int fd, char *room, size_t size) {
    static char large[64 << 20];
    ssize_t bytes = send(fd, large, sizeof large, MSG_NOSIGNAL);
    snprintf(room, size, "%s", bytes == sizeof large ? "all" : "some");
    return bytes;
}

static void reused_write(void) {
    int port = 0, from = open_listener(&port);
    struct pair first = accept_pair(from, port);
    struct call call = {.fd = first.fd, .make = call_write};
    start_call(&call);
    CHECK(close(first.fd) == 0);
    struct pair second = accept_pair(from, port);
    printf("the same number: %d\n", first.fd == second.fd);
    CHECK(write(second.fd, "later", 5) == 5);
    show_received("the later one", second.which);
    begin(DRAIN, first.which, 0, NULL);
    show_call("the early one", &call);
    show("drained", finish().result);
}

static int set;

static ssize_t call_epoll(int fd, char *room, size_t size) {
    struct epoll_event event;
    int count = epoll_wait(fd, &event, 1, LONG_MS);
    snprintf(room, size, "%lu", (unsigned long)event.data.u64);
    return count;
}

static void reused_epoll(void) {
    struct pair first = connect_pair(), second = connect_pair();
    struct epoll_event event = {EPOLLIN, {.u64 = 1}};
    set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, first.fd, &event) == 0);
    struct call call = {.fd = set, .make = call_epoll};
    start_call(&call);
    CHECK(close(set) == 0);
    int later = epoll_create1(0);
    printf("the same number: %d\n", later == set);
    event.data.u64 = 2;
    CHECK(epoll_ctl(later, EPOLL_CTL_ADD, second.fd, &event) == 0);
    CHECK(ask(SEND, second.which, 0, "x") == 1);
    CHECK(epoll_wait(later, &event, 1, LONG_MS) == 1);
    printf("the later one: %lu\n", (unsigned long)event.data.u64);
    CHECK(ask(SEND, first.which, 0, "x") == 1);
    show_call("the early one", &call);
}

static void set_linger(int fd, int seconds) {
    struct linger linger = {1, seconds};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
}

/* Writes to a connection whose peer does not read, until there is no more room. */
static void fill(int fd) {
    static char large[1 << 20];
    struct pollfd entry = {fd, POLLOUT, 0};
    while (poll(&entry, 1, 300) > 0) CHECK(send(fd, large, sizeof large, MSG_DONTWAIT) > 0);
}

static ssize_t call_close(int fd, char *room, size_t size) {
    long start = now_ms();
    int result = close(fd);
    snprintf(room, size, "%s", now_ms() - start > 1500 ? "it lingers" : "it is quick");
    return result == 0 ? 1 : -1;
}

/* Tests that a lingering close does not delay other calls. */
static void lingering(void) {
    struct pair full = connect_pair(), other = connect_pair();
    set_linger(full.fd, 2);
    fill(full.fd);
    struct call call = {.fd = full.fd, .make = call_close};
    start_call(&call);
    long start = now_ms();
    CHECK(send(other.fd, "free", 4, MSG_DONTWAIT) == 4);
    show_received("meanwhile", other.which);
    CHECK(ask(SEND, other.which, 0, "back") == 4);
    char room[8] = "";
    CHECK(read(other.fd, room, 4) == 4);
    int port = 0, from = open_listener(&port);
    struct pair third = accept_pair(from, port);
    CHECK(close(third.fd) == 0);
    printf("others are quick: %d\n", now_ms() - start < 1000);
    show_call("close", &call);
}

/* Tests that lingering ends when all data is acknowledged, and needs unacknowledged data. */
static void lingering_ends(void) {
    struct pair full = connect_pair(), empty = connect_pair();
    set_linger(full.fd, 6);
    set_linger(empty.fd, 6);
    fill(full.fd);
    begin(DRAIN, full.which, 0, NULL);
    long start = now_ms();
    show("close", close(full.fd));
    printf("all came: %d\n", finish().result > 0);
    show("close", close(empty.fd));
    printf("quick: %d\n", now_ms() - start < 3000);
}

/* Tests that the program's end does not wait for one socket after the other. */
static void lingering_exit(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (int index = 0; index < 3; index++) {
            struct pair pair = connect_pair();
            set_linger(pair.fd, 3);
            fill(pair.fd);
        }
        CHECK(write(ends[1], "!", 1) == 1);
        exit(0);
    }
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
    long start = now_ms();
    CHECK(waitpid(child, NULL, 0) == child);
    printf("quick: %d\n", now_ms() - start < 2500);
}

static ssize_t call_accept_only(int fd, char *room, size_t size) {
    (void)room, (void)size;
    return accept(fd, NULL, NULL);
}

static void show_ready(const char *what, int fd) {
    struct pollfd entry = {fd, POLLIN | POLLOUT, 0};
    int count = poll(&entry, 1, 0);
    printf("%s: %d %#x\n", what, count, entry.revents);
}

/* Tests a listener that is shut down. */
static void listener_shut_down(void) {
    static const int ways[] = {SHUT_RD, SHUT_RDWR};
    for (int way = 0; way < 2; way++) {
        int port = 7100 + way, from = open_listener(&port);
        struct call call = {.fd = from, .make = call_accept_only};
        struct sockaddr_in address;
        socklen_t size = sizeof address;
        start_call(&call);
        show("shutdown", shutdown(from, ways[way]));
        show_call("accept", &call);
        show("accept again", accept(from, NULL, NULL));
        show_ready("poll", from);
        CHECK(getsockname(from, (struct sockaddr *)&address, &size) == 0);
        printf("its port: %d\n", ntohs(address.sin_port) == port);
        show("dial", ask(DIAL, 0, port, NULL) < 0 && errno == ECONNREFUSED);
        show("listen again", listen(from, 5));
        show("shutdown of sending", shutdown(from, SHUT_WR));
        struct pair pair = accept_pair(from, port);
        CHECK(write(pair.fd, "it listens", 10) == 10);
        show_received("the new one", pair.which);
        close(pair.fd);
        close(from);
    }
}

static void listener_shut_down_polled(void) {
    int port = 0, from = open_listener(&port);
    struct epoll_event event = {EPOLLIN, {.u64 = 5}};
    set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, from, &event) == 0);
    struct call call = {.fd = set, .make = call_epoll};
    start_call(&call);
    int which = ask(DIAL, 0, port, NULL);
    show_call("a connection waits", &call);
    show("shutdown", shutdown(from, SHUT_RDWR));
    show_received("who waited in its queue", which);
    CHECK(epoll_wait(set, &event, 1, LONG_MS) == 1);
    printf("epoll: %#x\n", event.events & ~EPOLLIN);
}

static void accept_timeout(void) {
    int port = 0, from = open_listener(&port);
    struct timeval limit = {0, 200000};
    CHECK(setsockopt(from, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    long start = now_ms();
    show("accept", accept(from, NULL, NULL));
    long took = now_ms() - start;
    printf("in time: %d\n", took >= 150 && took < 3000);
    struct pair pair = accept_pair(from, port);
    CHECK(write(pair.fd, "late", 4) == 4);
    show_received("afterwards", pair.which);
}

static void accept_without_numbers(void) {
    int port = 0, from = open_listener(&port), first = dup(from);
    struct rlimit limit, none;
    CHECK(first >= 0 && close(first) == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    /* The limit allows only numbers up to the first free one. */
    none = (struct rlimit){first, limit.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    show("accept with nothing to accept", accept(from, NULL, NULL));
    int which = ask(DIAL, 0, port, NULL);
    for (int tries = 0; tries < 3; tries++) show("accept", accept(from, NULL, NULL));
    CHECK(ask(SEND, which, 0, "patience") == 8);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int fd = accept(from, NULL, NULL);
    char room[16] = "";
    CHECK(fd >= 0 && recv(fd, room, 8, MSG_WAITALL) == 8);
    printf("accepted: '%s'\n", room);
}

/* Tests that with room for one event, neither a socket nor a descriptor of the kernel waits
   forever. */
static void one_event(void) {
    struct pair pair = connect_pair();
    struct epoll_event event = {EPOLLIN, {.u64 = 0}};
    int other = eventfd(1, EFD_NONBLOCK), counts[2] = {0, 0};
    set = epoll_create1(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    event.data.u64 = 1;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, other, &event) == 0);
    CHECK(ask(SEND, pair.which, 0, "x") == 1);
    struct pollfd entry = {pair.fd, POLLIN, 0};
    CHECK(poll(&entry, 1, LONG_MS) == 1);
    for (int index = 0; index < 1000; index++) {
        CHECK(epoll_wait(set, &event, 1, LONG_MS) == 1 && event.data.u64 < 2);
        counts[event.data.u64]++;
    }
    printf("both: %d\n", counts[0] >= 400 && counts[1] >= 400);
}

/* Tests that an epoll with two numbers is one epoll. */
static void two_numbers(void) {
    for (int early = 0; early < 2; early++) {
        struct pair pair = connect_pair();
        struct epoll_event event = {EPOLLIN, {.u64 = 11}};
        int twin = -1, third;
        set = epoll_create1(0);
        if (early) twin = dup(set);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
        if (!early) twin = fcntl(set, F_DUPFD_CLOEXEC, 0);
        show("nothing", epoll_wait(twin, &event, 1, 0));
        show("nothing in time", epoll_wait(twin, &event, 1, 100));
        struct call call = {.fd = twin, .make = call_epoll};
        start_call(&call);
        CHECK(ask(SEND, pair.which, 0, "x") == 1);
        show_call("by the second number", &call);
        CHECK(close(set) == 0);
        show("by the second number alone", epoll_wait(twin, &event, 1, LONG_MS));
        event = (struct epoll_event){EPOLLIN | EPOLLOUT, {.u64 = 12}};
        CHECK(epoll_ctl(twin, EPOLL_CTL_MOD, pair.fd, &event) == 0);
        third = dup2(twin, 60);
        CHECK(third == 60 && close(twin) == 0);
        CHECK(epoll_wait(third, &event, 1, LONG_MS) == 1);
        printf("by a third one: %lu %#x\n", (unsigned long)event.data.u64, event.events);
        close(third);
        close(pair.fd);
    }
}

/* Tests a thread that sleeps in the epoll before it contains a socket of the stack. */
static void added_while_asleep(void) {
    struct pair pair = connect_pair();
    struct epoll_event event = {EPOLLIN, {.u64 = 21}};
    set = epoll_create1(0);
    int twin = dup(set);
    struct call calls[2] = {{.fd = set, .make = call_epoll}, {.fd = twin, .make = call_epoll}};
    start_call(&calls[0]);
    CHECK(epoll_ctl(twin, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    start_call(&calls[1]);
    CHECK(ask(SEND, pair.which, 0, "x") == 1);
    show_call("first", &calls[0]);
    show_call("second", &calls[1]);
}

static void interrupted(int signal) {
    (void)signal;
}

/* Does the same, with a signal directly afterwards, which ends the wait. */
static void added_and_interrupted(void) {
    struct pair pair = connect_pair();
    struct epoll_event event = {EPOLLIN, {.u64 = 21}};
    struct sigaction action = {.sa_handler = interrupted};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int times = 0; times < 20; times++) {
        set = epoll_create1(0);
        struct call call = {.fd = set, .make = call_epoll};
        start_call(&call);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pair.fd, &event) == 0);
        CHECK(pthread_kill(call.thread, SIGUSR1) == 0);
        show_call("interrupted", &call);
        CHECK(close(set) == 0);
    }
}

static ssize_t call_recv_nothing(int fd, char *room, size_t size) {
    (void)size;
    return recv(fd, room, 0, 0);
}

/* Tests a thread that waits for data and takes none: it takes no error, whatever ends the wait. */
static void nothing_received(void) {
    struct sigaction action = {.sa_handler = interrupted};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    struct pair pair = connect_pair();
    struct call calls[3];
    for (int index = 0; index < 3; index++) {
        calls[index] = (struct call){.fd = pair.fd, .make = call_recv_nothing};
        start_call(&calls[index]);
        if (index == 0) CHECK(pthread_kill(calls[0].thread, SIGUSR1) == 0);
        if (index == 1) CHECK(ask(SEND, pair.which, 0, "x") == 1);
        if (index == 2) CHECK(ask(RESET, pair.which, 0, NULL) == 0);
        show_call("nothing", &calls[index]);
        if (index == 1) show("one", recv(pair.fd, calls[1].room, 1, 0));
    }
    show("afterwards", recv(pair.fd, calls[0].room, 1, 0));
    show("afterwards", recv(pair.fd, calls[0].room, 0, 0));
}

/* Tests two threads that sleep in accept: each gets one of two connections. */
static void accepted_by_two(void) {
    int port = 0, from = open_listener(&port);
    struct call calls[2] = {{.fd = from, .make = call_accept}, {.fd = from, .make = call_accept}};
    start_call(&calls[0]);
    start_call(&calls[1]);
    CHECK(ask(DIAL, 0, port, NULL) == 0 && ask(DIAL, 0, port, NULL) == 1);
    CHECK(ask(SEND, 0, 0, "x") == 1 && ask(SEND, 1, 0, "x") == 1);
    show_call("one", &calls[0]);
    show_call("the other", &calls[1]);
}

/* Tests threads of one process on both ends: the client's use the kernel's sockets of the other
   namespace. Each connection transfers data back and forth like a handshake of TLS 1.2. */
#define PAIRS 2
#define HANDSHAKES 500
#define STEPS 6

static int both_port;
static atomic_int stalls;

/* Transfers this number of bytes; a step that takes seconds counts as a stall. */
static void move_bytes(int fd, int sends, size_t bytes) {
    char room[4096] = "";
    for (size_t done = 0; done < bytes;) {
        ssize_t moved = sends ? send(fd, room, bytes - done, MSG_NOSIGNAL)
                              : recv(fd, room, bytes - done, 0);
        if (moved <= 0) {
            stalls++;
            return;
        }
        done += moved;
    }
}

static void converse(int fd, int first) {
    static const size_t sizes[STEPS] = {517, 3100, 126, 51, 100, 2000};
    struct timeval limit = {4, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    for (int step = 0; step < STEPS; step++) move_bytes(fd, (step + first) % 2, sizes[step]);
}

static void *serve_one(void *argument) {
    int fd = (int)(long)argument;
    converse(fd, 0);
    struct pollfd entry = {fd, POLLIN, 0};
    if (poll(&entry, 1, 4000) != 1) stalls++;
    close(fd);
    return NULL;
}

static void *call_often(void *argument) {
    (void)argument;
    int space = open(peer_namespace, O_RDONLY | O_CLOEXEC);
    CHECK(space >= 0 && setns(space, CLONE_NEWNET) == 0);
    close(space);
    struct sockaddr_in address = address_of(local_address, both_port);
    for (int round = 0; round < HANDSHAKES; round++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        converse(fd, 1);
        close(fd);
    }
    return NULL;
}

static void both_ends(void) {
    int from = open_listener(&both_port);
    pthread_t callers[PAIRS], servers[PAIRS * HANDSHAKES];
    for (int index = 0; index < PAIRS; index++)
        CHECK(pthread_create(&callers[index], NULL, call_often, NULL) == 0);
    for (int index = 0; index < PAIRS * HANDSHAKES; index++) {
        long fd = accept(from, NULL, NULL);
        CHECK(fd >= 0);
        CHECK(pthread_create(&servers[index], NULL, serve_one, (void *)fd) == 0);
    }
    for (int index = 0; index < PAIRS * HANDSHAKES; index++) pthread_join(servers[index], NULL);
    for (int index = 0; index < PAIRS; index++) pthread_join(callers[index], NULL);
    printf("stalls: %d\n", stalls);
}

/* Tests the remaining time limit that select(2) returns. */
static void time_left(void) {
    struct pair pair = connect_pair();
    struct timeval time = {0, 50000}, wrong = {-1, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.fd, &set);
    show("select", select(pair.fd + 1, &set, NULL, NULL, &time));
    printf("left: %ld\n", (long)time.tv_sec * 1000000 + (long)time.tv_usec);
    FD_SET(pair.fd, &set);
    show("a time that is none", select(pair.fd + 1, &set, NULL, NULL, &wrong));
}

static const struct test tests[] = {
    {"time-left", time_left},
    {"reused-read", reused_read},
    {"reused-recv", reused_recv},
    {"reused-readv", reused_readv},
    {"reused-recvmsg", reused_recvmsg},
    {"reused-listener", reused_listener},
    {"reused-write", reused_write},
    {"reused-epoll", reused_epoll},
    {"lingering", lingering},
    {"lingering-ends", lingering_ends},
    {"lingering-exit", lingering_exit},
    {"listener-shut-down", listener_shut_down},
    {"listener-shut-down-polled", listener_shut_down_polled},
    {"accept-timeout", accept_timeout},
    {"accept-without-numbers", accept_without_numbers},
    {"one-event", one_event},
    {"two-numbers", two_numbers},
    {"added-while-asleep", added_while_asleep},
    {"added-and-interrupted", added_and_interrupted},
    {"accepted-by-two", accepted_by_two},
    {"nothing-received", nothing_received},
    {"both-ends", both_ends},
};

MAIN(tests)
