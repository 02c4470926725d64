/* Prints what threads see that wait for an epoll set while others change it: the same with and
   without `fable run`. Usage: waiters CASE HOW-TO-WAIT */
#include "pair.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ROUNDS 300
#define MEMBERS 8
/* The data of the set's members; the connections count from here. */
#define STOP 1000
#define FIRST 77
/* The data of a member that is always ready. */
#define READY 76

static const char *how;
static int set, stop;

/* Makes one call, which waits for ever. */
static int wait_for_events(struct epoll_event *events, int room) {
    if (strcmp(how, "pwait") == 0) return epoll_pwait(set, events, room, -1, NULL);
    if (strcmp(how, "pwait2") == 0) return epoll_pwait2(set, events, room, NULL, NULL);
    if (strcmp(how, "syscall") == 0) return syscall(SYS_epoll_wait, set, events, room, -1);
    return epoll_wait(set, events, room, -1);
}

/* Makes epoll_pwait2(2) fail: with ENOSYS as on kernels before Linux 5.11, else as filters of
   system calls that do not know it. */
static void be_old(int error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void control(int operation, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    CHECK(epoll_ctl(set, operation, fd, &event) == 0);
}

/* Opens a set with an eventfd, which can end a wait. */
static void open_set(void) {
    set = epoll_create1(0);
    stop = eventfd(0, 0);
    CHECK(set >= 0 && stop >= 0);
    control(EPOLL_CTL_ADD, stop, EPOLLIN, STOP);
}

static void end_wait(void) {
    uint64_t one = 1;
    CHECK(write(stop, &one, sizeof one) == sizeof one);
}

/* Both ends of a connection, whose directions use memory, if they do so. */
struct ends {
    int here, there;
};

static void move(int from, int to) {
    char byte;
    CHECK(write(from, "x", 1) == 1 && read(to, &byte, 1) == 1);
}

static struct ends connect_here(void) {
    static struct sockaddr_in address;
    static int listener = -1;
    if (listener < 0) listener = listen_anywhere(&address);
    struct ends ends = {.here = dial(&address)};
    ends.there = accept(listener, NULL, NULL);
    CHECK(ends.there >= 0);
    for (int turn = 0; turn < 3; turn++) {
        move(ends.here, ends.there);
        move(ends.there, ends.here);
    }
    return ends;
}

/* A thread of this process. */
struct thread {
    pthread_t handle;
    atomic_int number;
};

/* Returns when the thread sleeps in the kernel. */
static void await_sleep(struct thread *thread) {
    char path[64], text[256];
    while (thread->number == 0) sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread->number);
    for (;;) {
        FILE *file = fopen(path, "r");
        CHECK(file != NULL);
        CHECK(fgets(text, sizeof text, file) != NULL);
        fclose(file);
        if (strstr(text, ") S ") != NULL) return;
        sched_yield();
    }
}

static void start(struct thread *thread, void *(*function)(void *)) {
    thread->number = 0;
    CHECK(pthread_create(&thread->handle, NULL, function, thread) == 0);
}

/* Waits once and prints the result. */
static void *wait_once(void *argument) {
    struct thread *self = argument;
    struct epoll_event events[4];
    self->number = gettid();
    int count = wait_for_events(events, 4);
    for (int index = 0; index < count; index++) {
        printf("event: %#x, %llu\n", events[index].events,
               (unsigned long long)events[index].data.u64);
    }
    return NULL;
}

/* The set gets its member while the thread already waits for it. */
static void added(void) {
    struct ends ends = connect_here();
    struct thread thread;
    start(&thread, wait_once);
    await_sleep(&thread);
    control(EPOLL_CTL_ADD, ends.here, EPOLLIN | EPOLLONESHOT, FIRST);
    await_sleep(&thread);
    CHECK(write(ends.there, "x", 1) == 1);
    CHECK(pthread_join(thread.handle, NULL) == 0);
}

/* A member leaves the set while the thread waits for it. */
static void leave(int closes) {
    struct ends ends = connect_here();
    struct thread thread;
    control(EPOLL_CTL_ADD, ends.here, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, FIRST);
    start(&thread, wait_once);
    await_sleep(&thread);
    if (closes) {
        close(ends.here);
    } else {
        control(EPOLL_CTL_DEL, ends.here, 0, 0);
        CHECK(write(ends.there, "x", 1) == 1);
    }
    close(ends.there);
    await_sleep(&thread);
    end_wait();
    CHECK(pthread_join(thread.handle, NULL) == 0);
}

static void removed(void) {
    leave(0);
}
static void closed(void) {
    leave(1);
}

/* A member returns to TCP while the thread waits for it. */
static void plain(void) {
    struct ends ends = connect_here();
    struct thread thread;
    control(EPOLL_CTL_ADD, ends.here, EPOLLIN | EPOLLONESHOT, FIRST);
    start(&thread, wait_once);
    await_sleep(&thread);
    CHECK(fdopen(ends.here, "r") != NULL);
    await_sleep(&thread);
    CHECK(write(ends.there, "x", 1) == 1);
    CHECK(pthread_join(thread.handle, NULL) == 0);
}

static struct ends members[MEMBERS];
static atomic_int read_bytes, taken;
static pthread_barrier_t together;

static int take_one(void) {
    struct epoll_event event;
    char byte;
    CHECK(wait_for_events(&event, 1) == 1);
    if (event.data.u64 == STOP) return 0;
    CHECK(event.data.u64 - FIRST < MEMBERS);
    CHECK(read(members[event.data.u64 - FIRST].here, &byte, 1) == 1);
    read_bytes++;
    return 1;
}

static void *take_all(void *argument) {
    struct thread *self = argument;
    self->number = gettid();
    while (take_one()) taken++;
    return NULL;
}

/* The waiting thread's member is armed again after each event. Each round takes microseconds; if
   each took 100 ms, all together would exceed this process's time limit. */
static void armed(void) {
    struct thread thread;
    members[0] = connect_here();
    control(EPOLL_CTL_ADD, members[0].here, EPOLLONESHOT, FIRST);
    start(&thread, take_all);
    for (int round = 0; round < ROUNDS; round++) {
        await_sleep(&thread);
        CHECK(write(members[0].there, "x", 1) == 1);
        await_sleep(&thread);
        control(EPOLL_CTL_MOD, members[0].here, EPOLLIN | EPOLLONESHOT, FIRST);
        while (taken <= round) sched_yield();
    }
    end_wait();
    CHECK(pthread_join(thread.handle, NULL) == 0);
    printf("taken: %d\n", taken);
}

/* Two threads take one event each, and neither continues before the other has one. */
static void *take_together(void *argument) {
    struct thread *self = argument;
    self->number = gettid();
    while (take_one()) {
        pthread_barrier_wait(&together);
        taken++;
    }
    return NULL;
}

static void start_two(struct thread *threads) {
    CHECK(pthread_barrier_init(&together, NULL, 2) == 0);
    for (int index = 0; index < 2; index++) start(&threads[index], take_together);
}

static void end_two(struct thread *threads) {
    end_wait();
    for (int index = 0; index < 2; index++) CHECK(pthread_join(threads[index].handle, NULL) == 0);
    printf("taken: %d\n", taken);
}

/* All members are armed and ready. */
static void shared(void) {
    struct thread threads[2];
    for (int index = 0; index < MEMBERS; index++) {
        members[index] = connect_here();
        control(EPOLL_CTL_ADD, members[index].here, EPOLLONESHOT, FIRST + index);
    }
    start_two(threads);
    for (int round = 0; round < ROUNDS; round++) {
        for (int index = 0; index < MEMBERS; index++) {
            control(EPOLL_CTL_MOD, members[index].here, EPOLLIN | EPOLLONESHOT, FIRST + index);
        }
        for (int index = 0; index < MEMBERS; index++) {
            CHECK(write(members[index].there, "x", 1) == 1);
        }
        while (taken < MEMBERS * (round + 1)) sched_yield();
    }
    end_two(threads);
}

/* A member is ready again while the thread that got its event is busy. */
static void again(void) {
    struct thread threads[2];
    members[0] = connect_here();
    control(EPOLL_CTL_ADD, members[0].here, EPOLLIN | EPOLLET, FIRST);
    start_two(threads);
    for (int round = 0; round < ROUNDS; round++) {
        for (int index = 0; index < 2; index++) await_sleep(&threads[index]);
        for (int index = 0; index < 2; index++) {
            int before = atomic_load(&read_bytes);
            CHECK(write(members[0].there, "x", 1) == 1);
            while (read_bytes == before) sched_yield();
        }
        while (taken < 2 * (round + 1)) sched_yield();
    }
    end_two(threads);
}

/* A child has its parent's set: it may get events of the parent's connections, but none of a
   descriptor that was never registered. */
static void inherited(void) {
    struct ends ends = connect_here();
    int turns[2];
    CHECK(pipe(turns) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        struct epoll_event event;
        close(ends.here);
        CHECK(read(turns[0], &byte, 1) == 1);
        do {
            CHECK(wait_for_events(&event, 1) == 1);
        } while (event.data.u64 == FIRST);
        printf("event: %#x, %llu\n", event.events, (unsigned long long)event.data.u64);
        fflush(stdout);
        _exit(0);
    }
    control(EPOLL_CTL_ADD, ends.here, EPOLLIN | EPOLLET, FIRST);
    CHECK(write(ends.there, "x", 1) == 1 && write(turns[1], "!", 1) == 1);
    end_wait();
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Waits for members beside one that always has room to write, so that no wait sleeps. `how` says
   whether the members are edge-triggered, and whether a wait returns one event or several. */
static int wait_beside_ready(struct epoll_event *events) {
    int count = wait_for_events(events, strstr(how, "one") != NULL ? 1 : 4);
    CHECK(count > 0);
    return count;
}

static void add_reader(int fd, uint64_t data) {
    control(EPOLL_CTL_ADD, fd, EPOLLIN | (strstr(how, "edge") != NULL ? EPOLLET : 0), data);
}

/* Adds a member, and waits until only the other one has events. */
static void add_beside_ready(int fd, uint64_t data) {
    struct epoll_event events[4];
    add_reader(fd, data);
    for (int turn = 0; turn < 100; turn++) CHECK(wait_beside_ready(events) == 1);
}

static void add_ready(void) {
    control(EPOLL_CTL_ADD, connect_here().here, EPOLLOUT, READY);
}

static void tell_event(uint64_t data) {
    struct epoll_event events[4];
    for (;;) {
        int count = wait_beside_ready(events);
        for (int index = 0; index < count; index++) {
            if (events[index].data.u64 != data) continue;
            printf("event: %#x\n", events[index].events);
            return;
        }
    }
}

/* A member has sent its request before it was accepted, and is answered. */
static void answered(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    add_ready();
    struct ends ends = {.here = dial(&address)};
    CHECK(write(ends.here, "x", 1) == 1);
    add_beside_ready(ends.here, FIRST);
    ends.there = accept(listener, NULL, NULL);
    char byte;
    CHECK(read(ends.there, &byte, 1) == 1 && write(ends.there, "y", 1) == 1);
    tell_event(FIRST);
    CHECK(read(ends.here, &byte, 1) == 1 && byte == 'y');
    CHECK(write(ends.there, "z", 1) == 1);
    tell_event(FIRST);
}

/* A member was accepted before its client sends. */
static void asked(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    add_ready();
    struct ends ends = {.there = dial(&address)};
    ends.here = accept(listener, NULL, NULL);
    add_beside_ready(ends.here, FIRST);
    CHECK(write(ends.there, "x", 1) == 1);
    tell_event(FIRST);
}

static void *return_to_tcp(void *argument) {
    struct ends *ends = argument;
    CHECK(fdopen(ends->there, "r") != NULL);
    CHECK(write(ends->there, "x", 1) == 1);
    return NULL;
}

/* The peer of a member returns to TCP, which it cannot do alone. */
static void left(void) {
    struct ends ends = connect_here();
    pthread_t thread;
    add_ready();
    add_beside_ready(ends.here, FIRST);
    CHECK(pthread_create(&thread, NULL, return_to_tcp, &ends) == 0);
    tell_event(FIRST);
    char byte;
    printf("read: %zd\n", read(ends.here, &byte, 1));
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A descriptor of the kernel has an event, and a member for which a thread has slept. */
static void others(void) {
    struct sockaddr_in address;
    int listener = listen_anywhere(&address);
    struct ends ends = connect_here();
    struct epoll_event event;
    add_reader(ends.here, FIRST);
    CHECK(epoll_wait(set, &event, 1, 50) == 0);
    add_ready();
    add_beside_ready(listener, FIRST + 1);
    CHECK(write(ends.there, "x", 1) == 1);
    tell_event(FIRST);
    dial(&address);
    tell_event(FIRST + 1);
    end_wait();
    tell_event(STOP);
}

static const struct test_case CASES[] = {
    {"added", added}, {"removed", removed}, {"closed", closed},       {"plain", plain},
    {"armed", armed}, {"shared", shared},   {"again", again},   {"inherited", inherited},
    {"left", left},   {"others", others},   {"asked", asked},   {"answered", answered},
};

int main(int count, char **arguments) {
    CHECK(count >= 3);
    how = arguments[2];
    alarm(600);
    if (strcmp(how, "old") == 0) be_old(ENOSYS);
    if (strcmp(how, "eperm") == 0) be_old(EPERM);
    if (strcmp(how, "eacces") == 0) be_old(EACCES);
    if (strcmp(how, "einval") == 0) be_old(EINVAL);
    open_set();
    return run_case(arguments[1], CASES, COUNT(CASES));
}
