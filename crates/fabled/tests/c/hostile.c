/* A client that speaks the rendezvous itself and then lies in the shared page.
   Usage: hostile PORT SEED
   Runs without the library, against an echo server that runs with it; both must end in order. */
#include "pair.h"
#include <linux/memfd.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <time.h>

#define RING_BYTES 65536
#define FILE_BYTES (4096 + 2 * RING_BYTES)

struct address {
    unsigned char host[16];
    uint16_t port;
};

struct offer {
    uint64_t magic;
    uint64_t made_ns;
    struct address client;
    struct address server;
};

static void write_address(struct address *to, const struct sockaddr_in *from) {
    memset(to, 0, sizeof *to);
    to->host[10] = to->host[11] = 0xff;
    memcpy(to->host + 12, &from->sin_addr, 4);
    to->port = ntohs(from->sin_port);
}

static void send_offer(int port, const struct offer *offer, int memory) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = sprintf(name.sun_path + 1, "fable-preload-2/%04x0000", port);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + length;
    CHECK(connect(fd, (struct sockaddr *)&name, size) == 0);
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS,
                            .cmsg_len = CMSG_LEN(sizeof(int))}};
    memcpy(CMSG_DATA(&control.header), &memory, sizeof(int));
    struct iovec entry = {(void *)offer, sizeof *offer};
    struct msghdr message = {.msg_iov = &entry,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    CHECK(sendmsg(fd, &message, 0) == sizeof *offer);
    close(fd);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    alarm(60);
    signal(SIGPIPE, SIG_IGN);
    int port = atoi(arguments[1]);
    uint64_t chance = strtoull(arguments[2], NULL, 10);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in there = here;
    there.sin_port = htons(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    socklen_t size = sizeof here;
    CHECK(getsockname(fd, (struct sockaddr *)&here, &size) == 0);

    int memory = memfd_create("fable", MFD_ALLOW_SEALING);
    CHECK(memory >= 0 && ftruncate(memory, FILE_BYTES) == 0);
    int unsealed = next_random(&chance) % 8 == 0;
    if (!unsealed) {
        CHECK(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    }
    uint64_t *page = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(page != MAP_FAILED);
    memcpy(page, "FABLEpr2", 8);

    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct offer offer = {.made_ns = now.tv_sec * 1000000000ULL + now.tv_nsec};
    memcpy(&offer.magic, "FABLEof1", 8);
    write_address(&offer.client, &here);
    write_address(&offer.server, &there);
    send_offer(port, &offer, memory);
    CHECK(connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
    if (unsealed) CHECK(ftruncate(memory, 0) == 0);

    char trash[256] = {0};
    for (int turn = 0; turn < 300; turn++) {
        /* Words of the header, small and large values, and bytes in the stream. */
        size_t word = 16 + next_random(&chance) % 112;
        uint64_t value = next_random(&chance) % 3;
        if (next_random(&chance) % 3 == 0) value = next_random(&chance) % (2 * RING_BYTES);
        if (next_random(&chance) % 6 == 0) value = (uint64_t)next_random(&chance) << 33;
        if (!unsealed) page[word] = value;
        if (next_random(&chance) % 4 == 0) {
            send(fd, trash, next_random(&chance) % sizeof trash, MSG_DONTWAIT);
        }
        recv(fd, trash, sizeof trash, MSG_DONTWAIT);
        usleep(next_random(&chance) % 100);
    }
    close(fd);
    return 0;
}
