// A server that echoes, and its client, as other people write them: the scenarios run it under the
// preload libraries and plainly.
//
//   echo server ADDRESS PORT        prints `ready`, and ends after a connection that begins with Q
//   echo client ADDRESS PORT [stop] exchanges data with a server and compares it
//
// Exit status: 0, 1 with a message, or 3 if bytes were wrong. getppid() marks the begin and the end
// for the harness.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM (64 << 10)
#define CONNECTIONS 16
#define TIMEOUT_MS 10000

static void fail(const char *what)
{
    fprintf(stderr, "echo: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in address_of(char **words)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
    inet_pton(AF_INET, words[0], &address.sin_addr);
    return address;
}

struct connection {
    int socket, begun, ending;
    size_t from, to;
    char bytes[ROOM];
};

static int moved(ssize_t count)
{
    return count >= 0 || errno == EAGAIN || errno == EINTR;
}

// Moves what it can; returns 0 when the connection has ended.
static int serve(struct connection *c, int *stop)
{
    if (c->from == c->to && !c->ending) {
        ssize_t count = recv(c->socket, c->bytes, ROOM, 0);
        if (!moved(count)) {
            perror("echo: recv");
            return 0;
        }
        if (count == 0)
            return 0;
        if (count > 0) {
            if (!c->begun && c->bytes[0] == 'Q')
                *stop = 1;
            c->begun = 1;
            c->from = 0;
            c->to = count;
        }
    }
    if (c->from < c->to) {
        ssize_t count = send(c->socket, c->bytes + c->from, c->to - c->from, MSG_NOSIGNAL);
        if (!moved(count)) {
            perror("echo: send");
            return 0;
        }
        if (count > 0)
            c->from += count;
    }
    return 1;
}

static void watch(int set, int operation, struct connection *c)
{
    struct epoll_event event = { .data.ptr = c };
    event.events = c->from < c->to ? EPOLLOUT : EPOLLIN;
    if (epoll_ctl(set, operation, c->socket, &event))
        perror("echo: epoll_ctl");
}

static void take(int set, int listener, struct connection *all)
{
    int taken = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (taken < 0) {
        if (!moved(taken) && errno != EMFILE && errno != ENFILE && errno != ENOBUFS
            && errno != ENOMEM && errno != ECONNABORTED)
            fail("accept4");
        return;
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        if (all[i].socket < 0) {
            memset(&all[i], 0, sizeof all[i]);
            all[i].socket = taken;
            struct epoll_event event = { .data.ptr = &all[i], .events = EPOLLIN };
            if (epoll_ctl(set, EPOLL_CTL_ADD, taken, &event)) {
                perror("echo: epoll_ctl");
                all[i].socket = -1;
                break;
            }
            return;
        }
    }
    close(taken);
}

static int server(char **words)
{
    struct sockaddr_in address = address_of(words);
    struct connection *all = calloc(CONNECTIONS, sizeof *all);
    if (!all)
        fail("calloc");
    for (int i = 0; i < CONNECTIONS; i++)
        all[i].socket = -1;
    int one = 1, stop = 0, set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0)
        fail("epoll_create1");
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0)
        fail("socket");
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one))
        fail("setsockopt");
    if (bind(listener, (void *)&address, sizeof address))
        fail("bind");
    if (listen(listener, 16))
        fail("listen");
    struct epoll_event event = { .events = EPOLLIN };
    if (epoll_ctl(set, EPOLL_CTL_ADD, listener, &event))
        fail("epoll_ctl");
    puts("ready");
    fflush(stdout);
    while (!stop) {
        if (epoll_wait(set, &event, 1, -1) != 1) {
            if (errno != EINTR)
                fail("epoll_wait");
            continue;
        }
        struct connection *c = event.data.ptr;
        if (!c) {
            take(set, listener, all);
        } else if (serve(c, &stop)) {
            watch(set, EPOLL_CTL_MOD, c);
        } else {
            close(c->socket);
            c->socket = -1;
        }
    }
    for (int i = 0; i < CONNECTIONS; i++)
        if (all[i].socket >= 0)
            close(all[i].socket);
    close(listener);
    close(set);
    free(all);
    return 0;
}

static char expected(size_t position)
{
    return position ? (char)(position * 131 + position / 251) : 'E';
}

// Exchanges `length` bytes in both directions at once.
static void exchange(int socket, size_t begin, size_t length)
{
    static char bytes[ROOM];
    size_t sent = 0, received = 0;
    while (received < length) {
        struct pollfd wait = { .fd = socket, .events = POLLIN | (sent < length ? POLLOUT : 0) };
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        int ready = poll(&wait, 1, TIMEOUT_MS);
        clock_gettime(CLOCK_MONOTONIC, &after);
        // A library may find at the end of the time what nobody has woken it for.
        if (ready == 0 || (after.tv_sec - before.tv_sec) * 1000 >= TIMEOUT_MS) {
            fprintf(stderr, "echo: poll: timed out\n");
            exit(4);
        }
        if (ready < 0 && errno != EINTR)
            fail("poll");
        if (ready < 0)
            continue;
        if (wait.revents & POLLOUT) {
            size_t part = length - sent < ROOM ? length - sent : ROOM;
            for (size_t i = 0; i < part; i++)
                bytes[i] = expected(begin + sent + i);
            ssize_t count = send(socket, bytes, part, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (!moved(count))
                fail("send");
            sent += count > 0 ? count : 0;
        }
        if (wait.revents & (POLLIN | POLLHUP | POLLERR)) {
            ssize_t count = recv(socket, bytes, ROOM, MSG_DONTWAIT);
            if (!moved(count))
                fail("recv");
            if (count == 0) {
                fprintf(stderr, "echo: recv: end of the stream\n");
                exit(1);
            }
            for (ssize_t i = 0; i < count; i++)
                if (bytes[i] != expected(begin + received + i))
                    exit(3);
            received += count > 0 ? count : 0;
        }
    }
}

static int client(char **words, int stop)
{
    struct sockaddr_in address = address_of(words);
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one < 0)
        fail("socket");
    if (connect(one, (void *)&address, sizeof address))
        fail("connect");
    if (stop) {
        if (send(one, "Q", 1, MSG_NOSIGNAL) != 1)
            fail("send");
    } else {
        exchange(one, 0, 100);
        exchange(one, 100, 20000);
        exchange(one, 20100, 300000);
    }
    if (shutdown(one, SHUT_WR))
        fail("shutdown");
    char rest[2];
    ssize_t count;
    do
        count = recv(one, rest, sizeof rest, 0);
    while (count < 0 && errno == EINTR);
    if (count < 0 && !stop)
        fail("recv");
    if (count > (stop ? 1 : 0))
        exit(3);
    close(one);
    return 0;
}

int main(int count, char **words)
{
    getppid();
    int status = 2;
    if (count >= 4)
        status = strcmp(words[1], "server") ? client(words + 2, count > 4) : server(words + 2);
    getppid();
    return status;
}
