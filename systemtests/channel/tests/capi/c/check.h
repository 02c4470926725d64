/* Shared by the test programs: checks that report their line, and events within a time limit. */
#ifndef CHECK_H
#define CHECK_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n  errno: %s\n  mp_error: %s\n", __FILE__, __LINE__,        \
                    #condition, strerror(errno), mp_error());                                      \
            exit(EXIT_FAILURE);                                                                    \
        }                                                                                          \
    } while (0)

/* The call must fail with this errno, and set a text. */
#define FAILS(call, number)                                                                        \
    do {                                                                                           \
        errno = 0;                                                                                 \
        CHECK((call) == -1);                                                                       \
        CHECK(errno == (number));                                                                  \
        CHECK(strlen(mp_error()) > 10);                                                            \
    } while (0)

/* The call must return no pointer, with this errno, and set a text. */
#define FAILS_NULL(call, number)                                                                   \
    do {                                                                                           \
        errno = 0;                                                                                 \
        CHECK((call) == NULL);                                                                     \
        CHECK(errno == (number));                                                                  \
        CHECK(strlen(mp_error()) > 10);                                                            \
    } while (0)

static inline mp_channel *channel_with(const struct mp_options *options)
{
    mp_channel *channel = mp_create(options);

    CHECK(channel != NULL);
    return channel;
}

static inline mp_channel *channel_new(void)
{
    return channel_with(NULL);
}

/* Returns the next event, which must be of this command. */
static inline struct mp_event expect(mp_channel *channel, uint32_t command)
{
    struct mp_event event;

    CHECK(mp_dispatch(channel, &event, 10000) == 1);
    if (event.cmd != command)
        fprintf(stderr, "command %u instead of %u\n", event.cmd, command);
    CHECK(event.cmd == command);
    return event;
}

static inline void pair(int fds[2])
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
}

static inline int is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static inline int open_files(void)
{
    int count = 0;

    for (int fd = 0; fd < 4096; fd++)
        count += is_open(fd);
    return count;
}

/* More bytes than the kernel takes for a peer that does not read. */
enum { BIG = 8 << 20 };

static inline char *big_memory(void)
{
    char *memory = calloc(1, BIG);

    CHECK(memory);
    return memory;
}

/* Returns a listening socket at a free port of 127.0.0.1. */
static inline int listening(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)address, size) == 0);
    CHECK(listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &size) == 0);
    return fd;
}

static inline int connected(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    CHECK(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

#endif
