/* Provides programs whose output is the same on the kernel's TCP and on the stack. Usage: PROGRAM
   CASE LOCAL PEER NETNS. The peer is a process with the kernel's TCP in the network namespace
   NETNS. It gets its commands through a pair of Unix sockets, which no call of the stack waits
   for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s, line %d: %s (%s)\n", __FILE__, __LINE__, #condition,              \
                    strerrorname_np(errno));                                                       \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* Time-out of an event that must happen. */
#define LONG_MS 8000
#define CONNECTIONS 64

enum operation { LISTEN, ACCEPT, DIAL, RECEIVE, SEND, FILL, CLOSE, RESET, END, AWAIT, DRAIN };

struct question {
    enum operation operation;
    int which;
    long number;
    char text[64];
};

struct answer {
    long result;
    int error;
    char text[64];
};

static const char *local_address, *peer_address, *peer_namespace;
static int control;

static struct sockaddr_in address_of(const char *ip, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
    return address;
}

static long now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* ---- the peer ---- */

static int connections[CONNECTIONS], connected, listener = -1;

static long listen_here(void) {
    struct sockaddr_in address = address_of(peer_address, 0);
    socklen_t size = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, 64) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    return ntohs(address.sin_port);
}

static long dial_from_here(int port) {
    struct sockaddr_in address = address_of(local_address, port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {LONG_MS / 1000, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) return -1;
    connections[connected] = fd;
    return connected++;
}

static void answer_one(const struct question *question, struct answer *answer) {
    int fd = connections[question->which], yes = 1;
    long limit_ms = question->number ? question->number : LONG_MS;
    struct timeval limit = {limit_ms / 1000, limit_ms % 1000 * 1000};
    struct linger reset = {1, 0};
    struct pollfd entry = {fd, POLLIN, 0};
    static char large[1 << 16];
    switch (question->operation) {
    case LISTEN: answer->result = listen_here(); return;
    case ACCEPT:
        connections[connected] = accept(listener, NULL, NULL);
        CHECK(connections[connected] >= 0);
        answer->result = connected++;
        return;
    case DIAL: answer->result = dial_from_here(question->number); return;
    case RECEIVE:
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        answer->result = recv(fd, answer->text, sizeof answer->text - 1, 0);
        return;
    case SEND:
        CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
        answer->result = send(fd, question->text, strlen(question->text), MSG_NOSIGNAL);
        return;
    case FILL:
        CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
        for (long rest = question->which; rest >= 0;) {
            ssize_t sent = send(fd, large, sizeof large, MSG_NOSIGNAL);
            if (sent < 0) return;
            answer->result += sent;
        }
        return;
    case CLOSE: answer->result = close(fd); return;
    case RESET:
        CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
        answer->result = close(fd);
        return;
    case END: answer->result = shutdown(fd, SHUT_WR); return;
    case AWAIT: answer->result = poll(&entry, 1, limit_ms); return;
    case DRAIN:
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        for (ssize_t got; (got = recv(fd, large, sizeof large, 0)) != 0; answer->result += got)
            if (got < 0) {
                answer->result = -1;
                return;
            }
        return;
    }
}

static void be_the_peer(void) {
    struct question question;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    while (read(control, &question, sizeof question) == sizeof question) {
        struct answer answer = {0};
        errno = 0;
        answer_one(&question, &answer);
        answer.error = errno;
        if (write(control, &answer, sizeof answer) < 0) break;
    }
    exit(0);
}

/* ---- the program ---- */

static void begin(enum operation operation, int which, long number, const char *text) {
    struct question question = {operation, which, number, ""};
    if (text) snprintf(question.text, sizeof question.text, "%s", text);
    CHECK(write(control, &question, sizeof question) == sizeof question);
}

static struct answer finish(void) {
    struct answer answer;
    CHECK(read(control, &answer, sizeof answer) == sizeof answer);
    errno = answer.error;
    return answer;
}

/* Sends the peer a command and waits for its answer. */
static long ask(enum operation operation, int which, long number, const char *text) {
    begin(operation, which, number, text);
    return finish().result;
}

static int failed(int error) {
    return error == ECONNRESET || error == EPIPE;
}

/* Prints what the peer receives within the time. */
static void show_received(const char *what, int which) {
    begin(RECEIVE, which, 0, NULL);
    struct answer answer = finish();
    if (answer.result > 0) printf("%s: the peer receives '%s'\n", what, answer.text);
    else if (answer.result == 0) printf("%s: the peer sees the end\n", what);
    else printf("%s: the peer sees %s\n", what, strerrorname_np(answer.error));
}

static void show(const char *what, long result) {
    int error = errno;
    if (result < 0) printf("%s: %s\n", what, strerrorname_np(error));
    else printf("%s: %ld\n", what, result);
}

/* Creates a socket that listens on the local address; port 0 selects a free one. */
static int open_listener(int *port) {
    struct sockaddr_in address = address_of(local_address, *port);
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* One connection, which the peer opens; `which` is the peer's number for it. */
struct pair {
    int fd, which;
};

static struct pair accept_pair(int from, int port) {
    struct pair pair;
    begin(DIAL, 0, port, NULL);
    pair.fd = accept(from, NULL, NULL);
    pair.which = finish().result;
    CHECK(pair.fd >= 0 && pair.which >= 0);
    return pair;
}

static struct pair connect_pair(void) {
    int port = 0, from = open_listener(&port);
    struct pair pair = accept_pair(from, port);
    CHECK(close(from) == 0);
    return pair;
}

struct test {
    const char *name;
    void (*run)(void);
};

static const char PEER[] = "as-the-peer";

static void start_peer(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    pid_t peer = fork();
    CHECK(peer >= 0);
    control = ends[peer == 0];
    close(ends[peer != 0]);
    if (peer) return;
    int space = open(peer_namespace, O_RDONLY | O_CLOEXEC);
    CHECK(space >= 0 && setns(space, CLONE_NEWNET) == 0);
    /* The peer uses the kernel's TCP: it continues without the library, for which the other side's
       address is its own. */
    char number[16];
    snprintf(number, sizeof number, "%d", control);
    CHECK(fcntl(control, F_SETFD, 0) == 0 && unsetenv("LD_PRELOAD") == 0);
    execl("/proc/self/exe", "peer", PEER, number, local_address, peer_address, NULL);
    CHECK(0);
}

static int run_tests(const struct test *tests, int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(50);
    int is_peer = strcmp(words[1], PEER) == 0;
    if (is_peer) control = atoi(words[2]);
    local_address = words[2 + is_peer];
    peer_address = words[3 + is_peer];
    if (is_peer) be_the_peer();
    peer_namespace = words[4];
    start_peer();
    for (int index = 0; index < count; index++)
        if (strcmp(tests[index].name, words[1]) == 0) {
            tests[index].run();
            return 0;
        }
    fprintf(stderr, "there is no case %s\n", words[1]);
    return 2;
}

#define MAIN(tests)                                                                                \
    int main(int count, char **words) {                                                            \
        if (count != 5) return 2;                                                                  \
        return run_tests(tests, sizeof tests / sizeof *tests, words);                              \
    }
