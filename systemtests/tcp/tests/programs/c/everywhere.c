/* Tests a listener on all addresses: it accepts connections of this host over loopback, and of the
   peer over the network, with every way of waiting. The output is the same on the kernel and on the
   stack. Usage: everywhere CASE OWN PEER NETWORK */
#include "sockets.h"
#include <pthread.h>

static struct sockaddr_in6 near6(int port) {
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    to.sin6_addr.s6_addr[15] = 1;
    return to;
}

static struct sockaddr_in near(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static int new_listener(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    struct sockaddr_in all = {.sin_family = AF_INET};
    int yes = 1;
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(bind(fd, (struct sockaddr *)&all, sizeof all) == 0);
    return fd;
}

static int everywhere(int flags) {
    int fd = new_listener(flags);
    CHECK(listen(fd, 64) == 0);
    moving = fd;
    return fd;
}

/* Opens a connection over loopback; returns its descriptor or the error of connect(2). */
static int call(int port) {
    struct sockaddr_in to = near(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Prints who has connected, and checks that bytes pass in both directions: `other` is this side's
   end of the connection, or -1 for the peer's. */
static void greet(int fd, int other) {
    struct sockaddr_in from, name;
    socklen_t size = sizeof from;
    char room[8] = "";
    CHECK(fd >= 0);
    CHECK(getpeername(fd, (struct sockaddr *)&from, &size) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&name, &size) == 0);
    int is_near = from.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    CHECK(is_near == (name.sin_addr.s_addr == htonl(INADDR_LOOPBACK)));
    CHECK(is_near == (other >= 0));
    CHECK(write(fd, "hello", 5) == 5);
    if (other >= 0) {
        CHECK(recv(other, room, 5, MSG_WAITALL) == 5 && memcmp(room, "hello", 5) == 0);
        CHECK(write(other, "world", 5) == 5);
    } else {
        CHECK(peer(RECEIVE, 5) == 'h' + 'e' + 'l' + 'l' + 'o');
        peer(SEND, 5);
    }
    CHECK(recv(fd, room, 5, MSG_WAITALL) == 5);
    printf(" %s", is_near ? "near" : "far");
    close(fd);
    if (other >= 0)
        close(other);
    else
        peer(CLOSE, 0);
}

static int take(int listener) {
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    int fd = accept4(listener, (struct sockaddr *)&from, &size, SOCK_CLOEXEC);
    CHECK(fd < 0 || (from.sin_family == AF_INET && size == sizeof from));
    CHECK(fd < 0 || (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
    CHECK(fd < 0 || fcntl(fd, F_GETFD) == FD_CLOEXEC);
    return fd;
}

/* Tests a blocking accept(2) when there is a connection already. */
static void waits_for_both(void) {
    int fd = everywhere(0), port = port_of(fd);
    for (int round = 0; round < 3; round++) {
        int other = call(port);
        greet(take(fd), other);
        peer(CONNECT, port);
        greet(take(fd), -1);
    }
    putchar('\n');
}

static void *call_later(void *port) {
    int fd = call(*(int *)port);
    CHECK(fd >= 0);
    return (void *)(long)fd;
}

/* Tests accept(2), poll(2) and epoll_wait(2) that may sleep when the connection arrives. */
static void sleeps_for_both(void) {
    int fd = everywhere(0), port = port_of(fd), set = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN}, got;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted) == 0);
    for (int round = 0; round < 30; round++) {
        struct pollfd wait = {fd, POLLIN, 0};
        pthread_t thread;
        void *other;
        CHECK(pthread_create(&thread, NULL, call_later, &port) == 0);
        if (round % 3 == 1) CHECK(poll(&wait, 1, LIMIT_MS) == 1);
        if (round % 3 == 2) CHECK(epoll_wait(set, &got, 1, LIMIT_MS) == 1);
        int new = take(fd);
        CHECK(pthread_join(thread, &other) == 0);
        greet(new, (int)(long)other);
        ask(CONNECT, port);
        if (round % 3 == 1) CHECK(poll(&wait, 1, LIMIT_MS) == 1);
        if (round % 3 == 2) CHECK(epoll_wait(set, &got, 1, LIMIT_MS) == 1);
        new = take(fd);
        answered();
        greet(new, -1);
    }
    putchar('\n');
}

static int selected(int fd) {
    fd_set set;
    struct timeval none = {0, 0};
    FD_ZERO(&set);
    FD_SET(fd, &set);
    CHECK(select(fd + 1, &set, NULL, NULL, &none) >= 0);
    return FD_ISSET(fd, &set);
}

/* Tests the calls that report a waiting connection. */
static void is_told(void) {
    int fd = everywhere(SOCK_NONBLOCK), port = port_of(fd);
    for (int far = 0; far < 2; far++) {
        tell_events(fd);
        tell("select", selected(fd));
        tell("accept", take(fd));
        int other = far ? -1 : call(port);
        if (far) peer(CONNECT, port);
        await(fd, POLLIN);
        tell_events(fd);
        tell("select", selected(fd));
        greet(take(fd), other);
    }
    tell_events(fd);
    putchar('\n');
}

static void look(int set, const char *when) {
    struct epoll_event got[4];
    int count = epoll_wait(set, got, 4, 0);
    CHECK(count >= 0);
    printf(" %s:%d", when, count);
    for (int index = 0; index < count; index++) {
        CHECK(got[index].data.u64 == 77);
        name_events("", got[index].events);
    }
}

/* Tests epolls in all modes; `early`: the socket is added before it listens. */
static void watched(unsigned mode, int early) {
    int fd = new_listener(SOCK_NONBLOCK), set = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN | mode, .data.u64 = 77};
    printf("mode %x early %d:", mode, early);
    if (early) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted) == 0);
    CHECK(listen(fd, 64) == 0);
    if (!early) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted) == 0);
    moving = fd;
    int port = port_of(fd);
    for (int far = 0; far < 2; far++) {
        look(set, "none");
        int other = far ? -1 : call(port);
        if (far) peer(CONNECT, port);
        await(fd, POLLIN);
        look(set, "one");
        look(set, "again");
        greet(take(fd), other);
        look(set, "taken");
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &wanted) == 0);
    }
    look(set, "modified");
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
    int other = call(port);
    await(fd, POLLIN);
    look(set, "deleted");
    greet(take(fd), other);
    tell("twice", epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    putchar('\n');
    close(set);
    close(fd);
}

static void is_told_by_epolls(void) {
    static const unsigned MODES[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    for (int mode = 0; mode < COUNT(MODES); mode++)
        for (int early = 0; early < 2; early++)
            watched(MODES[mode], early);
}

static void *accept_there(void *fd) {
    int new = accept(*(int *)fd, NULL, NULL);
    return (void *)(long)(new < 0 ? -errno : new);
}

/* Tests that closing and shutting down end listening everywhere, and queued connections. */
static void ends(void) {
    int fd = everywhere(0), port = port_of(fd);
    char room[4];
    int waiting = call(port);
    CHECK(waiting >= 0);
    close(fd);
    tell("queued", recv(waiting, room, 1, 0));
    tell("closed", call(port));
    fd = everywhere(0), port = port_of(fd);
    int twin = dup(fd);
    close(fd);
    moving = twin;
    int other = call(port);
    greet(take(twin), other);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, accept_there, &twin) == 0);
    tell("shutdown", shutdown(twin, SHUT_RDWR));
    CHECK(pthread_join(thread, &result) == 0);
    printf(" accept %ld", (long)result);
    tell("ended", call(port));
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    CHECK(getsockname(twin, (struct sockaddr *)&name, &size) == 0);
    close(twin);
    /* The port is free again. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(port)};
    int yes = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(bind(fd, (struct sockaddr *)&all, sizeof all) == 0);
    tell("listen", listen(fd, 8));
    moving = fd;
    /* Listens a second time, with options set in between, which new connections inherit. */
    CHECK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes) == 0);
    tell("listen", listen(fd, 64));
    other = call(port);
    int new = take(fd), keeps = 0;
    size = sizeof keeps;
    CHECK(getsockopt(new, SOL_SOCKET, SO_KEEPALIVE, &keeps, &size) == 0);
    printf(" keeps %d", keeps);
    greet(new, other);
    putchar('\n');
}

/* Tests that another socket that listens where the kernel's does is refused. */
static void is_alone(void) {
    int one = everywhere(0), two = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(port_of(one))};
    tell("bind", bind(two, (struct sockaddr *)&all, sizeof all));
    close(one);
    close(two);
    for (int index = 0; index < 2; index++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
        tell("bind", bind(fd, (struct sockaddr *)&all, sizeof all));
        tell("listen", listen(fd, 8));
        moving = fd;
        int other = call(ntohs(all.sin_port));
        CHECK(other >= 0);
        close(other);
    }
    putchar('\n');
}

/* Tests an IPv6 socket that accepts both families. */
static void takes_both_families(void) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0), no = 0;
    struct sockaddr_in6 all = {.sin6_family = AF_INET6}, from;
    CHECK(fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0);
    CHECK(bind(fd, (struct sockaddr *)&all, sizeof all) == 0 && listen(fd, 8) == 0);
    moving = fd;
    socklen_t size = sizeof all;
    CHECK(getsockname(fd, (struct sockaddr *)&all, &size) == 0);
    struct sockaddr_in6 to6 = near6(ntohs(all.sin6_port));
    struct sockaddr_in to = near(ntohs(all.sin6_port));
    int by6 = socket(AF_INET6, SOCK_STREAM, 0), by4 = socket(AF_INET, SOCK_STREAM, 0);
    char text[INET6_ADDRSTRLEN], room[4];
    for (int index = 0; index < 3; index++) {
        if (index == 0) CHECK(connect(by6, (struct sockaddr *)&to6, sizeof to6) == 0);
        if (index == 1) CHECK(connect(by4, (struct sockaddr *)&to, sizeof to) == 0);
        if (index == 2) peer(CONNECT, ntohs(to.sin_port));
        size = sizeof from;
        int new = accept(fd, (struct sockaddr *)&from, &size);
        CHECK(new >= 0 && size == sizeof from && from.sin6_family == AF_INET6);
        printf(" %s", index == 2 ? "far" : inet_ntop(AF_INET6, &from.sin6_addr, text, sizeof text));
        CHECK(write(new, "x", 1) == 1);
        if (index < 2) CHECK(recv(index == 0 ? by6 : by4, room, 1, 0) == 1);
        if (index == 2) CHECK(peer(RECEIVE, 1) == 'x');
    }
    putchar('\n');
}

static const char HEIR[] = "as-the-heir";

/* Tests another program that inherits the listener by exec(2) and waits in accept(2). */
static int inherit(const char *number) {
    int fd = accept(atoi(number), NULL, NULL);
    CHECK(fd >= 0 && write(fd, "heir", 4) == 4);
    return 0;
}

static void is_handed_on(void) {
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        int fd = everywhere(0), port = port_of(fd), status;
        /* The changes that waiting made are reverted. */
        int other = call(port);
        greet(take(fd), other);
        set_nonblocking(fd, 1);
        tell("accept", take(fd));
        set_nonblocking(fd, nonblocking);
        char number[16], room[4];
        snprintf(number, sizeof number, "%d", fd);
        pid_t child = fork();
        if (child == 0) {
            unsetenv("LD_PRELOAD");
            /* The child would report the refusal on standard error. */
            if (nonblocking) close(2);
            execl("/proc/self/exe", "heir", HEIR, number, NULL);
            _exit(1);
        }
        CHECK(child > 0);
        if (nonblocking) {
            CHECK(waitpid(child, &status, 0) == child);
        } else {
            other = call(port);
            CHECK(other >= 0 && recv(other, room, 4, MSG_WAITALL) == 4);
            CHECK(waitpid(child, &status, 0) == child);
            close(other);
        }
        printf(" nonblocking %d status %d", nonblocking, status);
        close(fd);
    }
    putchar('\n');
}

static const struct test_case CASES[] = {
    {"waits", waits_for_both}, {"sleeps", sleeps_for_both},
    {"told", is_told},         {"epolls", is_told_by_epolls},
    {"ends", ends},            {"alone", is_alone},
    {"families", takes_both_families}, {"handed", is_handed_on},
};

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], HEIR) == 0) return inherit(arguments[2]);
    prepare(count, arguments);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
