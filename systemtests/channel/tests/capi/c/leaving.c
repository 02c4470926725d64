/* Leaves a call in the middle, which is forbidden, and shows what to do instead. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <sys/wait.h>

static sigjmp_buf before_the_call;
static mp_channel *jumped;
static int wake_fd;

/* Jumps only out of a call. A test cannot time that, so the next signal tries again. */
static void jump(int signal)
{
    (void)signal;
    if (mp_flush(jumped) == -1 && errno == EDEADLK)
        siglongjmp(before_the_call, 1);
}

static void wake(int signal)
{
    uint64_t one = 1;

    (void)signal;
    CHECK(write(wake_fd, &one, sizeof one) == sizeof one);
}

/* The channel is lost, and reports it; another channel is not affected. */
static void a_jump_out_of_a_wait_is_noticed(void)
{
    mp_channel *channel = channel_new(), *other = channel_new();
    struct itimerval often = { .it_value.tv_usec = 5000, .it_interval.tv_usec = 5000 };
    struct itimerval never = { .it_value.tv_usec = 0 };
    struct mp_event event;

    jumped = channel;
    signal(SIGALRM, jump);
    if (sigsetjmp(before_the_call, 1) == 0) {
        CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
        mp_dispatch(channel, &event, 60000);
        CHECK(!"a signal comes first");
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    FAILS(mp_flush(channel), EDEADLK);
    FAILS(mp_dispatch(channel, &event, 0), EDEADLK);
    FAILS(mp_destroy(channel), EDEADLK);
    CHECK(mp_dispatch(other, &event, 0) == 0);
    CHECK(mp_destroy(other) == 0);
}

static void a_signal_handler_ends_a_wait_by_an_eventfd(void)
{
    mp_channel *channel = channel_new();
    struct itimerval soon = { .it_value.tv_usec = 20000 };
    struct mp_event event;
    uint64_t count = 0;
    int got;

    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    signal(SIGALRM, wake);
    CHECK(mp_read(mp_register(channel, wake_fd, NULL, NULL), &count, sizeof count) == 0);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    /* The return of the handler may be reported first. */
    while ((got = mp_dispatch(channel, &event, -1)) == 0)
        ;
    CHECK(got == 1 && event.cmd == MP_READ && event.error == 0 && count == 1);
    CHECK(mp_destroy(channel) == 0);
    close(wake_fd);
}

static pthread_barrier_t ready;

static void *wait_for_wake(void *cancelled)
{
    mp_channel *channel;
    struct mp_event event;
    uint64_t count = 0;
    int was;

    if (!cancelled)
        CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was) == 0);
    channel = channel_new();
    CHECK(mp_read(mp_register(channel, wake_fd, NULL, NULL), &count, sizeof count) == 0);
    pthread_barrier_wait(&ready);
    CHECK(mp_dispatch(channel, &event, -1) == 1 && count == 1);
    CHECK(mp_destroy(channel) == 0);
    return &ready;
}

/* Cancels a thread that waits; returns the status of the process. */
static int status_after_cancelling(int is_allowed)
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        pthread_t thread;
        void *result;

        wake_fd = eventfd(0, EFD_CLOEXEC);
        pthread_barrier_init(&ready, NULL, 2);
        CHECK(pthread_create(&thread, NULL, wait_for_wake, is_allowed ? &ready : NULL) == 0);
        pthread_barrier_wait(&ready);
        CHECK(pthread_cancel(thread) == 0);
        if (!is_allowed)
            wake(0);
        CHECK(pthread_join(thread, &result) == 0);
        _exit(result == &ready ? 0 : 2);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void a_cancelled_thread_ends_the_process(void)
{
    mp_channel *channel = channel_new();
    int is_epoll = !strcmp(mp_driver(channel), "epoll");

    CHECK(mp_destroy(channel) == 0);
    /* A wait in io_uring_enter(2) is not a cancellation point. */
    if (is_epoll) {
        int status = status_after_cancelling(1);

        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    CHECK(status_after_cancelling(0) == 0);
}

int main(void)
{
    a_cancelled_thread_ends_the_process();
    a_signal_handler_ends_a_wait_by_an_eventfd();
    a_jump_out_of_a_wait_is_noticed();
    puts("leaving: all is well");
    return 0;
}
