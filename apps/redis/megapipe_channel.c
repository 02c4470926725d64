/* Puts the channel in redis' event loop: the loop sleeps in the channel, which also waits for the
 * loop's own epoll. That keeps listeners, pipes, timers, TLS and the cluster as they are. */
#include "megapipe_inside.h"

#include <poll.h>
#include <sys/eventfd.h>

mp_channel *megapipe_channel;
unsigned megapipe_turn;

static int (*poll_epoll)(aeEventLoop *loop, struct timeval *timeout);
static mp_handle epoll_handle;
static bool epoll_watched, epoll_is_ready;

/* A descriptor that is never readable: as the event loop's event it calls `run_turn`. */
static int turn_fd;

static TAILQ_HEAD(, megapipe_stream) ready = TAILQ_HEAD_INITIALIZER(ready);
static unsigned ready_count;

/* Completions that were taken together. They are static because redis enters the event loop again
 * while a script runs or data is loaded: the inner loop goes on with those of the outer one. */
static struct mp_event events[MEGAPIPE_BATCH];
static int events_taken, events_handled;

void megapipeSchedule(struct megapipe_stream *stream) {
    if (stream->scheduled) return;
    stream->scheduled = 1;
    TAILQ_INSERT_TAIL(&ready, stream, ready_link);
    ready_count++;
}

void megapipeUnschedule(struct megapipe_stream *stream) {
    if (!stream->scheduled) return;
    stream->scheduled = 0;
    TAILQ_REMOVE(&ready, stream, ready_link);
    ready_count--;
}

static void handle(const struct mp_event *event, bool may_run) {
    if (event->cookie != NULL) {
        megapipeHandle(event, may_run);
    } else if (event->cmd == MP_POLL) {
        epoll_watched = false;
        epoll_is_ready = true;
    }
}

static void take(int limit, int timeout_ms) {
    if (!epoll_watched) epoll_watched = mp_poll(epoll_handle, POLLIN, 0) == 0;
    events_handled = 0;
    events_taken = mp_dispatch_batch(megapipe_channel, events, limit, timeout_ms);
    if (events_taken == -1) {
        if (errno != EINTR) serverPanic("megapipe: the channel has failed: %s", mp_error());
        events_taken = 0;
    }
}

void megapipeWait(void) {
    if (events_handled == events_taken) take(1, -1);
    if (events_handled < events_taken) {
        const struct mp_event event = events[events_handled++];
        handle(&event, false);
    }
}

/* Calls redis for all that is ready. */
static void run_turn(aeEventLoop *loop, int fd, void *data, int mask) {
    UNUSED(loop), UNUSED(fd), UNUSED(data), UNUSED(mask);
    megapipe_turn++;
    for (unsigned turns = ready_count; turns > 0 && !TAILQ_EMPTY(&ready); turns--) {
        struct megapipe_stream *stream = TAILQ_FIRST(&ready);
        megapipeUnschedule(stream);
        megapipeRun(stream);
    }
    while (events_handled < events_taken) {
        const struct mp_event event = events[events_handled++];
        handle(&event, true);
    }
}

/* Takes the place of aeApiPoll(). */
static int poll_channel(aeEventLoop *loop, struct timeval *timeout) {
    /* A forked child has redis' memory, and no channel. */
    if (server.in_fork_child) return poll_epoll(loop, timeout);
    if (events_handled == events_taken) {
        int timeout_ms = -1;
        if (ready_count != 0 || epoll_is_ready)
            timeout_ms = 0;
        else if (timeout != NULL)
            timeout_ms = timeout->tv_sec * 1000 + (timeout->tv_usec + 999) / 1000;
        take(MEGAPIPE_BATCH, timeout_ms);
    }
    for (int i = events_handled; i < events_taken; i++)
        if (events[i].cookie == NULL) epoll_is_ready = true;
    int count = 0;
    if (epoll_is_ready) {
        struct timeval none = {0, 0};
        epoll_is_ready = false;
        count = poll_epoll(loop, &none);
    }
    if (ready_count != 0 || events_handled < events_taken)
        loop->fired[count++] = (aeFiredEvent){.fd = turn_fd, .mask = AE_READABLE};
    return count;
}

/* Hands the last answers to the kernel. */
static void flush_at_exit(void) {
    if (!server.in_fork_child) mp_flush(megapipe_channel);
}

static void fail(const char *what, const char *why) {
    serverLog(LL_WARNING, "megapipe: %s: %s", what, why);
    exit(1);
}

void megapipeStart(void) {
    if (!server.megapipe) return;
    if (server.io_threads_num > 1)
        fail("`megapipe yes` does not work with io-threads",
             "a channel belongs to one thread; set `io-threads 1`, or `megapipe no`");
    const struct mp_options options = {
        .large_buffers = MEGAPIPE_LARGE_BUFFERS,
        .large_buffer_bytes = MEGAPIPE_LARGE_BUFFER_BYTES,
        .close_timeout_ms = MEGAPIPE_LAST_WORDS_MS,
        .events_after_close = 1,
    };
    megapipe_channel = mp_create(&options);
    if (megapipe_channel == NULL) fail("cannot create the channel", mp_error());
    /* The state of ae_epoll.c begins with its descriptor. */
    const int epoll_fd = *(const int *)server.el->apidata;
    epoll_handle = mp_register(megapipe_channel, epoll_fd, NULL, NULL);
    if (epoll_handle == -1) fail("cannot wait for the event loop's descriptor", mp_error());
    turn_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (turn_fd == -1
        || aeCreateFileEvent(server.el, turn_fd, AE_READABLE, run_turn, NULL) == AE_ERR)
        fail("cannot create an event", strerror(errno));
    poll_epoll = aePoll;
    aePoll = poll_channel;
    atexit(flush_at_exit);
    const char *reason = mp_driver_reason(megapipe_channel);
    serverLog(LL_NOTICE, "megapipe %s, driver %s: %s", mp_version(), mp_driver(megapipe_channel),
              reason != NULL ? reason : "as asked for");
}
