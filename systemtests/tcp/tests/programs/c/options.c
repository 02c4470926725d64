/* Prints options and addresses of sockets: the output is the same on the kernel and on the stack.
   Usage: options CASE OWN PEER NETWORK */
#include "sockets.h"
#include <sys/syscall.h>

static int set(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value);
}

static int get(int fd, int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, level, name, &value, &size) < 0 ? -1 : value;
}

static int bind_to(int fd, struct sockaddr_in address) {
    return bind(fd, (struct sockaddr *)&address, sizeof address);
}

/* Tests two sockets on one address, with every choice of options. */
static void reuse(void) {
    for (int choice = 0; choice < 32; choice++) {
        int first = socket(AF_INET, SOCK_STREAM, 0), second = socket(AF_INET, SOCK_STREAM, 0);
        for (int which = 0; which < 2; which++) {
            int fd = which ? second : first, bits = choice >> 2 * which;
            CHECK(set(fd, SOL_SOCKET, SO_REUSEADDR, bits & 1) == 0);
            CHECK(set(fd, SOL_SOCKET, SO_REUSEPORT, bits >> 1 & 1) == 0);
        }
        printf("choice %d:", choice);
        CHECK(bind_to(first, at(own, 0)) == 0);
        if (choice & 16) CHECK(listen(first, 8) == 0);
        tell("port", get(first, SOL_SOCKET, SO_REUSEPORT));
        tell("bind", bind_to(second, at(own, port_of(first))));
        if (!(choice & 16)) tell("listen", listen(first, 8));
        tell("listen", listen(second, 8));
        putchar('\n');
        close(first);
        close(second);
    }
}

/* Tests that connections are distributed among the listeners of a process, and none is lost. */
static void shared(void) {
    enum { LISTENERS = 3, CONNECTIONS = 60 };
    struct pollfd list[LISTENERS];
    int port = 0, got[LISTENERS] = {0}, all = 0;
    for (int index = 0; index < LISTENERS; index++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(set(fd, SOL_SOCKET, SO_REUSEPORT, 1) == 0 && bind_to(fd, at(own, port)) == 0);
        CHECK(listen(fd, 64) == 0);
        port = port_of(fd);
        list[index] = (struct pollfd){fd, POLLIN, 0};
    }
    moving = list[0].fd;
    for (int times = 0; times < CONNECTIONS; times++) {
        peer(CONNECT, port);
        CHECK(poll(list, LISTENERS, LIMIT_MS) == 1);
        for (int index = 0; index < LISTENERS; index++) {
            if (!list[index].revents) continue;
            int fd = accept(list[index].fd, NULL, NULL);
            CHECK(fd >= 0);
            got[index]++;
            all++;
            reset(fd);
        }
        peer(CLOSE, 0);
    }
    tell("all", all);
    tell("each", got[0] > 0 && got[1] > 0 && got[2] > 0);
    close(list[1].fd);
    list[1].fd = -1;
    for (int times = 0; times < CONNECTIONS; times++) {
        peer(CONNECT, port);
        CHECK(poll(list, LISTENERS, LIMIT_MS) == 1);
        close(accept(list[list[0].revents ? 0 : 2].fd, NULL, NULL));
        peer(CLOSE, 0);
    }
    putchar('\n');
}

static void segments(void) {
    static const int SIZES[] = {0, 1, 87, 100, 500, 1000, 1460, 9000, 32767, 32768, -1};
    for (int index = 0; index < COUNT(SIZES); index++)
        for (int way = 0; way < 3; way++) {
            struct sockaddr_in to = at(far, peer(LISTEN, 0));
            int fd = socket(AF_INET, SOCK_STREAM, 0), accepted = -1;
            if (way == 1) CHECK(bind_to(fd, at(own, 0)) == 0);
            printf("size %d way %d:", SIZES[index], way);
            tell("set", set(fd, IPPROTO_TCP, TCP_MAXSEG, SIZES[index]));
            tell("before", get(fd, IPPROTO_TCP, TCP_MAXSEG));
            if (way == 2) {
                CHECK(bind_to(fd, at(own, 0)) == 0 && listen(fd, 1) == 0);
                moving = fd;
                peer(CONNECT, port_of(fd));
                tell("listens", get(fd, IPPROTO_TCP, TCP_MAXSEG));
                accepted = accept(fd, NULL, NULL);
            } else {
                CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
                moving = fd;
                peer(ACCEPT, 0);
            }
            int end = accepted >= 0 ? accepted : fd;
            char data[8000] = "";
            tell("after", get(end, IPPROTO_TCP, TCP_MAXSEG));
            CHECK(write(end, data, sizeof data) == sizeof data);
            peer(RECEIVE, sizeof data);
            tell("most", peer(MOST, 0));
            tell("set", set(end, IPPROTO_TCP, TCP_MAXSEG, 700));
            tell("after", get(end, IPPROTO_TCP, TCP_MAXSEG));
            putchar('\n');
            close(end);
            close(fd);
        }
}

static struct sockaddr_in6 mapped(struct sockaddr_in address, int port) {
    struct sockaddr_in6 made = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    made.sin6_addr.s6_addr[10] = made.sin6_addr.s6_addr[11] = 0xff;
    memcpy(made.sin6_addr.s6_addr + 12, &address.sin_addr, 4);
    return made;
}

static void tell_name(const char *what, int fd,
                      int (*name)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in6 address = {0};
    socklen_t size = sizeof address;
    char text[64] = "";
    tell(what, name(fd, (struct sockaddr *)&address, &size));
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
    printf(":%d:%s:%s", address.sin6_family, text, address.sin6_port ? "port" : "none");
}

/* Tests IPv4-mapped IPv6 addresses. */
static void mapped_addresses(void) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    for (int choice = 0; choice < 12; choice++) {
        int fd = socket(choice % 3 == 2 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
        struct sockaddr_in6 address = mapped(choice < 6 ? own : any, 0);
        if (choice % 3 == 1) CHECK(set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) == 0);
        printf("choice %d:", choice);
        int bound = bind(fd, (struct sockaddr *)&address, sizeof address);
        tell("bind", bound);
        tell("again", bind(fd, (struct sockaddr *)&address, sizeof address));
        tell_name("name", fd, getsockname);
        if (choice / 3 % 2 == 0 && bound == 0) {
            CHECK(listen(fd, 1) == 0);
            moving = fd;
            struct sockaddr_in6 name;
            socklen_t size = sizeof name;
            CHECK(getsockname(fd, (struct sockaddr *)&name, &size) == 0);
            peer(CONNECT, ntohs(name.sin6_port));
            int accepted = accept(fd, NULL, NULL);
            tell_name("accepted", accepted, getsockname);
            tell_name("peer", accepted, getpeername);
            close(accepted);
        } else if (choice % 3 != 2) {
            struct sockaddr_in6 to = mapped(far, peer(LISTEN, 0));
            int connected = connect(fd, (struct sockaddr *)&to, sizeof to);
            tell("connect", connected);
            if (connected == 0) {
                moving = fd;
                peer(ACCEPT, 0);
                tell_name("name", fd, getsockname);
                tell_name("peer", fd, getpeername);
            }
        }
        putchar('\n');
        close(fd);
    }
}

/* Tests options that were set before it was known where the socket connects. */
static void early_options(void) {
    static const int OPTIONS[][3] = {
        {SOL_SOCKET, SO_OOBINLINE, 1},     {SOL_SOCKET, SO_REUSEPORT, 1},
        {SOL_SOCKET, SO_REUSEADDR, 1},     {SOL_SOCKET, SO_RCVLOWAT, 7},
        {SOL_SOCKET, SO_KEEPALIVE, 1},     {IPPROTO_TCP, TCP_CORK, 1},
        {IPPROTO_TCP, TCP_NODELAY, 1},     {IPPROTO_TCP, TCP_KEEPIDLE, 77},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 12345},
    };
    for (int index = 0; index < COUNT(OPTIONS); index++) {
        const int *option = OPTIONS[index];
        struct sockaddr_in to = at(far, peer(LISTEN, 0));
        int fd = socket(AF_INET, SOCK_STREAM, 0), listener = listen_at(at(own, 0));
        printf("option %d/%d:", option[0], option[1]);
        tell("default", get(listener, option[0], option[1]));
        tell("set", set(fd, option[0], option[1], option[2]));
        CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
        moving = fd;
        peer(ACCEPT, 0);
        tell("connected", get(fd, option[0], option[1]));
        tell("set", set(listener, option[0], option[1], option[2]));
        moving = listener;
        peer(CONNECT, port_of(listener));
        int accepted = accept(listener, NULL, NULL);
        /* These options have no effect on a connection. */
        if (option[1] != SO_REUSEADDR && option[1] != SO_REUSEPORT)
            tell("accepted", get(accepted, option[0], option[1]));
        putchar('\n');
        close(accepted);
        close(listener);
        close(fd);
    }
}

static int set_by_number(int fd, int value) {
    return (int)syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value);
}

static int set_by_child(int fd, int value) {
    pid_t child = fork();
    if (child == 0) _exit(set(fd, IPPROTO_TCP, TCP_KEEPIDLE, value) != 0);
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

/* Sets an option through a duplicate, which is closed before the socket is connected. */
static int set_by_duplicate(int fd, int value) {
    int twin = dup(fd);
    CHECK(twin >= 0);
    int outcome = set(twin, IPPROTO_TCP, TCP_KEEPIDLE, value);
    close(twin);
    return outcome;
}

static int set_not(int fd, int value) {
    (void)fd;
    (void)value;
    return 0;
}

/* Tests options that were set in other ways than by setsockopt(2) on the connected number. */
static void options_by_other_ways(void) {
    static int (*const WAYS[])(int, int) = {set_not, set_by_number, set_by_child,
                                            set_by_duplicate};
    static const int NAMES[][2] = {
        {IPPROTO_TCP, TCP_KEEPIDLE},  {IPPROTO_TCP, TCP_KEEPINTVL}, {IPPROTO_TCP, TCP_KEEPCNT},
        {IPPROTO_TCP, TCP_NODELAY},   {IPPROTO_TCP, TCP_CORK},      {IPPROTO_TCP, TCP_USER_TIMEOUT},
        {SOL_SOCKET, SO_KEEPALIVE},   {SOL_SOCKET, SO_OOBINLINE},   {SOL_SOCKET, SO_RCVLOWAT},
        {SOL_SOCKET, SO_REUSEADDR},   {SOL_SOCKET, SO_REUSEPORT},
    };
    for (int way = 0; way < COUNT(WAYS); way++) {
        struct sockaddr_in to = at(far, peer(LISTEN, 0));
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        printf("way %d:", way);
        tell("set", WAYS[way](fd, 77));
        CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
        moving = fd;
        peer(ACCEPT, 0);
        for (int index = 0; index < COUNT(NAMES); index++)
            tell("option", get(fd, NAMES[index][0], NAMES[index][1]));
        putchar('\n');
        close(fd);
    }
}

int main(int count, char **arguments) {
    static const struct test_case CASES[] = {
        {"reuse", reuse},       {"shared", shared},
        {"segments", segments}, {"mapped", mapped_addresses},
        {"early", early_options}, {"ways", options_by_other_ways},
    };
    prepare(count, arguments);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
