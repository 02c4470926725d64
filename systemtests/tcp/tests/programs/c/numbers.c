/* Tests descriptors that are passed on in unusual ways, calls by number, and streams of the C
   library. See like.h. */
#include "like.h"
#include <linux/close_range.h>
#include <linux/io_uring.h>
#include <spawn.h>

extern char **environ;

/* Makes a system call that the library does not see. */
static long unseen(long number, long first, long second, long third) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#endif
}

static char path[] = "/tmp/mtcp-like-XXXXXX";

static void make_file(void) {
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "of the file", 11) == 11 && close(fd) == 0);
}

static void show_file(const char *what, int fd, int wanted) {
    char room[32] = "";
    printf("%s: the same number: %d\n", what, fd == wanted);
    ssize_t bytes = read(fd, room, sizeof room - 1);
    printf("%s: %zd '%s'\n", what, bytes, room);
}

enum way { BY_NUMBER, BY_RANGE, BY_DUP2, BY_DUP3, BY_ASSEMBLER, BY_DUP2_ASSEMBLER, WAYS };

static void close_by(enum way way, int fd) {
    int null = open("/dev/null", O_RDWR);
    switch (way) {
    case BY_NUMBER: CHECK(syscall(SYS_close, fd) == 0); break;
    case BY_RANGE: CHECK(syscall(SYS_close_range, fd, fd, 0) == 0); break;
    case BY_DUP2:
#ifdef SYS_dup2
        CHECK(syscall(SYS_dup2, null, fd) == fd && close(fd) == 0);
        break;
#endif
    case BY_DUP3: CHECK(syscall(SYS_dup3, null, fd, O_CLOEXEC) == fd && close(fd) == 0); break;
    case BY_ASSEMBLER: CHECK(unseen(SYS_close, fd, 0, 0) == 0); break;
    case BY_DUP2_ASSEMBLER:
        CHECK(unseen(SYS_dup3, null, fd, 0) == fd && unseen(SYS_close, fd, 0, 0) == 0);
        break;
    case WAYS: break;
    }
    CHECK(close(null) == 0);
}

/* Opens a file after each way of closing. */
static int open_by(int which) {
    FILE *file;
    switch (which) {
    case 0: return open(path, O_RDONLY);
    case 1: return openat(AT_FDCWD, path, O_RDONLY);
    case 2: return syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0);
    default:
        file = fopen(path, "r");
        return file ? fileno(file) : -1;
    }
}

static void closed(void) {
    make_file();
    int port = 0, from = open_listener(&port);
    for (enum way way = 0; way < WAYS; way++)
        for (int opening = 0; opening < 4; opening++) {
            struct pair pair = accept_pair(from, port);
            CHECK(ask(SEND, pair.which, 0, "of the connection") == 17);
            char byte;
            CHECK(read(pair.fd, &byte, 1) == 1);
            close_by(way, pair.fd);
            int fd = open_by(opening);
            show_file("file", fd, pair.fd);
            show_received("connection", pair.which);
            close(fd);
        }
    unlink(path);
}

/* Tests other objects that may get the number of a connection that was closed unseen. */
static void replaced(void) {
    int port = 0, from = open_listener(&port), ends[2];
    char room[16] = "";
    struct pair pair = accept_pair(from, port), later;
    CHECK(unseen(SYS_close, pair.fd, 0, 0) == 0);
    later = accept_pair(from, port);
    printf("a connection: %d\n", later.fd == pair.fd);
    show_received("the closed one", pair.which);
    CHECK(ask(SEND, later.which, 0, "later") == 5);
    CHECK(recv(later.fd, room, 5, MSG_WAITALL) == 5);
    printf("the later one: '%s'\n", room);

    CHECK(unseen(SYS_close, later.fd, 0, 0) == 0);
    CHECK(pipe(ends) == 0);
    printf("a pipe: %d\n", ends[0] == later.fd);
    show_received("the closed one", later.which);
    CHECK(write(ends[1], "through", 7) == 7);
    show("pipe", read(ends[0], room, 7));
    close(ends[0]);
    close(ends[1]);

    pair = accept_pair(from, port);
    CHECK(unseen(SYS_close, pair.fd, 0, 0) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    printf("a pair of sockets: %d\n", ends[0] == pair.fd);
    show_received("the closed one", pair.which);
    CHECK(send(ends[1], "through", 7, 0) == 7);
    show("socket", recv(ends[0], room, 7, 0));
    close(ends[0]);
    close(ends[1]);

    pair = accept_pair(from, port);
    CHECK(unseen(SYS_close, pair.fd, 0, 0) == 0);
    int count = eventfd(3, EFD_NONBLOCK);
    unsigned long value = 0;
    printf("an eventfd: %d\n", count == pair.fd);
    show_received("the closed one", pair.which);
    show("count", read(count, &value, sizeof value));
    close(count);

    pair = accept_pair(from, port);
    CHECK(unseen(SYS_close, pair.fd, 0, 0) == 0);
    int twin = dup(1);
    printf("a duplicate: %d\n", twin == pair.fd);
    show_received("the closed one", pair.which);
    show("write", write(twin, "", 0));
    close(twin);

    pair = accept_pair(from, port);
    CHECK(unseen(SYS_close, pair.fd, 0, 0) == 0);
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    printf("a socket: %d\n", fresh == pair.fd);
    show_received("the closed one", pair.which);
    show("write", send(fresh, "x", 1, MSG_NOSIGNAL));
}

/* Tests the interposed calls, each by its number. */
static void calls(void) {
    struct sockaddr_in address = address_of(local_address, 0);
    socklen_t size = sizeof address;
    int yes = 1, count = 0, from = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    show("setsockopt", syscall(SYS_setsockopt, from, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes));
    show("bind", syscall(SYS_bind, from, &address, size));
    show("listen", syscall(SYS_listen, from, 5));
    show("getsockname", syscall(SYS_getsockname, from, &address, &size));
    begin(DIAL, 0, ntohs(address.sin_port), NULL);
    int fd = syscall(SYS_accept4, from, NULL, NULL, SOCK_CLOEXEC);
    int which = finish().result;
    CHECK(fd >= 0 && which >= 0);
    size = sizeof address;
    show("getpeername", syscall(SYS_getpeername, fd, &address, &size));
    show("write", syscall(SYS_write, fd, "one", 3));
    show_received("write", which);
    show("sendto", syscall(SYS_sendto, fd, "two", 3, MSG_NOSIGNAL, NULL, 0));
    show_received("sendto", which);
    char room[16] = "", more[16] = "";
    struct iovec part = {"three", 5}, parts[2] = {{room, 2}, {more, 3}};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    show("sendmsg", syscall(SYS_sendmsg, fd, &message, 0));
    show_received("sendmsg", which);
    show("writev", syscall(SYS_writev, fd, &part, 1));
    show_received("writev", which);
    show("pwritev2", syscall(SYS_pwritev2, fd, &part, 1, -1L, -1L, 0));
    show_received("pwritev2", which);
    CHECK(ask(SEND, which, 0, "abcdefghijklmnopqrst") == 20);
    struct pollfd entry = {fd, POLLIN, 0};
    struct timespec time = {5, 0};
    show("ppoll", syscall(SYS_ppoll, &entry, 1, &time, NULL, 8));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    show("pselect6", syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &time, NULL));
    int poll_set = syscall(SYS_epoll_create1, 0);
    struct epoll_event event = {EPOLLIN, {.u64 = 3}};
    show("epoll_ctl", syscall(SYS_epoll_ctl, poll_set, EPOLL_CTL_ADD, fd, &event));
    show("epoll_pwait", syscall(SYS_epoll_pwait, poll_set, &event, 1, 5000, NULL, 8));
    show("epoll_pwait2", syscall(SYS_epoll_pwait2, poll_set, &event, 1, &time, NULL, 8));
#ifdef SYS_poll
    show("poll", syscall(SYS_poll, &entry, 1, 5000));
    show("select", syscall(SYS_select, fd + 1, &set, NULL, NULL, NULL));
    show("epoll_wait", syscall(SYS_epoll_wait, poll_set, &event, 1, 5000));
#endif
    while (syscall(SYS_ioctl, fd, FIONREAD, &count) == 0 && count < 20) sched_yield();
    show("read", syscall(SYS_read, fd, room, 5));
    show("recvfrom", syscall(SYS_recvfrom, fd, room, 5, 0, NULL, NULL));
    show("readv", syscall(SYS_readv, fd, parts, 2));
    printf("%.2s%.3s\n", room, more);
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    show("recvmsg", syscall(SYS_recvmsg, fd, &message, MSG_DONTWAIT));
    printf("%.2s%.3s\n", room, more);
    int twin = syscall(SYS_dup, fd), third = syscall(SYS_dup3, fd, 70, 0);
    show("fcntl", syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK));
    show("read", syscall(SYS_read, fd, room, 5));
    CHECK(syscall(SYS_close, fd) == 0 && syscall(SYS_close, twin) == 0);
    show("write", syscall(SYS_write, third, "four", 4));
    show_received("write", which);
    show("shutdown", syscall(SYS_shutdown, third, SHUT_WR));
    show_received("shutdown", which);
    CHECK(syscall(SYS_close, from) == 0);
    show("dial", ask(DIAL, 0, ntohs(address.sin_port), NULL) < 0);
    address = address_of(peer_address, ask(LISTEN, 0, 0, NULL));
    fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    show("connect", syscall(SYS_connect, fd, &address, sizeof address));
    which = ask(ACCEPT, 0, 0, NULL);
    show("write", syscall(SYS_write, fd, "five", 4));
    show_received("connect", which);
}

/* Tests that children which close their copies do not affect their parent. */
static void children(void) {
    struct pair pair = connect_pair();
    int status;
    pid_t child = vfork();
    if (child == 0) {
        close(pair.fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(write(pair.fd, "vfork", 5) == 5);
    show_received("after", pair.which);

    child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        close(pair.fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(write(pair.fd, "clone", 5) == 5);
    show_received("after", pair.which);

    child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) exit(0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(write(pair.fd, "clone and exit", 14) == 14);
    show_received("after", pair.which);

    posix_spawn_file_actions_t actions;
    char *words[] = {"true", NULL};
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addclose(&actions, pair.fd) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, 1, 2) == 0);
    CHECK(posix_spawnp(&child, "true", &actions, NULL, words, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    printf("true: %d\n", status);
    CHECK(write(pair.fd, "spawn", 5) == 5);
    show_received("after", pair.which);
    show("system", system("true"));
    CHECK(close(pair.fd) == 0);
    show_received("close", pair.which);
}

static int print_list(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int count = vdprintf(fd, format, list);
    va_end(list);
    return count;
}

/* Tests formatted output to a descriptor. */
static void formatted(void) {
    struct pair pair = connect_pair();
    show("dprintf", dprintf(pair.fd, "%d %s %.2f", 7, "words", 1.5));
    show_received("dprintf", pair.which);
    show("dprintf", dprintf(pair.fd, "%d%d%d%d%d%d%d%s%.1f%.1f%.1f%.1f%.1f%.1f%.1f%.1f%.1f", 1, 2,
                            3, 4, 5, 6, 7, "x", .1, .2, .3, .4, .5, .6, .7, .8, .9));
    show_received("dprintf", pair.which);
    show("vdprintf", print_list(pair.fd, "%ld-%s", 123456789012L, "end"));
    show_received("vdprintf", pair.which);
    show("dprintf of a file", dprintf(1, "%s\n", "to standard output"));
    CHECK(ask(RESET, pair.which, 0, NULL) == 0);
    signal(SIGPIPE, SIG_IGN);
    int result = 1;
    for (int tries = 0; tries < 50 && result == 1; tries++) {
        pause_ms(20);
        result = dprintf(pair.fd, "x");
    }
    printf("after the end: %d\n", result);
}

int __poll_chk(struct pollfd *list, nfds_t count, int timeout_ms, size_t room);
int __ppoll_chk(struct pollfd *list, nfds_t count, const struct timespec *timeout,
                const sigset_t *mask, size_t room);
ssize_t __read_chk(int fd, void *to, size_t length, size_t room);
ssize_t __recv_chk(int fd, void *to, size_t length, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *to, size_t length, size_t room, int flags,
                       struct sockaddr *address, socklen_t *size);
int __dprintf_chk(int fd, int flag, const char *format, ...);

/* Calls a function that checks its buffer, with a buffer that is too small. */
static long call_checked(int which, int fd) {
    struct pollfd list[] = {{fd, POLLIN, 0}, {fd, POLLIN, 0}};
    char room[16], format[] = "%n";
    int count;
    switch (which) {
    case 0: return __poll_chk(list, 2, 0, sizeof *list);
    case 1: return __ppoll_chk(list, 2, &(struct timespec){0, 0}, NULL, sizeof *list);
    case 2: return __read_chk(fd, room, 9, 8);
    case 3: return __recv_chk(fd, room, 9, 8, MSG_DONTWAIT);
    case 4: return __recvfrom_chk(fd, room, 9, 8, MSG_DONTWAIT, NULL, NULL);
    /* A format that writes to writable memory is refused. */
    case 5: return __dprintf_chk(fd, 1, format, &count);
    case 6: return __dprintf_chk(1, 1, format, &count);
    }
    return -1;
}

static void checked(void) {
    struct pair pair = connect_pair();
    struct pollfd list[] = {{pair.fd, POLLOUT, 0}, {pair.fd, POLLOUT, 0}};
    show("fits", __poll_chk(list, 2, 0, sizeof list));
    for (int which = 0; which < 7; which++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) == 0);
            _exit(call_checked(which, pair.fd) < 0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        const char *how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it returned";
        printf("%d: %s\n", which, how);
    }
}

/* Tests streams of the C library on a connection. */
static void streams(void) {
    int port = 0, from = open_listener(&port);
    struct pair pair = accept_pair(from, port);
    FILE *out = fdopen(pair.fd, "w");
    CHECK(out && fileno(out) == pair.fd);
    show("fprintf", fprintf(out, "%s %d", "line", 1));
    show("fflush", fflush(out));
    show_received("fflush", pair.which);
    CHECK(fputs("the rest", out) >= 0);
    show("fclose", fclose(out));
    show_received("fclose", pair.which);
    show_received("fclose", pair.which);

    pair = accept_pair(from, port);
    FILE *in = fdopen(pair.fd, "r+");
    char line[32] = "";
    CHECK(in && fileno(in) == pair.fd);
    CHECK(ask(SEND, pair.which, 0, "one\ntwo\nthree") == 13);
    CHECK(fgets(line, sizeof line, in));
    printf("%s", line);
    CHECK(fgets(line, sizeof line, in));
    printf("%s", line);
    CHECK(ask(END, pair.which, 0, NULL) == 0);
    CHECK(fgets(line, sizeof line, in));
    printf("%s: %d\n", line, fgetc(in));
    show("fclose", fclose(in));
    show_received("fclose", pair.which);

    /* Before it is known whether the connection will be the stack's. */
    struct sockaddr_in address = address_of(peer_address, ask(LISTEN, 0, 0, NULL));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    out = fdopen(fd, "w");
    CHECK(out && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    pair.which = ask(ACCEPT, 0, 0, NULL);
    CHECK(fputs("early", out) >= 0 && fflush(out) == 0);
    show_received("a stream from before", pair.which);
    show("fclose", fclose(out));
    show_received("fclose", pair.which);
}

/* Tests a program that uses io_uring if there is one, and otherwise reads itself. */
static void rings(void) {
    struct pair pair = connect_pair();
    struct io_uring_params parameters = {0};
    CHECK(ask(SEND, pair.which, 0, "data") == 4);
    char room[16] = "";
    long ring = syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0) {
        show("read", read(pair.fd, room, 4));
        printf("'%s'\n", room);
        return;
    }
    size_t bytes = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    char *queues = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                        IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, 4 * sizeof *entry, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    CHECK(queues != MAP_FAILED && entry != MAP_FAILED);
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_RECV, .fd = pair.fd,
                                   .addr = (unsigned long)room, .len = 4};
    *(unsigned *)(queues + parameters.sq_off.array) = 0;
    atomic_thread_fence(memory_order_seq_cst);
    *(unsigned *)(queues + parameters.sq_off.tail) += 1;
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    struct io_uring_cqe *done = (void *)(queues + parameters.cq_off.cqes);
    errno = -done->res;
    show("read", done->res);
    printf("'%s'\n", room);
}

static void show_events(const char *what, int set) {
    struct epoll_event got[4];
    int count = epoll_wait(set, got, 4, LONG_MS);
    printf("%s: %d", what, count);
    for (int index = 0; index < count; index++) printf(" %x", got[index].events);
    putchar('\n');
}

/* Tests a socket with two numbers that is neither bound nor connected: whichever is used and
   closed, the other one is the same socket. */
static void duplicated(void) {
    struct sockaddr_in here = address_of(local_address, 0);
    socklen_t size = sizeof here;
    int fd = socket(AF_INET, SOCK_STREAM, 0), twin = dup(fd);
    show("bind", bind(twin, (struct sockaddr *)&here, sizeof here));
    show("listen", listen(fd, 4));
    CHECK(getsockname(fd, (struct sockaddr *)&here, &size) == 0);
    struct pair pair = accept_pair(twin, ntohs(here.sin_port));
    CHECK(close(fd) == 0);
    pair = accept_pair(twin, ntohs(here.sin_port));
    show("send", send(pair.fd, "hello", 5, 0));
    show_received("accepted", pair.which);

    struct sockaddr_in there = address_of(peer_address, ask(LISTEN, 0, 0, NULL));
    struct epoll_event event = {EPOLLIN, {.u64 = 1}};
    int set = epoll_create1(0);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    twin = fcntl(fd, F_DUPFD_CLOEXEC, 50);
    int third = dup2(twin, 60);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(close(fd) == 0);
    show("connect", connect(twin, (struct sockaddr *)&there, sizeof there));
    int which = ask(ACCEPT, 0, 0, NULL);
    show("asked", epoll_wait(set, &event, 1, 0));
    CHECK(ask(SEND, which, 0, "data") == 4);
    show_events("watched", set);
    char room[8];
    show("read", read(third, room, 4));
    CHECK(close(twin) == 0);
    show("send", send(third, "more", 4, 0));
    show_received("connected", which);
    CHECK(close(third) == 0);
    show_received("closed", which);

    /* A failed call leaves the socket unchanged. */
    here.sin_port = htons(1);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    twin = dup(fd);
    inet_pton(AF_INET, "203.0.113.9", &here.sin_addr);
    show("bind elsewhere", bind(fd, (struct sockaddr *)&here, sizeof here));
    show("connect", connect(twin, (struct sockaddr *)&there, sizeof there));
    which = ask(ACCEPT, 0, 0, NULL);
    show("send", send(fd, "last", 4, 0));
    show_received("connected", which);
}

/* Tests a socket whose attempt to connect has failed: it can then be bound, and still reports the
   failure. */
static void bound_afterwards(void) {
    struct sockaddr_in here = address_of(local_address, 0), there = address_of(peer_address, 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct pollfd entry = {fd, POLLOUT, 0};
    show("connect", connect(fd, (struct sockaddr *)&there, sizeof there));
    CHECK(poll(&entry, 1, LONG_MS) == 1);
    show("bind", bind(fd, (struct sockaddr *)&here, sizeof here));
    show("bind again", bind(fd, (struct sockaddr *)&here, sizeof here));
    show("connect", connect(fd, (struct sockaddr *)&there, sizeof there));
    there = address_of(peer_address, ask(LISTEN, 0, 0, NULL));
    show("connect", connect(fd, (struct sockaddr *)&there, sizeof there));
    int which = ask(ACCEPT, 0, 0, NULL);
    CHECK(poll(&entry, 1, LONG_MS) == 1);
    show("bind", bind(fd, (struct sockaddr *)&here, sizeof here));
    show("send", send(fd, "hello", 5, 0));
    show_received("connected", which);
}

static const struct test tests[] = {
    {"bound-afterwards", bound_afterwards},
    {"duplicated", duplicated},
    {"closed", closed},
    {"replaced", replaced},
    {"calls", calls},
    {"children", children},
    {"formatted", formatted},
    {"checked", checked},
    {"streams", streams},
    {"rings", rings},
};

MAIN(tests)
