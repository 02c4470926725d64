/* Tests what the peers of a program see when it ends, or closes its listener. */
#include "like.h"

static void show_told(int which) {
    begin(RECEIVE, which, 0, NULL);
    struct answer answer = finish();
    printf("told: %d\n", answer.result == 0 || (answer.result < 0 && failed(answer.error)));
}

/* Tests that the peers of a killed program get a reset. */
static void killed(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        int port = 0, from = open_listener(&port);
        for (int index = 0; index < 3; index++) accept_pair(from, port);
        struct sockaddr_in address = address_of(peer_address, ask(LISTEN, 0, 0, NULL));
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(ask(ACCEPT, 0, 0, NULL) == 3 && write(fd, "x", 1) == 1);
        show_received("it", 3);
        /* A further attempt fails and changes nothing. */
        address.sin_port = htons(1);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == -1 && errno == EISCONN);
        CHECK(write(ends[1], "!", 1) == 1);
        for (;;) pause();
    }
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    for (int which = 0; which < 4; which++) show_told(which);
}

#define QUEUED 3

/* Opens a listener with one connection that is accepted, number 0 of the peer, and others that
   are not. What the peer sends on the first one arrives after all handshakes. */
static int listener_with_queue(int *port) {
    *port = 0;
    int from = open_listener(port);
    struct pair pair = accept_pair(from, *port);
    for (int index = 0; index < QUEUED; index++) CHECK(ask(DIAL, 0, *port, NULL) == index + 1);
    char byte;
    CHECK(ask(SEND, pair.which, 0, "x") == 1 && read(pair.fd, &byte, 1) == 1);
    return from;
}

/* Tests that the peers of connections that were not accepted get a reset when the program that
   listens is killed, exits or closes the listener. */
static void ends_before_accept(char way) {
    int ends[2], port;
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        int from = listener_with_queue(&port);
        if (way == 'e') exit(0);
        if (way == 'c') CHECK(close(from) == 0);
        CHECK(write(ends[1], "!", 1) == 1);
        for (;;) pause();
    }
    char byte;
    CHECK(close(ends[1]) == 0 && read(ends[0], &byte, 1) == (way != 'e'));
    if (way == 'k') CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    for (int which = 1; which <= QUEUED; which++) show_told(which);
    if (way == 'c') CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    show_told(0);
}

static void killed_before_accept(void) {
    ends_before_accept('k');
}

static void exits_before_accept(void) {
    ends_before_accept('e');
}

static void closes_before_accept(void) {
    ends_before_accept('c');
}

/* Tests that connections wait on when a child that has the listener too is killed or exits. */
static void child_ends_before_accept(void) {
    int port, from = listener_with_queue(&port), ends[2];
    for (int is_killed = 0; is_killed < 2; is_killed++) {
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            CHECK(write(ends[1], "!", 1) == 1);
            while (is_killed) pause();
            exit(0);
        }
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1);
        if (is_killed) CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, NULL, 0) == child);
    }
    for (int which = 1; which <= QUEUED; which++) {
        int fd = accept(from, NULL, NULL);
        CHECK(fd >= 0 && write(fd, "x", 1) == 1);
        show_received("it waited", which);
    }
}

static const struct test tests[] = {
    {"killed", killed},
    {"killed-before-accept", killed_before_accept},
    {"exits-before-accept", exits_before_accept},
    {"closes-before-accept", closes_before_accept},
    {"child-ends-before-accept", child_ends_before_accept},
};

MAIN(tests)
