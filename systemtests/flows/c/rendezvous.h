/* A client that speaks the rendezvous of the library itself, without the library. */
#pragma once
#include "pair.h"
#include <linux/memfd.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <time.h>

#define RING_BYTES 65536
#define FILE_BYTES (4096 + 2 * RING_BYTES)

struct offer {
    uint64_t magic;
    uint64_t made_ns;
    uint64_t cookie;
};

/* What one side writes about its outgoing and its incoming direction (page.rs). */
struct side {
    _Alignas(128) volatile uint32_t mode;
    volatile uint32_t starved;
    volatile uint64_t switch_at, written, returned_at, doorbells;
    volatile uint32_t recalled;
    _Alignas(128) volatile uint64_t read;
    volatile uint32_t sleeping, leaving, taking, receive_bytes, processor;
};

struct page {
    uint64_t magic, ring_bytes;
    volatile uint32_t standing;
    struct side client, server;
};

enum { OFFERED, ACCEPTED, REVOKED };
enum { STREAM, RING, FORBIDDEN };
enum { STAYS, LEAVES, DRAINS, CLOSED, RETURNS };

/* Connects to the rendezvous of a port. */
static inline int visit(int port) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = sprintf(name.sun_path + 1, "fable-preload-3/%04x0000", port);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + length;
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&name, size) == 0);
    return fd;
}

/* Sends the first bytes of an offer with so many copies of a descriptor. */
static inline ssize_t try_send_offer(int visitor, const struct offer *offer, size_t bytes,
                                     int memory, int count) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(253 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
    for (int index = 0; index < count; index++) {
        memcpy(CMSG_DATA(&control.header) + index * sizeof(int), &memory, sizeof(int));
    }
    struct iovec entry = {(void *)offer, bytes};
    struct msghdr message = {.msg_iov = &entry,
                             .msg_iovlen = 1,
                             .msg_control = count > 0 ? &control : NULL,
                             .msg_controllen = count > 0 ? CMSG_SPACE(count * sizeof(int)) : 0};
    return sendmsg(visitor, &message, MSG_NOSIGNAL);
}

/* A connection to be, with its page. */
struct hostile {
    int fd, memory;
    struct sockaddr_in there;
    struct page *page;
    struct offer offer;
};

static inline struct hostile prepare(int port) {
    struct hostile it = {.there = {.sin_family = AF_INET}};
    it.there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    it.there.sin_port = htons(port);
    it.fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t size = sizeof it.offer.cookie;
    CHECK(it.fd >= 0);
    CHECK(getsockopt(it.fd, SOL_SOCKET, SO_COOKIE, &it.offer.cookie, &size) == 0);

    it.memory = memfd_create("fable", MFD_ALLOW_SEALING);
    CHECK(it.memory >= 0 && ftruncate(it.memory, FILE_BYTES) == 0);
    it.page = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, it.memory, 0);
    CHECK(it.page != MAP_FAILED);
    memcpy(&it.page->magic, "FABLEpr2", 8);

    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    it.offer.made_ns = now.tv_sec * 1000000000ULL + now.tv_nsec;
    memcpy(&it.offer.magic, "FABLEof2", 8);
    return it;
}

static inline void seal(const struct hostile *it) {
    CHECK(fcntl(it->memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
}

static inline void send_offer(const struct hostile *it, int visitor) {
    CHECK(try_send_offer(visitor, &it->offer, sizeof it->offer, it->memory, 1) ==
          sizeof it->offer);
    close(visitor);
}

static inline void join(const struct hostile *it) {
    CHECK(connect(it->fd, (struct sockaddr *)&it->there, sizeof it->there) == 0);
}

static inline void drop(struct hostile *it) {
    munmap(it->page, FILE_BYTES);
    close(it->memory);
    close(it->fd);
}
