// Connects to the address of its own stack, given as the argument: to its own listener, and to a
// port without a listener.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYTES (2 << 20)

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition,  \
                    errno);                                                    \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

static char sent[BYTES], received[BYTES];

static void *send_all(void *fd) {
    CHECK(send(*(int *)fd, sent, BYTES, 0) == BYTES);
    CHECK(shutdown(*(int *)fd, SHUT_WR) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7000)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(listen(listener, 8) == 0);
    at.sin_addr.s_addr = inet_addr(argv[1]);
    int near = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(near, (struct sockaddr *)&at, sizeof at) == 0);
    struct sockaddr_in peer, name;
    socklen_t size = sizeof peer;
    int far = accept(listener, (struct sockaddr *)&peer, &size);
    CHECK(far >= 0);
    CHECK(peer.sin_addr.s_addr == at.sin_addr.s_addr);
    size = sizeof name;
    CHECK(getsockname(near, (struct sockaddr *)&name, &size) == 0);
    CHECK(name.sin_port == peer.sin_port);

    for (int i = 0; i < BYTES; i++)
        sent[i] = i % 251;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_all, &near) == 0);
    CHECK(recv(far, received, BYTES, MSG_WAITALL) == BYTES);
    CHECK(memcmp(sent, received, BYTES) == 0);
    CHECK(recv(far, received, 1, 0) == 0);
    CHECK(pthread_join(thread, NULL) == 0);

    int refused = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_port = htons(7001);
    CHECK(connect(refused, (struct sockaddr *)&at, sizeof at) < 0);
    CHECK(errno == ECONNREFUSED);
    puts("good");
    return 0;
}
