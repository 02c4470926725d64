/* Streams of numbered bytes in both directions at once, transferred by random calls, with many
   connections at a time and random returns to TCP. Usage: stress WAIT SEED CONNECTIONS BYTES
   LEAVES
   WAIT: poll, select, level, edge, oneshot */
#include "pair.h"

#define CONNECTIONS_MAX 64

struct flow {
    int fd;
    uint64_t send_seed, receive_seed;
    uint64_t sent, received, total;
    int ended, shut;
    int wants_write;
};

static const char *way;
static uint64_t chance;
static int set = -1;
static int may_leave;

static void register_flow(struct flow *flow, int operation) {
    struct epoll_event event = {.data.ptr = flow, .events = EPOLLIN};
    if (flow->wants_write || strcmp(way, "edge") == 0) event.events |= EPOLLOUT;
    if (strcmp(way, "edge") == 0) event.events |= EPOLLET | EPOLLRDHUP;
    if (strcmp(way, "oneshot") == 0) event.events |= EPOLLONESHOT;
    CHECK(epoll_ctl(set, operation, flow->fd, &event) == 0);
}

static ssize_t send_somehow(int fd, unsigned char *buffer, size_t length) {
    struct iovec list[3] = {{buffer, length / 3},
                            {buffer + length / 3, 0},
                            {buffer + length / 3, length - length / 3}};
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 3};
    switch (next_random(&chance) % 4) {
        case 0: return write(fd, buffer, length);
        case 1: return send(fd, buffer, length, MSG_NOSIGNAL);
        case 2: return writev(fd, list, 3);
        default: return sendmsg(fd, &message, 0);
    }
}

static ssize_t receive_somehow(int fd, unsigned char *buffer, size_t length) {
    struct iovec list[2] = {{buffer, length / 2}, {buffer + length / 2, length - length / 2}};
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 2};
    switch (next_random(&chance) % 6) {
        case 0: return read(fd, buffer, length);
        case 1: return recv(fd, buffer, length, MSG_DONTWAIT);
        case 2: return readv(fd, list, 2);
        case 3: return recvmsg(fd, &message, 0);
        case 4: return recv(fd, buffer, length, MSG_PEEK) == 0 ? 0 : read(fd, buffer, length);
        default: return recvfrom(fd, buffer, length, 0, NULL, NULL);
    }
}

/* Makes a call that a ring cannot support, so that the connection has to return to TCP. */
static void leave(int fd) {
    int one = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) == 0);
}

static int push(struct flow *flow) {
    static unsigned char buffer[60000];
    for (int turn = 0; turn < 4 && flow->sent < flow->total; turn++) {
        size_t length = next_random(&chance) % (next_random(&chance) % 4 ? 200 : sizeof buffer) + 1;
        if (length > flow->total - flow->sent) length = flow->total - flow->sent;
        fill(buffer, length, flow->send_seed, flow->sent);
        ssize_t moved = send_somehow(flow->fd, buffer, length);
        if (moved < 0 && errno == EAGAIN) return 0;
        CHECK(moved > 0);
        flow->sent += moved;
    }
    if (flow->sent == flow->total && !flow->shut) {
        flow->shut = 1;
        CHECK(shutdown(flow->fd, SHUT_WR) == 0);
    }
    return !flow->shut;
}

static int pull(struct flow *flow) {
    static unsigned char buffer[60000];
    for (int turn = 0; turn < 4 && !flow->ended; turn++) {
        size_t length = next_random(&chance) % (next_random(&chance) % 2 ? 100 : sizeof buffer) + 1;
        ssize_t moved = receive_somehow(flow->fd, buffer, length);
        if (moved < 0 && errno == EAGAIN) return 0;
        if (moved == 0) {
            CHECK(flow->received == flow->total);
            flow->ended = 1;
            return 0;
        }
        CHECK(moved > 0);
        verify(buffer, moved, flow->receive_seed, flow->received);
        flow->received += moved;
    }
    return !flow->ended;
}

static void work(struct flow *flow) {
    int edge = strcmp(way, "edge") == 0;
    int again;
    do {
        again = pull(flow);
        again |= push(flow);
        if (may_leave && next_random(&chance) % 60 == 0) leave(flow->fd);
    } while (edge && again);
    flow->wants_write = !flow->shut;
}

static int is_over(const struct flow *flow) { return flow->ended && flow->shut; }

static void wait_with_poll(struct flow *flows, int count) {
    struct pollfd list[CONNECTIONS_MAX];
    for (int index = 0; index < count; index++) {
        list[index].fd = is_over(&flows[index]) ? -1 : flows[index].fd;
        list[index].events = (flows[index].ended ? 0 : POLLIN);
        if (flows[index].wants_write) list[index].events |= POLLOUT;
    }
    CHECK(poll(list, count, 20000) > 0);
    for (int index = 0; index < count; index++) {
        if (list[index].fd >= 0 && list[index].revents) work(&flows[index]);
    }
}

static void wait_with_select(struct flow *flows, int count) {
    fd_set readable, writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    int highest = 0;
    for (int index = 0; index < count; index++) {
        if (is_over(&flows[index])) continue;
        if (!flows[index].ended) FD_SET(flows[index].fd, &readable);
        if (flows[index].wants_write) FD_SET(flows[index].fd, &writable);
        if (flows[index].fd > highest) highest = flows[index].fd;
    }
    struct timeval limit = {.tv_sec = 20};
    CHECK(select(highest + 1, &readable, &writable, NULL, &limit) > 0);
    for (int index = 0; index < count; index++) {
        if (is_over(&flows[index])) continue;
        int fd = flows[index].fd;
        if (FD_ISSET(fd, &readable) || FD_ISSET(fd, &writable)) work(&flows[index]);
    }
}

static void wait_with_epoll(void) {
    struct epoll_event events[8];
    int found = epoll_wait(set, events, 8, 20000);
    CHECK(found > 0);
    for (int index = 0; index < found; index++) {
        struct flow *flow = events[index].data.ptr;
        if (is_over(flow)) continue;
        int wanted = flow->wants_write;
        work(flow);
        if (is_over(flow)) {
            CHECK(epoll_ctl(set, EPOLL_CTL_DEL, flow->fd, NULL) == 0);
        } else if (strcmp(way, "oneshot") == 0 || flow->wants_write != wanted) {
            register_flow(flow, EPOLL_CTL_MOD);
        }
    }
}

int main(int arguments_count, char **arguments) {
    CHECK(arguments_count == 6);
    alarm(600);
    signal(SIGPIPE, SIG_IGN);
    way = arguments[1];
    uint64_t seed = strtoull(arguments[2], NULL, 10);
    int count = atoi(arguments[3]);
    uint64_t bytes = strtoull(arguments[4], NULL, 10);
    may_leave = atoi(arguments[5]);
    CHECK(count <= CONNECTIONS_MAX);
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    pid_t peer = fork();
    chance = seed * 2 + (peer == 0);
    static struct flow flows[CONNECTIONS_MAX];
    if (strcmp(way, "poll") && strcmp(way, "select")) set = epoll_create1(0);
    for (int index = 0; index < count; index++) {
        struct flow *flow = &flows[index];
        if (peer == 0) {
            flow->fd = dial(&address);
        } else {
            flow->fd = accept(listener, NULL, NULL);
        }
        CHECK(flow->fd >= 0);
        set_nonblocking(flow->fd);
        flow->send_seed = seed + index * 2 + (peer == 0);
        flow->receive_seed = seed + index * 2 + (peer != 0);
        flow->total = bytes;
        flow->wants_write = 1;
        if (set >= 0) register_flow(flow, EPOLL_CTL_ADD);
    }
    for (;;) {
        int over = 0;
        for (int index = 0; index < count; index++) over += is_over(&flows[index]);
        if (over == count) break;
        if (set >= 0) {
            wait_with_epoll();
        } else if (strcmp(way, "poll") == 0) {
            wait_with_poll(flows, count);
        } else {
            wait_with_select(flows, count);
        }
    }
    if (peer == 0) exit(0);
    int status;
    CHECK(waitpid(peer, &status, 0) == peer && status == 0);
    return 0;
}
