/* Ways to listen, to wait and to inherit. Usage: ways NAME SEED */
#include "pair.h"
#include <sys/syscall.h>
static struct pair pair_at(struct sockaddr *address, socklen_t size) {
    int listener = socket(address->sa_family, SOCK_STREAM, 0);
    CHECK(listener >= 0 && bind(listener, address, size) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, address, &size) == 0);
    struct pair pair;
    pair.peer = fork();
    CHECK(pair.peer >= 0);
    if (pair.peer == 0) {
        close(listener);
        pair.fd = socket(address->sa_family, SOCK_STREAM, 0);
        CHECK(connect(pair.fd, address, size) == 0);
    } else {
        pair.fd = accept(listener, NULL, NULL);
        CHECK(pair.fd >= 0);
        close(listener);
    }
    greet(pair.fd);
    return pair;
}
static void echo_once(struct pair pair, uint64_t seed) {
    if (pair.peer == 0) {
        send_all(pair.fd, seed, 0, 700000);
        expect(pair.fd, seed + 1, 0, 700000);
        expect_end(pair.fd);
    } else {
        expect(pair.fd, seed, 0, 700000);
        send_all(pair.fd, seed + 1, 0, 700000);
        close(pair.fd);
    }
    part(pair);
}
static void six(uint64_t seed) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    echo_once(pair_at((struct sockaddr *)&a, sizeof a), seed);
}
/* An IPv4 client at an IPv6 listener. */
static void mapped(uint64_t seed) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    int listener = socket(AF_INET6, SOCK_STREAM, 0);
    socklen_t size = sizeof a;
    CHECK(bind(listener, (struct sockaddr *)&a, size) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&a, &size) == 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = a.sin6_port};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct pair pair;
    pair.peer = fork();
    pair.fd = pair.peer ? accept(listener, NULL, NULL) : dial(&to);
    close(listener);
    greet(pair.fd);
    echo_once(pair, seed);
}
/* Waiting through a set in a set, with EPOLLEXCLUSIVE, or by syscall(2). */
static void wait_somehow(uint64_t seed, int how) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        for (int turn = 0; turn < 40; turn++) {
            usleep(2000);
            send_all(pair.fd, seed, turn * 5000, turn * 5000 + 5000);
        }
        expect_end(pair.fd);
        part(pair);
        return;
    }
    int inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    if (how == 1) event.events |= EPOLLEXCLUSIVE;
    if (seed & 1) CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    event.events = EPOLLIN;
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
    if (how == 1) event.events |= EPOLLEXCLUSIVE;
    if (!(seed & 1)) CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, pair.fd, &event) == 0);
    uint64_t at = 0;
    static unsigned char buffer[70000];
    while (at < 200000) {
        if (how == 0) CHECK(epoll_wait(outer, &event, 1, 20000) == 1 && event.data.u64 == 7);
        struct pollfd entry = {.fd = inner, .events = POLLIN};
        if (how == 2) CHECK(poll(&entry, 1, 20000) == 1);
        CHECK(epoll_wait(inner, &event, 1, 20000) == 1 && event.data.u64 == 7);
        ssize_t moved;
        if (how == 3) moved = syscall(SYS_read, pair.fd, buffer, sizeof buffer);
        else moved = read(pair.fd, buffer, sizeof buffer);
        CHECK(moved > 0);
        verify(buffer, moved, seed, at);
        at += moved;
    }
    close(pair.fd);
    part(pair);
}
static void nested(uint64_t seed) { wait_somehow(seed, 0); }
static void exclusive(uint64_t seed) { wait_somehow(seed, 1); }
static void polled_set(uint64_t seed) { wait_somehow(seed, 2); }
static void system_calls(uint64_t seed) { wait_somehow(seed, 3); }

/* Several processes listen on one port; the kernel chooses which one accepts. */
static void shared_port(uint64_t seed) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    pid_t servers[3], one = 1;
    int ready[2], keep = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(pipe(ready) == 0);
    CHECK(setsockopt(keep, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0);
    CHECK(bind(keep, (struct sockaddr *)&address, size) == 0);
    CHECK(getsockname(keep, (struct sockaddr *)&address, &size) == 0);
    for (int index = 0; index < 3; index++) {
        servers[index] = fork();
        if (servers[index]) continue;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0);
        CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 64) == 0);
        CHECK(write(ready[1], "r", 1) == 1);
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            greet(fd);
            expect(fd, seed, 0, 20000);
            send_all(fd, seed + 1, 0, 20000);
            close(fd);
        }
    }
    char byte;
    for (int index = 0; index < 3; index++) CHECK(read(ready[0], &byte, 1) == 1);
    for (int turn = 0; turn < 24; turn++) {
        int fd = dial(&address);
        greet(fd);
        send_all(fd, seed, 0, 20000);
        expect(fd, seed + 1, 0, 20000);
        expect_end(fd);
        close(fd);
    }
    for (int index = 0; index < 3; index++) {
        kill(servers[index], SIGTERM);
        CHECK(waitpid(servers[index], NULL, 0) == servers[index]);
    }
}

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

/* A connection from `*port`; while anybody else has it, from another, which `*port` then is. */
static int connect_from(uint16_t *port, const struct sockaddr_in *there) {
    for (int attempt = 0; attempt < 100; attempt++) {
        uint32_t range = (uint32_t)*port << 16 | *port;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof range) != 0) exit(77);
        if (connect(fd, (const struct sockaddr *)there, sizeof *there) == 0) return fd;
        CHECK(errno == EADDRNOTAVAIL);
        close(fd);
        struct sockaddr_in other;
        close(listen_anywhere(&other));
        *port = ntohs(other.sin_port);
    }
    CHECK(!"a free port");
    return -1;
}

/* Connections to several listeners with a range of one local port, which they can share only if no
   socket is bound to it before it is connected. */
static void one_local_port(uint64_t seed) {
    struct sockaddr_in there[4], here;
    socklen_t size = sizeof here;
    int listeners[4], ends[4];
    for (int index = 0; index < 4; index++) listeners[index] = listen_anywhere(&there[index]);
    uint16_t port = ntohs(there[0].sin_port), first = 0; /* taken: the first attempt fails */
    pid_t child = fork();
    CHECK(child >= 0);
    for (int index = 0; index < 4; index++) {
        if (child == 0) {
            ends[index] = connect_from(&port, &there[index]);
            CHECK(getsockname(ends[index], (struct sockaddr *)&here, &size) == 0);
            CHECK(ntohs(here.sin_port) == port);
            if (index == 0) first = port;
            CHECK(port == first);
        } else {
            CHECK((ends[index] = accept(listeners[index], NULL, NULL)) >= 0);
        }
        greet(ends[index]);
    }
    for (int index = 0; index < 4; index++) {
        if (child == 0) {
            send_all(ends[index], seed, 0, 20000);
            close(ends[index]);
        } else {
            expect(ends[index], seed, 0, 20000);
            expect_end(ends[index]);
        }
    }
    part((struct pair){.peer = child});
}

/* A file of the program takes the number of standard error. */
static void replaced_error(uint64_t seed) {
    struct pair pair = make_pair();
    close(2);
    CHECK(open(getenv("FILE"), O_WRONLY | O_CREAT | O_APPEND, 0600) == 2);
    if (pair.peer == 0) {
        CHECK(write(2, "data", 4) == 4);
        send_all(pair.fd, seed, 0, 1000);
    } else {
        expect(pair.fd, seed, 0, 1000);
    }
    close(pair.fd);
    part(pair);
}

/* The programs of system(3) and popen(3) inherit the descriptor and write to it. */
static void inherited(uint64_t seed) {
    struct pair pair = make_pair();
    if (pair.peer == 0) {
        char text[6] = "";
        expect(pair.fd, seed, 0, 1000);
        for (int at = 0; at < 5; at++) CHECK(read(pair.fd, text + at, 1) == 1);
        CHECK(strcmp(text, "hello") == 0);
        expect(pair.fd, seed, 1000, 2000);
        expect_end(pair.fd);
    } else {
        send_all(pair.fd, seed, 0, 1000);
        char command[64];
        snprintf(command, sizeof command, "printf hello >&%d", pair.fd);
        if (seed & 1) {
            CHECK(system(command) == 0);
        } else {
            FILE *stream = popen(command, "r");
            CHECK(stream && pclose(stream) == 0);
        }
        send_all(pair.fd, seed, 1000, 2000);
        close(pair.fd);
    }
    part(pair);
}
/* One end runs without the library: the seed chooses which. */
static void one_end(uint64_t seed) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    char texts[3][24];
    snprintf(texts[0], 24, "%llu", (unsigned long long)seed);
    snprintf(texts[1], 24, "%d", seed & 1 ? listener : -1);
    snprintf(texts[2], 24, "%d", ntohs(address.sin_port));
    pid_t child = fork();
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "ways", "plain-end", texts[0], texts[1], texts[2], (char *)NULL);
        _exit(127);
    }
    struct pair pair = {.peer = child};
    if (seed & 1) close(listener);
    pair.fd = seed & 1 ? dial(&address) : accept(listener, NULL, NULL);
    CHECK(pair.fd >= 0);
    greet(pair.fd);
    expect(pair.fd, seed, 0, 700000);
    send_all(pair.fd, seed + 1, 0, 700000);
    close(pair.fd);
    part(pair);
}

static int plain_end(uint64_t seed, int listener, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = listener >= 0 ? accept(listener, NULL, NULL) : dial(&address);
    CHECK(fd >= 0);
    greet(fd);
    send_all(fd, seed, 0, 700000);
    expect(fd, seed + 1, 0, 700000);
    expect_end(fd);
    return 0;
}

static const struct {
    const char *name;
    void (*run)(uint64_t seed);
} scenarios[] = {
    {"six", six}, {"mapped", mapped}, {"nested", nested}, {"exclusive", exclusive},
    {"polled-set", polled_set}, {"system-calls", system_calls}, {"shared-port", shared_port},
    {"inherited", inherited}, {"one-end", one_end},
    {"one-local-port", one_local_port}, {"replaced-error", replaced_error},
};
int main(int count, char **arguments) {
    CHECK(count >= 3);
    alarm(600);
    uint64_t seed = strtoull(arguments[2], NULL, 10);
    if (strcmp(arguments[1], "plain-end") == 0) {
        CHECK(count == 5);
        return plain_end(seed, atoi(arguments[3]), atoi(arguments[4]));
    }
    for (size_t index = 0; index < sizeof scenarios / sizeof *scenarios; index++) {
        if (strcmp(arguments[1], scenarios[index].name) == 0) {
            scenarios[index].run(seed);
            return 0;
        }
    }
    return 2;
}
