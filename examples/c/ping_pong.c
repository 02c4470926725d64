/*
 * The ping-pong server of the MegaPipe report (Listing 3.1): sends back what it receives.
 *
 *   cc ping_pong.c $(pkg-config --cflags --libs megapipe) -o /tmp/ping_pong
 *   /tmp/ping_pong 7000
 */
#include <arpa/inet.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

enum { READ_SIZE = 4096 };

struct connection {
    mp_handle handle;
    char buffer[READ_SIZE];
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "ping_pong: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

/* An ordinary listening socket, at 127.0.0.1; port 0 stands for a free one. */
static int listen_on(unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t size = sizeof address;
    int fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen((struct sockaddr *)&address, size, 0);
    if (fd < 0)
        fail("listen", mp_error());
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        perror("ping_pong: getsockname");
        exit(EXIT_FAILURE);
    }
    printf("listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void welcome(mp_channel *channel, int fd)
{
    struct connection *peer = malloc(sizeof *peer);

    if (!peer)
        fail("malloc", "out of memory: allow the process more");
    peer->handle = mp_register(channel, fd, peer, NULL);
    if (peer->handle < 0 || mp_read(peer->handle, peer->buffer, READ_SIZE) < 0)
        fail("a new connection", mp_error());
}

int main(int argc, char **argv)
{
    int fd = listen_on(argc > 1 ? (unsigned)atoi(argv[1]) : 7000);
    mp_channel *channel = mp_create(NULL);
    mp_handle listener;

    if (!channel)
        fail("a channel", mp_error());
    listener = mp_register(channel, fd, NULL, NULL);
    if (mp_accept(listener, 0, 1) < 0)
        fail("accept", mp_error());
    for (;;) {
        struct mp_event ev;
        struct connection *peer;
        int count = mp_dispatch(channel, &ev, -1);

        if (count < 0)
            fail("dispatch", mp_error());
        if (count == 0)
            continue;
        peer = ev.cookie;
        if (ev.cmd == MP_ACCEPT && !ev.error)
            welcome(channel, ev.fd);
        else if (ev.cmd == MP_ACCEPT && (ev.flags & MP_MORE))
            continue; /* EMFILE, say: the channel accepts again by itself */
        else if (ev.cmd == MP_READ && !ev.error && ev.size > 0)
            mp_write(peer->handle, peer->buffer, ev.size);
        else if (ev.cmd == MP_WRITE && !ev.error)
            mp_read(peer->handle, peer->buffer, READ_SIZE);
        else if (ev.cmd == MP_CLOSE)
            free(peer);
        else if (peer)
            mp_close(peer->handle);
    }
}
