/* Each end has a thread that polls and reads beside one that writes and blocks: neither consumes
   the other's wake-up. Usage: halves ROUNDS */
#include "pair.h"

#define BYTES 300000

struct half {
    int fd;
    uint64_t seed;
};

static void pause_sometimes(uint64_t *chance) {
    if (next_random(chance) % 8 == 0) usleep(next_random(chance) % 100);
}

static void *send_half(void *argument) {
    struct half *half = argument;
    uint64_t chance = half->seed;
    for (uint64_t at = 0; at < BYTES;) {
        uint64_t end = at + next_random(&chance) % 9000 + 1;
        if (end > BYTES) end = BYTES;
        send_all(half->fd, half->seed, at, end);
        at = end;
        pause_sometimes(&chance);
    }
    return NULL;
}

static void receive_half(int fd, uint64_t seed) {
    unsigned char buffer[9000];
    uint64_t chance = seed;
    for (uint64_t at = 0; at < BYTES;) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        CHECK(poll(&entry, 1, 20000) == 1);
        ssize_t moved = read(fd, buffer, next_random(&chance) % sizeof buffer + 1);
        CHECK(moved > 0);
        verify(buffer, moved, seed, at);
        at += moved;
        pause_sometimes(&chance);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    alarm(600);
    int rounds = atoi(arguments[1]);
    for (int round = 0; round < rounds; round++) {
        struct pair pair = make_pair();
        struct half half = {pair.fd, 2 * round + (pair.peer == 0)};
        pthread_t sender;
        CHECK(pthread_create(&sender, NULL, send_half, &half) == 0);
        receive_half(pair.fd, 2 * round + (pair.peer != 0));
        CHECK(pthread_join(sender, NULL) == 0);
        close(pair.fd);
        part(pair);
    }
    return 0;
}
