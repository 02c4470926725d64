/*
 * Answers every byte with itself, over TCP in user space: one thread and one stack for each core.
 *
 *   mtcp_echo CONFIG [PORT]      docs/mtcp.toml shows what CONFIG can say; SIGINT or SIGTERM ends it
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <mtcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CORES_MAX = 256, EVENTS_MAX = 64, BACKLOG = 1024, ROOM_BYTES = 16384 };

struct connection {
    int sockid;
    /* What was read and not yet written. */
    size_t begin, end;
    char data[ROOM_BYTES];
};

static volatile sig_atomic_t is_over;
static uint16_t port = 7;
static pthread_barrier_t ready;

static void end(int signum)
{
    (void)signum;
    is_over = 1;
}

static void fail(const char *what)
{
    fprintf(stderr, "mtcp_echo: %s: %s\n", what, mp_error());
    exit(EXIT_FAILURE);
}

static void give_up(mctx_t mctx, struct connection *connection)
{
    mtcp_close(mctx, connection->sockid);
    free(connection);
}

static void watch(mctx_t mctx, int epoll, int op, struct connection *connection, uint32_t events)
{
    struct mtcp_epoll_event event = { .events = events, .data.ptr = connection };

    if (mtcp_epoll_ctl(mctx, epoll, op, connection->sockid, &event) != 0)
        fail("mtcp_epoll_ctl");
}

static void accept_all(mctx_t mctx, int epoll, int listener)
{
    int sockid;

    while ((sockid = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
        struct connection *connection = calloc(1, sizeof *connection);

        if (!connection) {
            mtcp_abort(mctx, sockid);
            continue;
        }
        connection->sockid = sockid;
        mtcp_setsock_nonblock(mctx, sockid);
        watch(mctx, epoll, MTCP_EPOLL_CTL_ADD, connection, MTCP_EPOLLIN);
    }
}

/* Reads and writes until one of both has to wait; 0 if the connection goes on. */
static int serve(mctx_t mctx, int epoll, struct connection *connection)
{
    ssize_t bytes;

    for (;;) {
        while (connection->begin < connection->end) {
            bytes = mtcp_write(mctx, connection->sockid, connection->data + connection->begin,
                               connection->end - connection->begin);
            if (bytes < 0 && errno == EAGAIN) {
                watch(mctx, epoll, MTCP_EPOLL_CTL_MOD, connection, MTCP_EPOLLOUT);
                return 0;
            }
            if (bytes < 0)
                return -1;
            connection->begin += bytes;
        }
        bytes = mtcp_read(mctx, connection->sockid, connection->data, ROOM_BYTES);
        if (bytes < 0 && errno == EAGAIN) {
            watch(mctx, epoll, MTCP_EPOLL_CTL_MOD, connection, MTCP_EPOLLIN);
            return 0;
        }
        if (bytes <= 0)
            return -1;
        connection->begin = 0;
        connection->end = bytes;
    }
}

static int begin_to_listen(mctx_t mctx)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);

    if (listener < 0 || mtcp_setsock_nonblock(mctx, listener) != 0
        || mtcp_bind(mctx, listener, (struct sockaddr *)&address, sizeof address) != 0
        || mtcp_listen(mctx, listener, BACKLOG) != 0)
        fail("cannot listen");
    return listener;
}

static void *run(void *core)
{
    mctx_t mctx = mtcp_create_context((int)(intptr_t)core);
    struct mtcp_epoll_event events[EVENTS_MAX], incoming = { .events = MTCP_EPOLLIN };
    int listener, epoll, count;

    if (!mctx)
        fail("no context");
    listener = begin_to_listen(mctx);
    epoll = mtcp_epoll_create1(mctx, 0);
    /* The listener is what has no connection. */
    if (epoll < 0 || mtcp_epoll_ctl(mctx, epoll, MTCP_EPOLL_CTL_ADD, listener, &incoming) != 0)
        fail("no epoll");
    pthread_barrier_wait(&ready);
    while (!is_over) {
        count = mtcp_epoll_wait(mctx, epoll, events, EVENTS_MAX, -1);
        if (count < 0 && errno != EINTR)
            fail("mtcp_epoll_wait");
        for (int at = 0; at < count; at++) {
            struct connection *connection = events[at].data.ptr;

            if (!connection)
                accept_all(mctx, epoll, listener);
            else if (serve(mctx, epoll, connection) != 0)
                give_up(mctx, connection);
        }
    }
    mtcp_destroy_context(mctx);
    return NULL;
}

int main(int argc, char **argv)
{
    static pthread_t threads[CORES_MAX];
    struct mtcp_conf conf;

    if (argc < 2)
        return fprintf(stderr, "usage: mtcp_echo CONFIG [PORT]\n"), 2;
    if (argc > 2)
        port = atoi(argv[2]);
    if (mtcp_init(argv[1]) != 0 || mtcp_getconf(&conf) != 0)
        fail(argv[1]);
    mtcp_register_signal(SIGINT, end);
    mtcp_register_signal(SIGTERM, end);
    pthread_barrier_init(&ready, NULL, conf.num_cores + 1);
    for (int core = 0; core < conf.num_cores; core++)
        if (pthread_create(&threads[core], NULL, run, (void *)(intptr_t)core) != 0)
            return perror("mtcp_echo: pthread_create"), 1;
    pthread_barrier_wait(&ready);
    printf("listening on 0.0.0.0:%d\n", port);
    fflush(stdout);
    for (int core = 0; core < conf.num_cores; core++)
        pthread_join(threads[core], NULL);
    mtcp_destroy();
    return EXIT_SUCCESS;
}
