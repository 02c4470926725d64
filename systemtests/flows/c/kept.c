/* What listening sockets keep of connections that another one at their port gets.
   Usage: kept CASE
   few: a listener that accepts nothing keeps few offers, and takes part when it accepts
   rings: an offer that is kept has no rings any more when its connection is over
   strangers: another user, who has all names of a port first, gets no offer */
#include "rendezvous.h"
#include <sys/stat.h>

enum { CONNECTIONS = 200, KEPT_MAX = 65, BYTES = 20000 };
/* The places of a port, and another user. */
enum { PLACES = 8, ONLY_6 = 256, STRANGER = 12345 };

/* Takes the same port as others, at another address of the loopback network. */
static int bound_at(in_addr_t host, struct sockaddr_in *address) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(host);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)address, sizeof *address) == 0);
    socklen_t size = sizeof *address;
    CHECK(getsockname(fd, (struct sockaddr *)address, &size) == 0);
    return fd;
}

static int listen_at(in_addr_t host, struct sockaddr_in *address) {
    int fd = bound_at(host, address);
    CHECK(listen(fd, 64) == 0);
    return fd;
}

/* Serves a client until it ends. */
static void serve(int listener) {
    int fd = accept(listener, NULL, NULL);
    greet(fd);
    expect(fd, 1, 0, BYTES);
    send_all(fd, 2, 0, BYTES);
    expect_end(fd);
    close(fd);
}

static void ask(const struct sockaddr_in *address) {
    int fd = dial(address);
    greet(fd);
    send_all(fd, 1, 0, BYTES);
    expect(fd, 2, 0, BYTES);
    close(fd);
}

/* Starts a server for so many connections. */
static pid_t start(int listener, int connections) {
    pid_t server = fork();
    CHECK(server >= 0);
    if (server != 0) return server;
    for (int turn = 0; turn < connections; turn++) serve(listener);
    exit(0);
}

/* Is the client of a server for so many connections. */
static void exchange(pid_t server, const struct sockaddr_in *address, int connections) {
    for (int turn = 0; turn < connections; turn++) ask(address);
    int status;
    CHECK(waitpid(server, &status, 0) == server && status == 0);
}

/* Returns how many clients wait at a place of the rendezvous, by unix(7)'s list. */
static int waiting(int port, int place) {
    char line[256], name[64];
    int count = -1; /* the listening socket */
    sprintf(name, "@fable-preload-3/%04x%04x\n", port, place);
    FILE *list = fopen("/proc/net/unix", "r");
    CHECK(list != NULL);
    while (fgets(line, sizeof line, list)) count += strstr(line, name) != NULL;
    fclose(list);
    return count;
}

static void few(void) {
    struct sockaddr_in at_first = {0}, at_second;
    int ready[2], begin[2];
    CHECK(pipe(ready) == 0 && pipe(begin) == 0);
    pid_t idle = fork();
    CHECK(idle >= 0);
    if (idle == 0) {
        char byte;
        close(begin[1]);
        int first = listen_at(INADDR_LOOPBACK + 1, &at_first);
        CHECK(write(ready[1], &at_first, sizeof at_first) == sizeof at_first);
        CHECK(read(begin[0], &byte, 1) == 0);
        for (int turn = 0; turn < 2; turn++) serve(first);
        exit(0);
    }
    CHECK(read(ready[0], &at_first, sizeof at_first) == sizeof at_first);
    at_second = at_first;
    int second = listen_at(INADDR_LOOPBACK, &at_second);
    exchange(start(second, CONNECTIONS), &at_second, CONNECTIONS);
    int kept = waiting(ntohs(at_first.sin_port), 0);
    if (kept < 1 || kept > KEPT_MAX) {
        dprintf(2, "it keeps %d offers\n", kept);
        _exit(1);
    }
    close(begin[1]);
    /* The first connection finds no room for its offer, and makes some. */
    exchange(idle, &at_first, 2);
}

/* Takes a place of the rendezvous at a port. */
static int take(const struct sockaddr_in *address, int place) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int port = ntohs(address->sin_port);
    int length = sprintf(name.sun_path + 1, "fable-preload-3/%04x%04x", port, place);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + 1 + length;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, size) == 0);
    CHECK(listen(fd, CONNECTIONS) == 0);
    return fd;
}

/* Another user takes the names before the port has a listener. */
static void strangers(void) {
    struct sockaddr_in address = {0};
    int reserved = bound_at(INADDR_LOOPBACK, &address), names[2 * PLACES], visitors = 0;
    CHECK(seteuid(STRANGER) == 0);
    for (int at = 0; at < 2 * PLACES; at++)
        names[at] = take(&address, at < PLACES ? at : ONLY_6 + at - PLACES);
    CHECK(seteuid(0) == 0 && listen(reserved, 64) == 0);
    exchange(start(reserved, CONNECTIONS), &address, CONNECTIONS);
    for (int at = 0; at < 2 * PLACES; at++) {
        char byte;
        for (int fd; (fd = accept(names[at], NULL, NULL)) >= 0; visitors++) {
            CHECK(recv(fd, &byte, 1, 0) == 0);
            close(fd);
        }
    }
    CHECK(visitors > 0);
}

/* Takes the place of a listener that accepts nothing, and looks at what it keeps. */
static void rings(void) {
    struct sockaddr_in address = {0};
    int listener = listen_at(INADDR_LOOPBACK, &address), place = take(&address, 1);
    exchange(start(listener, CONNECTIONS), &address, CONNECTIONS);
    for (int turn = 0; turn < CONNECTIONS; turn++) {
        char content[64], control[CMSG_SPACE(sizeof(int))];
        struct iovec entry = {content, sizeof content};
        struct msghdr message = {.msg_iov = &entry,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        int visitor = accept(place, NULL, NULL), memory;
        CHECK(visitor >= 0 && recvmsg(visitor, &message, 0) == sizeof(struct offer));
        CHECK(CMSG_FIRSTHDR(&message) != NULL);
        memcpy(&memory, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof memory);
        struct stat status;
        CHECK(fstat(memory, &status) == 0 && status.st_size > sysconf(_SC_PAGESIZE));
        if (status.st_blocks * 512 > sysconf(_SC_PAGESIZE)) {
            dprintf(2, "offer %d has %lld bytes\n", turn, (long long)status.st_blocks * 512);
            _exit(1);
        }
        close(memory);
        close(visitor);
    }
}

static const struct test_case cases[] = {{"few", few}, {"rings", rings}, {"strangers", strangers}};

int main(int count, char **arguments) {
    CHECK(count == 2);
    alarm(600);
    return run_case(arguments[1], cases, COUNT(cases));
}
