/*
 * An HTTP/1.1 server that says hello: keep-alive, pipelined requests, bounded heads, and an orderly
 * end at SIGINT or SIGTERM, which arrive as completions, too.
 *
 *   cc http_hello.c $(pkg-config --cflags --libs megapipe) -o /tmp/http_hello
 *   /tmp/http_hello 8080 & curl http://127.0.0.1:8080/
 *
 * A connection has one request with the channel at any time: a read of heads, a write of their
 * answers, or its end. So what a peer can make the server keep is one struct connection.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    HEAD_MAX = 4096,   /* bytes of a request's head; more are answered with 431 */
    ANSWERS_MAX = 64,  /* answers to pipelined requests that are written together */
    EVENTS_MAX = 256,
    DRAIN_MAX = 65536, /* bytes of a refused request that are read before its connection ends */
    FAREWELL_MS = 5000 /* how long connections have to take their last answers */
};

#define TEXT "text/plain\r\nContent-Length: "
#define HELLO "HTTP/1.1 200 OK\r\nContent-Type: " TEXT "7\r\n"
#define CLOSE "Connection: close\r\n\r\n"

static const char hello[] = HELLO "\r\nhello!\n";
static const char hello_head[] = HELLO "\r\n";
static const char last_hello[] = HELLO CLOSE "hello!\n";
static const char last_hello_head[] = HELLO CLOSE;
static const char bad[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n" CLOSE;
static const char not_allowed[] =
    "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Length: 0\r\n" CLOSE;
static const char too_large[] =
    "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n" CLOSE;

struct connection {
    mp_handle handle;
    struct connection *next, *previous;
    size_t used;    /* bytes of heads that have not been answered */
    size_t drained;
    int ends;       /* its last answer is being written */
    int drains;     /* what still comes is thrown away */
    int reads;      /* a read is under way */
    char head[HEAD_MAX];
};

struct server {
    mp_channel *channel;
    mp_handle listener, signals;
    struct connection *connections;
    int stops;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "http_hello: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void close_connection(struct connection *peer)
{
    if (mp_close(peer->handle) < 0)
        fail("close", mp_error());
}

static void read_more(struct connection *peer)
{
    peer->reads = 1;
    if (mp_read(peer->handle, peer->head + peer->used, HEAD_MAX - peer->used) < 0)
        close_connection(peer);
}

static void welcome(struct server *server, int fd)
{
    struct connection *peer = calloc(1, sizeof *peer);

    if (!peer)
        fail("a connection", "out of memory: allow the process more");
    peer->handle = mp_register(server->channel, fd, peer, NULL);
    if (peer->handle < 0)
        fail("register", mp_error());
    peer->next = server->connections;
    if (peer->next)
        peer->next->previous = peer;
    server->connections = peer;
    if (server->stops)
        close_connection(peer);
    else
        read_more(peer);
}

static void forget(struct server *server, struct connection *peer)
{
    if (peer->next)
        peer->next->previous = peer->previous;
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        server->connections = peer->next;
    free(peer);
}

/* Whether a head has a field of this name, and with this value if one is given. */
static int has_field(const char *head, size_t size, const char *name, const char *value)
{
    const char *end = head + size, *line = memchr(head, '\n', size);

    while (line && ++line < end) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        size_t length = strlen(name);

        if ((size_t)(end - line) > length && !strncasecmp(line, name, length)
            && line[length] == ':') {
            const char *at = line + length + 1;

            while (at < end && (*at == ' ' || *at == '\t'))
                at++;
            if (!value)
                return 1;
            if ((size_t)(end - at) >= strlen(value) && !strncasecmp(at, value, strlen(value)))
                return 1;
        }
        line = next;
    }
    return 0;
}

/* The answer to one head, and whether it is the connection's last one. */
static const char *answer(const char *head, size_t size, int *last)
{
    const char *line_end = memchr(head, '\r', size);
    int is_get = !strncmp(head, "GET ", 4), is_head = !strncmp(head, "HEAD ", 5);
    int version = 0;

    if (line_end - head > 9 && !strncmp(line_end - 9, " HTTP/1.", 8))
        version = line_end[-1];
    if (version != '0' && version != '1') {
        *last = 1;
        return bad;
    }
    if (!is_get && !is_head) {
        *last = 1;
        return not_allowed;
    }
    /* A body would be taken for the next head: its connection ends. */
    *last |= version == '0' || has_field(head, size, "connection", "close")
             || has_field(head, size, "content-length", NULL)
             || has_field(head, size, "transfer-encoding", NULL);
    if (is_head)
        return *last ? last_hello_head : hello_head;
    return *last ? last_hello : hello;
}

/* Answers all whole heads with one write, or reads on if there is none. */
static void serve(struct server *server, struct connection *peer)
{
    struct iovec answers[ANSWERS_MAX];
    size_t done = 0;
    int count = 0;

    peer->ends |= server->stops;
    while (count < ANSWERS_MAX && !(peer->ends && count > 0)) {
        const char *head = peer->head + done;
        const char *end = memmem(head, peer->used - done, "\r\n\r\n", 4);
        const char *text = too_large;

        if (end) {
            text = answer(head, (size_t)(end - head) + 2, &peer->ends);
            done += (size_t)(end - head) + 4;
        } else if (peer->used - done == HEAD_MAX) {
            peer->ends = 1;
        } else {
            break;
        }
        answers[count++] = (struct iovec){ .iov_base = (void *)text, .iov_len = strlen(text) };
    }
    peer->used -= done;
    memmove(peer->head, peer->head + done, peer->used);
    if (count > 0) {
        if (mp_writev(peer->handle, answers, count) < 0)
            close_connection(peer);
    } else if (peer->ends) {
        close_connection(peer);
    } else {
        read_more(peer);
    }
}

/* A connection that is closed with bytes unread is reset, and its last answer lost. */
static void drain(struct connection *peer, size_t size)
{
    peer->drained += size;
    peer->used = 0;
    if (peer->drained > DRAIN_MAX)
        close_connection(peer);
    else
        read_more(peer);
}

static void stop(struct server *server)
{
    struct connection *peer;

    server->stops = 1;
    mp_close(server->listener);
    /* A read's memory is the kernel's until the read has ended, so it is awaited. */
    for (peer = server->connections; peer; peer = peer->next)
        if (peer->reads)
            mp_cancel(peer->handle, MP_IN);
}

static void handle(struct server *server, const struct mp_event *ev)
{
    struct connection *peer = ev->cookie;

    if (ev->cmd == MP_ACCEPT) {
        /* After EMFILE and its like, with MP_MORE, the channel accepts again by itself. */
        if (!ev->error)
            welcome(server, ev->fd);
        else if (!(ev->flags & MP_MORE) && mp_accept(server->listener, 0, 1) < 0)
            fail("accept", mp_error());
        return;
    }
    if (!peer) {
        if (ev->cmd == MP_READ)
            stop(server);
        return;
    }
    if (ev->cmd == MP_READ)
        peer->reads = 0;
    if (ev->cmd == MP_CLOSE) {
        forget(server, peer);
    } else if (ev->error || (ev->cmd == MP_READ && ev->size == 0)) {
        close_connection(peer);
    } else if (ev->cmd == MP_READ && peer->drains) {
        drain(peer, ev->size);
    } else if (ev->cmd == MP_READ) {
        peer->used += ev->size;
        serve(server, peer);
    } else if (ev->cmd == MP_WRITEV && peer->ends) {
        peer->drains = 1;
        if (mp_shutdown(peer->handle, SHUT_WR) < 0)
            close_connection(peer);
    } else if (ev->cmd == MP_WRITEV) {
        serve(server, peer);
    } else if (ev->cmd == MP_DISCONNECT) {
        drain(peer, 0);
    }
}

static int listen_on(unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t size = sizeof address;
    int one = 1, fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen((struct sockaddr *)&address, size, 0);
    if (fd < 0)
        fail("listen", mp_error());
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0
        || getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        perror("http_hello: listen");
        exit(EXIT_FAILURE);
    }
    printf("listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    struct server server = { .channel = mp_create(NULL) };
    struct signalfd_siginfo signal;
    struct mp_event events[EVENTS_MAX];
    int listener = listen_on(argc > 1 ? (unsigned)atoi(argv[1]) : 8080), signals, waited_ms = 0;
    sigset_t set;

    if (!server.channel)
        fail("a channel", mp_error());
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (signals < 0) {
        perror("http_hello: wait for signals");
        return EXIT_FAILURE;
    }
    server.signals = mp_register(server.channel, signals, NULL, NULL);
    server.listener = mp_register(server.channel, listener, NULL, NULL);
    if (mp_read(server.signals, &signal, sizeof signal) < 0 || mp_accept(server.listener, 0, 1) < 0)
        fail("start", mp_error());
    while (!server.stops || (server.connections && waited_ms < FAREWELL_MS)) {
        int timeout_ms = server.stops ? 100 : -1;
        int count = mp_dispatch_batch(server.channel, events, EVENTS_MAX, timeout_ms);

        if (count < 0)
            fail("dispatch", mp_error());
        if (count == 0 && server.stops)
            waited_ms += timeout_ms;
        for (int i = 0; i < count; i++)
            handle(&server, &events[i]);
    }
    mp_destroy(server.channel);
    while (server.connections)
        forget(&server, server.connections);
    close(signals);
    return EXIT_SUCCESS;
}
