/*
 * A TCP proxy: connects to 127.0.0.1:TARGET for each client, and passes bytes, ends and resets on
 * in both directions. What one side does not read pauses the other's input, by mp_pair().
 *
 *   cc proxy.c $(pkg-config --cflags --libs megapipe) -o /tmp/proxy
 *   /tmp/proxy 80 7000
 */
#include <arpa/inet.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Both connections of a client; the cookie of each side points to its own entry. */
struct side {
    struct pair *pair;
    mp_handle handle;
    int ended;
};

struct pair {
    struct side client, server;
    int open;
};

static struct sockaddr_in target;

static void fail(const char *what)
{
    fprintf(stderr, "proxy: %s: %s\n", what, mp_error());
    exit(EXIT_FAILURE);
}

static int listen_on(unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t size = sizeof address;
    int fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen((struct sockaddr *)&address, size, 0);
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        fail("listen");
    printf("listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static struct side *other_of(struct side *side)
{
    return side == &side->pair->client ? &side->pair->server : &side->pair->client;
}

/* Connects to the target for a client. */
static void begin(mp_channel *channel, int fd)
{
    struct pair *pair = calloc(1, sizeof *pair);
    struct side *client, *server;

    if (!pair) {
        mp_refuse(channel, fd, MP_RESET);
        return;
    }
    client = &pair->client, server = &pair->server;
    client->pair = server->pair = pair;
    client->handle = mp_register(channel, fd, client, NULL);
    if (client->handle == MP_NONE) {
        fprintf(stderr, "proxy: a client is refused: %s\n", mp_error());
        mp_refuse(channel, fd, MP_RESET);
        free(pair);
        return;
    }
    pair->open = 1;
    server->handle = mp_connect_to(channel, (struct sockaddr *)&target, sizeof target, server);
    if (server->handle == MP_NONE) {
        fprintf(stderr, "proxy: a client is refused: %s\n", mp_error());
        mp_abort(client->handle);
        return;
    }
    pair->open = 2;
    if (mp_pair(client->handle, server->handle) < 0 || mp_recv(client->handle, MP_REPEAT) < 0
        || mp_recv(server->handle, MP_REPEAT) < 0)
        fail("a new connection");
}

/* Resets both sides: neither may take the last byte that it got for a good end. */
static void reset(struct side *side)
{
    mp_abort(side->handle);
    mp_abort(other_of(side)->handle);
}

/* Passes the end of a side's bytes on, after those that wait; closes both when both have ended. */
static void end(struct side *side)
{
    side->ended = 1;
    if (!other_of(side)->ended) {
        if (mp_shutdown(other_of(side)->handle, SHUT_WR) < 0)
            reset(side);
        return;
    }
    mp_close(side->handle);
    mp_close(other_of(side)->handle);
}

static void serve(mp_channel *channel, const struct mp_event *ev)
{
    struct side *side = ev->cookie;

    if (ev->cmd == MP_ACCEPT && !ev->error) {
        begin(channel, ev->fd);
    } else if (ev->cmd == MP_ACCEPT) {
        /* With MP_MORE, as after EMFILE, the channel accepts again by itself. */
        if (!(ev->flags & MP_MORE) && mp_accept(ev->handle, 0, MP_LWSOCKET) < 0)
            fail("accept");
    } else if (ev->cmd == MP_CLOSE) {
        if (--side->pair->open == 0)
            free(side->pair);
    } else if (ev->error) {
        reset(side);
    } else if (ev->cmd == MP_RECV && ev->size == 0) {
        end(side);
    } else if (ev->cmd == MP_RECV) {
        if (mp_write_buffer(other_of(side)->handle, ev->buffer, 0, ev->size) < 0) {
            mp_release(channel, ev->buffer);
            reset(side);
        }
    }
}

int main(int argc, char **argv)
{
    mp_channel *channel = mp_create(NULL);
    mp_handle listener;
    struct mp_event ev;
    int count;

    if (argc < 2) {
        fprintf(stderr, "usage: proxy TARGET-PORT [PORT]\n");
        return 2;
    }
    if (!channel)
        fail("a channel");
    target.sin_family = AF_INET;
    target.sin_port = htons((uint16_t)atoi(argv[1]));
    target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = mp_register(channel, listen_on(argc > 2 ? (unsigned)atoi(argv[2]) : 7000), NULL,
                           NULL);
    if (mp_accept(listener, 0, MP_LWSOCKET) < 0)
        fail("accept");
    while ((count = mp_dispatch(channel, &ev, -1)) >= 0)
        if (count > 0)
            serve(channel, &ev);
    fail("dispatch");
}
