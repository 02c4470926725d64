/* Clients that speak the rendezvous themselves and attack an echo server that runs with the
   library. Usage: attacks CASE PORT
   Each case ends with status 0 if the server withstood. */
#include "rendezvous.h"

static int port;

/* An honest client without the library. */
static void echo_once(void) {
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port)};
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = dial(&there);
    char byte = 'e';
    CHECK(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'e');
    close(fd);
}

/* Connects with an offer, and waits until the server uses the page. */
static struct hostile upgraded(void) {
    struct hostile it = prepare(port);
    seal(&it);
    send_offer(&it, visit(port));
    join(&it);
    while (it.page->standing == OFFERED) usleep(100);
    CHECK(it.page->standing == ACCEPTED);
    return it;
}

/* Sends a byte of the stream, which the server reads or takes for a doorbell. */
static void nudge(const struct hostile *it) {
    char byte = 0;
    send(it->fd, &byte, 1, MSG_NOSIGNAL);
}

/* Offers that are not valid, each with descriptors: none of them may stay open in the server. */
static void descriptors(void) {
    static const int counts[] = {0, 1, 2, 3, 20, 253};
    for (int round = 0; round < 20; round++) {
        for (size_t index = 0; index < COUNT(counts); index++) {
            for (int way = 0; way < 4; way++) {
                struct hostile it = prepare(port);
                seal(&it);
                size_t bytes = sizeof it.offer;
                if (way == 1) it.offer.magic ^= 1;
                if (way == 2) bytes -= 8;
                /* The connection of a valid offer comes; that of another one never does. */
                int visitor = visit(port);
                ssize_t sent = try_send_offer(visitor, &it.offer, bytes, it.memory, counts[index]);
                CHECK(sent == (ssize_t)bytes);
                close(visitor);
                if (way == 3) join(&it);
                drop(&it);
            }
        }
        echo_once();
    }
}

/* Clients that connect to the rendezvous and say nothing: others are served, and one that speaks
   late still gets its page. */
static void visitors(void) {
    struct hostile late = prepare(port);
    seal(&late);
    /* A server that has never accepted has room for fewer. */
    echo_once();
    int first = visit(port);
    int silent[100];
    for (size_t index = 0; index < COUNT(silent); index++) silent[index] = visit(port);
    /* The server has heard nothing of them when it has accepted this one. */
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    echo_once();
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("honest client beside %zu silent: %lld us\n", COUNT(silent),
           (after.tv_sec - before.tv_sec) * 1000000LL + (after.tv_nsec - before.tv_nsec) / 1000);
    CHECK(try_send_offer(first, &late.offer, sizeof late.offer, late.memory, 1) ==
          sizeof late.offer);
    join(&late);
    char byte = 'e';
    CHECK(write(late.fd, &byte, 1) == 1);
    while (late.page->standing == OFFERED) usleep(100);
    CHECK(late.page->standing == ACCEPTED);
    drop(&late);
    for (size_t index = 0; index < COUNT(silent); index++) close(silent[index]);
}

/* More silent clients than are kept, of which each stays. */
static void crowd(void) {
    int silent[600];
    echo_once();
    for (size_t index = 0; index < COUNT(silent); index++) {
        silent[index] = visit(port);
        if (index % 100 == 99) echo_once();
    }
    echo_once();
    /* The caller counts the server's descriptors now, and answers. */
    CHECK(write(1, "\n", 1) == 1);
    char byte;
    CHECK(read(0, &byte, 1) >= 0);
}

static volatile int flipping;

static void *flip(void *argument) {
    struct side *mine = argument;
    static const uint64_t values[] = {0, 600, 5000000, 1ULL << 40};
    for (unsigned turn = 0; flipping; turn++) mine->read = values[turn % 4];
    return NULL;
}

/* What this end has read changes all the time while it goes back to TCP: the server sends again at
   most what it has put into the ring. */
static void flips(void) {
    static char room[1 << 16];
    unsigned long long most = 0;
    for (int round = 0; round < 150; round++) {
        struct hostile it = upgraded();
        CHECK(write(it.fd, room, 1000) == 1000);
        while (it.page->server.written != 1000) usleep(10);
        flipping = 1;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, flip, &it.page->client) == 0);
        it.page->client.mode = FORBIDDEN;
        it.page->client.leaving = LEAVES;
        nudge(&it);
        shutdown(it.fd, SHUT_WR);
        unsigned long long received = 0;
        ssize_t moved;
        while (received < 64 << 20 && (moved = read(it.fd, room, sizeof room)) > 0) {
            received += moved;
        }
        if (received > most) most = received;
        flipping = 0;
        pthread_join(thread, NULL);
        drop(&it);
    }
    printf("most bytes from the server: %llu\n", most);
    fflush(stdout);
    CHECK(most <= RING_BYTES);
    echo_once();
}

/* It takes bytes back, and says from where, but leaves more than that in the ring: a state that no
   honest end leaves behind. */
static void recalled(void) {
    struct hostile it = upgraded();
    struct side *mine = &it.page->client;
    mine->written = 500;
    mine->returned_at = 101;
    mine->recalled = 1;
    mine->switch_at = 1;
    mine->mode = RING;
    mine->doorbells = 1;
    nudge(&it);
    echo_once();
    drop(&it);
}

/* Doorbells without end, and a count of them that allows it: others are served. */
static void doorbells(void) {
    static char room[1 << 16];
    struct hostile it = upgraded();
    struct side *mine = &it.page->client;
    mine->doorbells = 1ULL << 31;
    mine->switch_at = 1;
    mine->mode = RING;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        while (send(it.fd, room, sizeof room, MSG_NOSIGNAL) > 0) {}
        pause();
    }
    for (int round = 0; round < 20; round++) echo_once();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    drop(&it);
}

static const struct test_case cases[] = {
    {"descriptors", descriptors}, {"visitors", visitors}, {"crowd", crowd},
    {"flips", flips},             {"recalled", recalled}, {"doorbells", doorbells},
};

int main(int count, char **arguments) {
    CHECK(count == 3);
    alarm(600);
    signal(SIGPIPE, SIG_IGN);
    port = atoi(arguments[2]);
    return run_case(arguments[1], cases, COUNT(cases));
}
