/*
 * A web server of one file, whatever it is asked for. The head of the answer, which tells the
 * client its own address, shares a segment with the beginning of the file.
 *
 *   cc send_file.c $(pkg-config --cflags --libs megapipe) -o /tmp/send_file
 *   /tmp/send_file 7000 page.html
 *   curl --include http://127.0.0.1:7000/
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <megapipe.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* How long a client may be silent before its request. */
enum { PATIENCE_MS = 10000 };

/* The head is the kernel's from mp_write_more() to MP_CLOSE. */
struct visit {
    mp_handle handle;
    size_t head_size;
    char head[160];
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "send_file: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

/* The file as a member of the channel, and its size. */
static mp_handle open_file(mp_channel *channel, const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    mp_handle file;

    if (fd < 0 || fstat(fd, &status) < 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    *size = (size_t)status.st_size;
    file = mp_register(channel, fd, NULL, NULL);
    if (file < 0)
        fail(path, mp_error());
    return file;
}

/* Accepts connections at 127.0.0.1, with the addresses of their peers; port 0 is any free one. */
static void listen_on(mp_channel *channel, unsigned port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t size = sizeof address;
    int fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = mp_listen((struct sockaddr *)&address, size, 0);
    if (fd < 0)
        fail("listen", mp_error());
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
        perror("send_file: getsockname");
        exit(EXIT_FAILURE);
    }
    printf("listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    fflush(stdout);
    if (mp_accept(mp_register(channel, fd, NULL, NULL), 0, MP_LWSOCKET | MP_WITH_PEER) < 0)
        fail("accept", mp_error());
}

/* Makes the head for a client, whose address came with the connection, and awaits its request. */
static void welcome(mp_channel *channel, const struct mp_event *ev, size_t file_size)
{
    const struct sockaddr_in *peer = ev->data; /* NULL if the driver does not tell it */
    struct visit *visit = malloc(sizeof *visit);
    char ip[INET_ADDRSTRLEN] = "unknown";

    if (!visit)
        fail("malloc", "out of memory: allow the process more");
    if (peer)
        inet_ntop(AF_INET, &peer->sin_addr, ip, sizeof ip);
    visit->head_size = (size_t)snprintf(
        visit->head, sizeof visit->head,
        "HTTP/1.0 200 OK\r\nContent-Length: %zu\r\nX-Client: %s:%u\r\n\r\n", file_size, ip,
        peer ? ntohs(peer->sin_port) : 0u);
    visit->handle = mp_register(channel, ev->fd, visit, NULL);
    if (visit->handle < 0 || mp_set_timeout(visit->handle, MP_IN, PATIENCE_MS) < 0
        || mp_recv(visit->handle, 0) < 0)
        fail("a new connection", mp_error());
}

int main(int argc, char **argv)
{
    mp_channel *channel = mp_create(NULL);
    mp_handle file;
    size_t file_size;

    if (argc != 3)
        fail("usage", "send_file PORT FILE, for example send_file 7000 page.html");
    if (!channel)
        fail("a channel", mp_error());
    file = open_file(channel, argv[2], &file_size);
    listen_on(channel, (unsigned)atoi(argv[1]));
    for (;;) {
        struct mp_event ev;
        struct visit *visit;
        int count = mp_dispatch(channel, &ev, -1);

        if (count < 0)
            fail("dispatch", mp_error());
        if (count == 0)
            continue;
        visit = ev.cookie;
        switch (ev.cmd) {
        case MP_ACCEPT:
            if (!ev.error)
                welcome(channel, &ev, file_size);
            else if (!(ev.flags & MP_MORE))
                fail("accept", strerror(ev.error));
            break;
        case MP_RECV: /* a request; or an error, or the end of a client that has none */
            if (!ev.error && ev.size > 0) {
                mp_release(channel, ev.buffer);
                if (mp_write_more(visit->handle, visit->head, visit->head_size) < 0
                    || mp_send_file(visit->handle, file, 0, file_size) < 0)
                    fail("an answer", mp_error());
            }
            mp_close(visit->handle); /* when all of it is written */
            break;
        case MP_CLOSE:
            free(visit);
            break;
        }
    }
}
