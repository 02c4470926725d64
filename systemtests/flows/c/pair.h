/* Two processes and a TCP connection between them, for programs that do not know of FABLE. */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            dprintf(2, "%s:%d: %s: errno %d (%s)\n", __FILE__, __LINE__, #condition, errno,       \
                    strerror(errno));                                                             \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* A generator that both ends can start at the same state. */
static inline uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

/* The byte of a stream at a position. */
static inline unsigned char byte_at(uint64_t seed, uint64_t position) {
    uint64_t word = (position / 8 + 1) * 0x9e3779b97f4a7c15ULL ^ seed;
    word ^= word >> 29;
    word *= 0xbf58476d1ce4e5b9ULL;
    return (unsigned char)(word >> (position % 8 * 8));
}

static inline void fill(unsigned char *to, size_t length, uint64_t seed, uint64_t position) {
    for (size_t index = 0; index < length; index++) to[index] = byte_at(seed, position + index);
}

static inline void verify(const unsigned char *from, size_t length, uint64_t seed,
                          uint64_t position) {
    for (size_t index = 0; index < length; index++) {
        if (from[index] != byte_at(seed, position + index)) {
            dprintf(2, "byte %llu is wrong\n", (unsigned long long)(position + index));
            _exit(1);
        }
    }
}

static inline void send_all(int fd, uint64_t seed, uint64_t from, uint64_t to) {
    static unsigned char buffer[70000];
    while (from < to) {
        size_t length = to - from < sizeof buffer ? to - from : sizeof buffer;
        fill(buffer, length, seed, from);
        size_t sent = 0;
        while (sent < length) {
            ssize_t moved = write(fd, buffer + sent, length - sent);
            if (moved < 0 && errno == EAGAIN) {
                struct pollfd entry = {.fd = fd, .events = POLLOUT};
                CHECK(poll(&entry, 1, 20000) == 1);
                continue;
            }
            CHECK(moved > 0);
            sent += moved;
        }
        from += length;
    }
}

static inline void expect(int fd, uint64_t seed, uint64_t from, uint64_t to) {
    static unsigned char buffer[70000];
    while (from < to) {
        size_t length = to - from < sizeof buffer ? to - from : sizeof buffer;
        ssize_t moved = read(fd, buffer, length);
        if (moved < 0 && errno == EAGAIN) {
            struct pollfd entry = {.fd = fd, .events = POLLIN};
            CHECK(poll(&entry, 1, 20000) == 1);
            continue;
        }
        CHECK(moved > 0);
        verify(buffer, moved, seed, from);
        from += moved;
    }
}

static inline void expect_end(int fd) {
    char byte;
    ssize_t moved;
    while ((moved = read(fd, &byte, 1)) < 0 && errno == EAGAIN) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        CHECK(poll(&entry, 1, 20000) == 1);
    }
    CHECK(moved == 0);
}

static inline int listen_anywhere(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)address, sizeof *address) == 0);
    CHECK(listen(fd, 512) == 0);
    socklen_t size = sizeof *address;
    CHECK(getsockname(fd, (struct sockaddr *)address, &size) == 0);
    return fd;
}

static inline int dial(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

/* Exchanges bytes until both ends know that the other takes part: from then on all bytes use
   memory. */
static inline void greet(int fd) {
    char byte = 'x';
    for (int turn = 0; turn < 3; turn++) {
        CHECK(write(fd, &byte, 1) == 1);
        CHECK(read(fd, &byte, 1) == 1);
    }
}

static inline void set_nonblocking(int fd) {
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

struct pair {
    int fd;
    pid_t peer; /* in the parent, which accepts; 0 in the child, which connects */
};

static inline struct pair make_pair(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    struct pair pair;
    pair.peer = fork();
    CHECK(pair.peer >= 0);
    if (pair.peer == 0) {
        close(listener);
        pair.fd = dial(&address);
    } else {
        pair.fd = accept(listener, NULL, NULL);
        CHECK(pair.fd >= 0);
        close(listener);
    }
    greet(pair.fd);
    return pair;
}

/* Ends the child; the parent waits for it. */
static inline void part(struct pair pair) {
    if (pair.peer == 0) exit(0);
    int status;
    CHECK(waitpid(pair.peer, &status, 0) == pair.peer);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A case of a program, selected by its first argument. */
struct test_case {
    const char *name;
    void (*run)(void);
};

#define COUNT(list) (sizeof list / sizeof list[0])

/* Runs the case of that name; returns the exit status. */
static inline int run_case(const char *name, const struct test_case *cases, size_t count) {
    for (size_t index = 0; index < count; index++) {
        if (strcmp(name, cases[index].name) == 0) {
            cases[index].run();
            return 0;
        }
    }
    dprintf(2, "there is no case %s\n", name);
    return 1;
}
