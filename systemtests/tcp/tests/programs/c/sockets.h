/* Provides two ends of a connection for cases of socket calls: the subject, which calls and prints,
   and a peer on the kernel of another network namespace, which executes the subject's commands. */
#pragma once
/* Not every program uses every helper. */
#pragma GCC diagnostic ignored "-Wunused-function"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%d: line %d: %s (errno %d)\n", getpid(),          \
                    __LINE__, #condition, errno);                              \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

/* Time-out of a case; far longer than any step needs. */
#define LIMIT_MS 20000

static struct sockaddr_in own, far;
static int control;

static struct sockaddr_in at(struct sockaddr_in address, int port) {
    address.sin_port = htons(port);
    return address;
}

static int port_of(int fd) {
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    CHECK(getsockname(fd, (struct sockaddr *)&name, &size) == 0);
    return ntohs(name.sin_port);
}

static int listen_at(struct sockaddr_in address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(fd, 64) == 0);
    return fd;
}

static void reset(int fd) {
    struct linger now = {1, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    close(fd);
}

/* The commands for the peer. */
enum order {
    LISTEN,        /* returns the port */
    ACCEPT,
    CONNECT,       /* to the port of the subject */
    SEND,          /* this number of bytes */
    URGENT,        /* this number of bytes, the last one urgent */
    RECEIVE,       /* this number of bytes; returns their sum */
    AWAIT_END,     /* returns 0 or an errno */
    AT_MARK,       /* returns the result of sockatmark(3) */
    OUT_OF_BAND,   /* returns the urgent byte, or a negative errno */
    SEGMENTS,      /* returns the number of received segments with data */
    MOST,          /* returns the largest received segment */
    SHUT,          /* the sending side */
    CLOSE,
    RESET,
    REFUSE,        /* returns a port without a listener */
};

static int serve(int order, int number, int *listener, int *fd) {
    static char room[1 << 16];
    struct tcp_info info;
    socklen_t size = sizeof info;
    struct sockaddr_in to = at(own, number);
    int sum = 0;
    switch (order) {
    case LISTEN:
        if (*listener < 0) *listener = listen_at(at(far, 0));
        return port_of(*listener);
    case ACCEPT:
        *fd = accept(*listener, NULL, NULL);
        CHECK(*fd >= 0);
        return 0;
    case CONNECT:
        *fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(*fd, (struct sockaddr *)&to, sizeof to) == 0);
        return 0;
    case SEND:
    case URGENT:
        for (int index = 0; index < number; index++)
            room[index] = 'a' + index % 26;
        CHECK(send(*fd, room, number, order == URGENT ? MSG_OOB : 0) == number);
        return 0;
    case RECEIVE:
        while (number > 0) {
            ssize_t bytes = recv(*fd, room, number < 65536 ? number : 65536, 0);
            CHECK(bytes > 0);
            for (int index = 0; index < bytes; index++)
                sum += (unsigned char)room[index];
            number -= bytes;
        }
        return sum;
    case AWAIT_END:
        for (;;) {
            ssize_t bytes = recv(*fd, room, sizeof room, 0);
            if (bytes <= 0) return bytes < 0 ? errno : 0;
        }
    case AT_MARK:
        return sockatmark(*fd);
    case OUT_OF_BAND: {
        struct pollfd wait = {*fd, POLLPRI, 0};
        CHECK(poll(&wait, 1, LIMIT_MS) == 1);
        return recv(*fd, room, 1, MSG_OOB) == 1 ? room[0] : -errno;
    }
    case SEGMENTS:
    case MOST:
        CHECK(getsockopt(*fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
        return order == SEGMENTS ? (int)info.tcpi_data_segs_in : (int)info.tcpi_rcv_mss;
    case SHUT:
        return shutdown(*fd, SHUT_WR);
    case CLOSE:
        return close(*fd);
    case RESET:
        reset(*fd);
        return 0;
    default:
        *fd = listen_at(at(far, 0));
        number = port_of(*fd);
        close(*fd);
        return number;
    }
}

static void ask(enum order order, int number) {
    int message[2] = {order, number};
    CHECK(write(control, message, sizeof message) == sizeof message);
}

/* A socket that the subject uses while it waits for the peer, or -1: a stack without its own thread
   runs only in the program's calls. */
static int moving = -1;

static int answered(void) {
    int answer;
    struct pollfd wait[2] = {{control, POLLIN, 0}, {moving, 0, 0}};
    while (wait[0].revents == 0)
        CHECK(poll(wait, 2, 1) >= 0 || errno == EINTR);
    CHECK(read(control, &answer, sizeof answer) == sizeof answer);
    return answer;
}

/* Sends the peer a command and waits until it is done. */
static int peer(enum order order, int number) {
    ask(order, number);
    return answered();
}

static const char PEER[] = "as-the-peer";

static void be_the_peer(void) {
    int order[2], listener = -1, fd = -1;
    while (read(control, order, sizeof order) == sizeof order) {
        int answer = serve(order[0], order[1], &listener, &fd);
        CHECK(write(control, &answer, sizeof answer) == sizeof answer);
    }
    _exit(0);
}

/* The peer uses the kernel's TCP: it runs without the library, for which the subject's address is
   its own. */
static void start_peer(char **arguments) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    control = ends[child == 0];
    close(ends[child != 0]);
    if (child != 0) return;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    if (getppid() != parent) _exit(0);
    int place = open(arguments[4], O_RDONLY | O_CLOEXEC);
    CHECK(place >= 0 && setns(place, CLONE_NEWNET) == 0);
    char number[16];
    snprintf(number, sizeof number, "%d", control);
    CHECK(unsetenv("LD_PRELOAD") == 0);
    execl("/proc/self/exe", "peer", PEER, arguments[2], arguments[3], number, NULL);
    CHECK(0);
}

static void set_nonblocking(int fd, int on) {
    CHECK(fcntl(fd, F_SETFL, on ? O_NONBLOCK : 0) == 0);
}

/* Opens a connection from the subject. */
static int dial(void) {
    struct sockaddr_in to = at(far, peer(LISTEN, 0));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    moving = fd;
    peer(ACCEPT, 0);
    return fd;
}

/* Accepts a connection. */
static int answer(void) {
    int listener = listen_at(at(own, 0));
    moving = listener;
    peer(CONNECT, port_of(listener));
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    close(listener);
    moving = fd;
    return fd;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#define ASKED (POLLIN | POLLOUT | POLLPRI | POLLRDHUP)

static int events_of(int fd) {
    struct pollfd entry = {fd, ASKED, 0};
    CHECK(poll(&entry, 1, 0) >= 0);
    return entry.revents & ~(POLLRDNORM | POLLWRNORM);
}

/* Waits until the socket has all these events. */
static void await(int fd, int events) {
    long end = now_ms() + LIMIT_MS;
    while ((events_of(fd) & events) != events) {
        CHECK(now_ms() < end);
        usleep(50);
    }
}

/* Waits until this number of bytes can be read. */
static void await_bytes(int fd, int bytes) {
    long end = now_ms() + LIMIT_MS;
    int count = 0;
    while (ioctl(fd, FIONREAD, &count) == 0 && count < bytes) {
        CHECK(now_ms() < end);
        events_of(fd);
        usleep(50);
    }
}

static int pipes;

static void broken(int number) {
    (void)number;
    pipes++;
}

/* Prints the result of a call, and whether it raised SIGPIPE. */
static void tell(const char *what, ssize_t result) {
    int error = errno;
    printf(" %s=", what);
    if (result < 0)
        printf("%s", strerrorname_np(error));
    else
        printf("%zd", result);
    printf("%s", pipes > 0 ? "!" : "");
    pipes = 0;
}

static void name_events(const char *what, unsigned events) {
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "in"},   {POLLOUT, "out"}, {POLLPRI, "pri"}, {POLLERR, "err"},
                 {POLLHUP, "hup"}, {POLLNVAL, "nval"}, {POLLRDHUP, "rdhup"}};
    printf(" %s=", what);
    for (unsigned index = 0; index < sizeof names / sizeof *names; index++)
        if (events & names[index].bit) printf("%s,", names[index].name);
}

static void tell_events(int fd) { name_events("events", events_of(fd)); }

struct test_case {
    const char *name;
    void (*run)(void);
};

static void prepare(int count, char **arguments) {
    CHECK(count == 5);
    signal(SIGPIPE, broken);
    own.sin_family = far.sin_family = AF_INET;
    own.sin_addr.s_addr = inet_addr(arguments[2]);
    far.sin_addr.s_addr = inet_addr(arguments[3]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(arguments[1], PEER) == 0) {
        control = atoi(arguments[4]);
        be_the_peer();
    }
    start_peer(arguments);
}

#define COUNT(list) (int)(sizeof list / sizeof *list)

/* Runs the case of that name. */
static int run_case(const char *name, const struct test_case *cases, int count) {
    for (int index = 0; index < count; index++)
        if (strcmp(cases[index].name, name) == 0) {
            cases[index].run();
            return 0;
        }
    CHECK(!"a case of this name");
    return 1;
}
