/* Ways to move bytes, on standard output: the same on the kernel and on the stack. Usage: transfers
   CASE OWN PEER NETWORK */
#include "sockets.h"

static void print_bytes(const char *what, const char *bytes, ssize_t count) {
    tell(what, count);
    if (count > 0) printf(":%.*s", (int)count, bytes);
}

/* Peeking into several buffers, at the same bytes again and again. */
static void peeks(void) {
    int fd = dial();
    peer(SEND, 20);
    await_bytes(fd, 20);
    for (int first = 0; first < 24; first += 3) {
        char room[3][16] = {"", "", ""};
        struct iovec parts[4] = {{room[0], first % 16}, {NULL, 0}, {room[1], 7}, {room[2], 16}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};
        printf("first %d:", first);
        tell("peek", recvmsg(fd, &message, MSG_PEEK | (first > 12 ? MSG_DONTWAIT : 0)));
        printf(" %.16s %.16s %.16s\n", room[0], room[1], room[2]);
    }
    char room[64];
    print_bytes("read", room, read(fd, room, 5));
    print_bytes("peek", room, recv(fd, room, sizeof room, MSG_PEEK));
    ask(SEND, 10);
    print_bytes("all", room, recv(fd, room, 20, MSG_PEEK | MSG_WAITALL));
    answered();
    putchar('\n');
    close(fd);
}

/* Buffers that are none. */
static void nulls(void) {
    char one[8] = "abcdefg", two[8] = "hijklmn";
    struct iovec lists[][3] = {
        {{NULL, 0}, {one, 3}, {NULL, 0}}, {{NULL, 5}, {one, 3}, {two, 2}},
        {{one, 3}, {NULL, 5}, {two, 2}},  {{NULL, 0}, {NULL, 0}, {NULL, 0}},
        {{one, 3}, {two, (size_t)-1}, {two, 2}},
    };
    /* What the compiler knows to be wrong it would refuse. */
    void *volatile none = NULL;
    volatile int negative = -1, many = 1025;
    for (int index = 0; index < COUNT(lists); index++) {
        struct iovec *volatile list = lists[index];
        struct msghdr message = {.msg_iov = list, .msg_iovlen = 3};
        for (int amount = 0; amount < 9; amount += 4) {
            int fd = dial();
            set_nonblocking(fd, 1);
            if (amount > 0) peer(SEND, amount);
            await_bytes(fd, amount);
            printf("list %d amount %d:", index, amount);
            tell("writev", writev(fd, list, 3));
            tell("sendmsg", sendmsg(fd, &message, MSG_NOSIGNAL));
            tell("peek", recvmsg(fd, &message, MSG_PEEK));
            tell("readv", readv(fd, list, 3));
            tell("recvmsg", recvmsg(fd, &message, 0));
            tell("read", read(fd, none, 1));
            tell("none", read(fd, none, 0));
            tell("write", write(fd, none, 1));
            tell("none", write(fd, none, 0));
            tell("count", readv(fd, list, 0));
            tell("count", readv(fd, list, negative));
            tell("count", readv(fd, list, many));
            tell("count", writev(fd, list, many));
            tell("count", writev(fd, none, 2));
            message.msg_iovlen = 1025;
            tell("count", sendmsg(fd, &message, 0));
            message.msg_iovlen = 3;
            putchar('\n');
            reset(fd);
        }
    }
}

/* Many small writes that do not wait. */
static void small_writes(void) {
    for (int bytes = 1; bytes < 100; bytes *= 7) {
        int fd = dial(), done = 0, count = 0;
        char data[100];
        set_nonblocking(fd, 1);
        memset(data, 'z', sizeof data);
        for (; done < 1000; done++)
            if (write(fd, data, bytes) != bytes) break;
        printf("bytes %d:", bytes);
        tell("done", done);
        tell("queue", ioctl(fd, TIOCOUTQ, &count) == 0 && count <= 1000 * bytes);
        tell("peer", peer(RECEIVE, done * bytes));
        putchar('\n');
        close(fd);
    }
}

int main(int count, char **arguments) {
    static const struct test_case CASES[] = {
        {"peeks", peeks}, {"nulls", nulls}, {"small-writes", small_writes}};
    prepare(count, arguments);
    return run_case(arguments[1], CASES, COUNT(CASES));
}
