/*
 * Asks a web server for a page, over TCP in user space, and prints all that it answers.
 *
 *   mtcp_get CONFIG ADDRESS [PORT [PATH]]      docs/mtcp.toml shows what CONFIG can say
 */
#include <arpa/inet.h>
#include <mtcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { PATIENCE_S = 60, ROOM_BYTES = 65536 };

static void fail(const char *what)
{
    fprintf(stderr, "mtcp_get: %s: %s\n", what, mp_error());
    exit(EXIT_FAILURE);
}

/* IPv4 or IPv6; gives the family. */
static int address_of(const char *text, int port, struct sockaddr_storage *address, socklen_t *size)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_port = htons(port);
        *size = sizeof *v4;
        address->ss_family = AF_INET;
    } else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_port = htons(port);
        *size = sizeof *v6;
        address->ss_family = AF_INET6;
    } else {
        fprintf(stderr, "mtcp_get: %s is no address\n", text);
        exit(EXIT_FAILURE);
    }
    return address->ss_family;
}

static void ask(mctx_t mctx, int sockid, const char *host, const char *path)
{
    static const char method[] = "GET ", protocol[] = " HTTP/1.0\r\nHost: ", end[] = "\r\n\r\n";
    struct iovec parts[] = {
        { (void *)method, strlen(method) }, { (void *)path, strlen(path) },
        { (void *)protocol, strlen(protocol) }, { (void *)host, strlen(host) },
        { (void *)end, strlen(end) },
    };

    if (mtcp_writev(mctx, sockid, parts, 5) < 0)
        fail("the request");
    /* There will be no other. */
    if (mtcp_shutdown(mctx, sockid, SHUT_WR) != 0)
        fail("mtcp_shutdown");
}

int main(int argc, char **argv)
{
    struct timeval patience = { .tv_sec = PATIENCE_S };
    struct sockaddr_storage address;
    static char room[ROOM_BYTES];
    socklen_t size;
    ssize_t bytes;
    mctx_t mctx;
    int family, sockid;

    if (argc < 3)
        return fprintf(stderr, "usage: mtcp_get CONFIG ADDRESS [PORT [PATH]]\n"), 2;
    family = address_of(argv[2], argc > 3 ? atoi(argv[3]) : 80, &address, &size);
    if (mtcp_init(argv[1]) != 0 || !(mctx = mtcp_create_context(0)))
        fail(argv[1]);
    /* A blocking socket: this program does one thing after the other. */
    if ((sockid = mtcp_socket(mctx, family, SOCK_STREAM, 0)) < 0)
        fail("mtcp_socket");
    mtcp_setsockopt(mctx, sockid, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    mtcp_setsockopt(mctx, sockid, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (mtcp_connect(mctx, sockid, (struct sockaddr *)&address, size) != 0)
        fail(argv[2]);
    ask(mctx, sockid, argv[2], argc > 4 ? argv[4] : "/");
    while ((bytes = mtcp_read(mctx, sockid, room, sizeof room)) > 0)
        if (fwrite(room, 1, bytes, stdout) != (size_t)bytes)
            return perror("mtcp_get"), 1;
    if (bytes < 0)
        fail("the answer");
    if (mtcp_close(mctx, sockid) != 0 || mtcp_destroy_context(mctx) != 0)
        fail("the end");
    mtcp_destroy();
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
