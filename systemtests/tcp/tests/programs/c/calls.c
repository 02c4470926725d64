// Tests calls of a program that does not know the stack, against an echo server. Each failed check
// prints its location.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition,  \
                    errno);                                                    \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)

static struct sockaddr_in server;

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    return fd;
}

static void echo(int fd, const char *text) {
    char back[64] = "";
    size_t length = strlen(text);
    CHECK(write(fd, text, length) == (ssize_t)length);
    CHECK(recv(fd, back, length, MSG_WAITALL) == (ssize_t)length);
    CHECK(memcmp(text, back, length) == 0);
}

static void names_and_duplicates(void) {
    int fd = dial(), twin = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    struct sockaddr_in name;
    socklen_t size = sizeof name;
    CHECK(getpeername(fd, (struct sockaddr *)&name, &size) == 0);
    CHECK(size == sizeof name && name.sin_port == server.sin_port);
    size = sizeof name;
    CHECK(getsockname(fd, (struct sockaddr *)&name, &size) == 0);
    CHECK(name.sin_addr.s_addr == inet_addr("10.9.0.2"));
    int type = 0;
    size = sizeof type;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &type, &size) == 0 && type == AF_INET);
    CHECK(twin >= 0 && third >= 100);
    echo(twin, "twin");
    CHECK(close(fd) == 0);
    echo(third, "third");
    CHECK(dup2(twin, 50) == 50);
    close(twin);
    close(third);
    echo(50, "fifty");
    CHECK(shutdown(50, SHUT_WR) == 0);
    char byte;
    CHECK(read(50, &byte, 1) == 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(50, "x", 1) == -1 && errno == EPIPE);
    close(50);
    CHECK(write(50, "x", 1) == -1 && errno == EBADF);
}

static void vectors_and_questions(void) {
    int fd = dial(), count = -1;
    struct iovec out[3] = {{"abc", 3}, {"", 0}, {"defgh", 5}};
    CHECK(writev(fd, out, 3) == 8);
    struct pollfd wait = {fd, POLLIN, 0};
    do
        CHECK(poll(&wait, 1, -1) == 1 && (wait.revents & POLLIN));
    while (ioctl(fd, FIONREAD, &count) == 0 && count < 8);
    char back[16] = "", one[2], two[16];
    CHECK(recv(fd, back, 16, MSG_PEEK) == 8);
    struct iovec in[2] = {{one, 2}, {two, 16}};
    CHECK(readv(fd, in, 2) == 8 && memcmp(one, "ab", 2) == 0 && memcmp(two, "cdefgh", 6) == 0);
    CHECK(recv(fd, back, 16, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    struct timeval limit = {0, 50000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    CHECK(read(fd, back, 16) == -1 && errno == EAGAIN);
    limit.tv_usec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    fd_set readable, writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(fd, &readable);
    FD_SET(fd, &writable);
    CHECK(select(fd + 1, &readable, &writable, NULL, NULL) == 1);
    CHECK(!FD_ISSET(fd, &readable) && FD_ISSET(fd, &writable));
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct msghdr message = {.msg_iov = out, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    CHECK(sendmsg(fd, &message, 0) == -1 && errno == EOPNOTSUPP);
    CHECK(splice(fd, NULL, 1, NULL, 1, 0) == -1 && errno == EINVAL);
    FILE *file = tmpfile();
    fputs("from a file", file);
    fflush(file);
    off_t offset = 5;
    CHECK(sendfile(fd, fileno(file), &offset, 100) == 6 && offset == 11);
    CHECK(recv(fd, back, 6, MSG_WAITALL) == 6 && memcmp(back, "a file", 6) == 0);
    fclose(file);
    close(fd);
}

static void epolls(void) {
    int set = epoll_create1(0), ends[2], fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.u64 = 7}}, got[4];
    CHECK(pipe(ends) == 0);
    // Watched before the socket becomes the stack's.
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == -1 && errno == EINPROGRESS);
    CHECK(epoll_wait(set, got, 4, 10000) == 1 && got[0].data.u64 == 7);
    CHECK(got[0].events == EPOLLOUT);
    CHECK(epoll_wait(set, got, 4, 0) == 0);
    CHECK(write(fd, "hello", 5) == 5);
    do
        CHECK(epoll_wait(set, got, 4, 10000) == 1);
    while (!(got[0].events & EPOLLIN));
    CHECK(epoll_wait(set, got, 4, 0) == 0);
    event.events = EPOLLIN;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    for (int times = 0; times < 3; times++)
        CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].events == EPOLLIN);
    event.events = EPOLLIN | EPOLLONESHOT;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    CHECK(epoll_wait(set, got, 4, 1000) == 1 && epoll_wait(set, got, 4, 0) == 0);
    // A descriptor of the kernel and one of the stack in one call.
    struct epoll_event other = {EPOLLIN, {.u64 = 9}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &other) == 0);
    CHECK(write(ends[1], "!", 1) == 1);
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    CHECK(epoll_wait(set, got, 4, 1000) == 2);
    CHECK(got[0].data.u64 + got[1].data.u64 == 16);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
    CHECK(epoll_wait(set, got, 4, 0) == 1 && got[0].data.u64 == 9);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == -1 && errno == ENOENT);
    close(fd);
    close(set);
}

static void *blocked(void *unused) {
    (void)unused;
    int fd = dial();
    for (int times = 0; times < 200; times++)
        echo(fd, "of a thread");
    close(fd);
    return NULL;
}

static void interrupted(int number) { (void)number; }

static void threads_and_signals(void) {
    pthread_t all[8];
    for (int index = 0; index < 8; index++)
        CHECK(pthread_create(&all[index], NULL, blocked, NULL) == 0);
    for (int index = 0; index < 8; index++)
        CHECK(pthread_join(all[index], NULL) == 0);
    struct sigaction action = {.sa_handler = interrupted};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    int fd = dial();
    struct pollfd wait = {fd, POLLIN, 0};
    // Repeated, because the first signal may arrive before the call.
    struct itimerval often = {{0, 10000}, {0, 10000}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    CHECK(poll(&wait, 1, -1) == -1 && errno == EINTR);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    close(fd);
}

static volatile sig_atomic_t handled;
static atomic_int waits;

static void count(int number) {
    (void)number;
    handled++;
}

struct disturber {
    pthread_t victim;
    int fd, signals;
};

// Sends this number of signals and then a byte or, without a number, signals until the wait ends.
static void *disturb(void *argument) {
    const struct disturber *self = argument;
    for (int sent = 0; waits && (self->signals == 0 || sent < self->signals); sent++) {
        CHECK(pthread_kill(self->victim, SIGUSR1) == 0);
        usleep(5000);
    }
    if (self->signals != 0)
        CHECK(write(self->fd, "x", 1) == 1);
    return NULL;
}

// Reads one byte, which is sent after this number of signals; 0: never.
static ssize_t read_disturbed(int fd, int signals) {
    struct disturber self = {pthread_self(), fd, signals};
    pthread_t thread;
    char byte;
    waits = 1;
    CHECK(pthread_create(&thread, NULL, disturb, &self) == 0);
    ssize_t result = read(fd, &byte, 1);
    int error = errno;
    waits = 0;
    CHECK(pthread_join(thread, NULL) == 0);
    errno = error;
    return result;
}

static void restarts(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    int fd = dial();
    CHECK(read_disturbed(fd, 3) == 1 && handled > 0);
    // A call with a time limit ends nevertheless.
    struct timeval time = {60, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(read_disturbed(fd, 0) == -1 && errno == EINTR);
    time.tv_sec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    action.sa_flags = 0;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(read_disturbed(fd, 0) == -1 && errno == EINTR);
    // A blocked or ignored signal ends no call.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(read_disturbed(fd, 3) == 1);
    action.sa_handler = SIG_IGN;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    CHECK(read_disturbed(fd, 3) == 1);
    close(fd);
}

static void forks(void) {
    int fd = dial();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(write(fd, "x", 1) == -1 && errno == ENOTCONN);
        CHECK(close(fd) == 0);
        int own = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(own, (struct sockaddr *)&server, sizeof server) == -1);
        CHECK(errno == ENETDOWN);
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    echo(fd, "still here");
    CHECK(system("exit 3") == 3 << 8);
    closefrom(3);
    CHECK(write(fd, "x", 1) == -1 && errno == EBADF);
    fd = dial();
    echo(fd, "and the stack, too");
    close(fd);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    server.sin_family = AF_INET;
    server.sin_addr.s_addr = inet_addr(arguments[1]);
    server.sin_port = htons(atoi(arguments[2]));
    // A child that was forked before the first use of the stack may use it.
    pid_t child = fork();
    if (child == 0) {
        int fd = dial();
        echo(fd, "child");
        return 0;
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    names_and_duplicates();
    vectors_and_questions();
    epolls();
    threads_and_signals();
    restarts();
    forks();
    puts("good");
    return 0;
}
