/* A worker thread's loop: completions instead of events. */
#include "megapipe_inside.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void megapipe_complain(const char *what) {
    const char *why = mp_error();
    fprintf(stderr, "megapipe: %s: %s\n", what, why != NULL ? why : strerror(errno));
}

/* Workers are known by their address: a base of libevent's must not be read as one of ours. */
static struct megapipe_worker **workers;
static int workers_count;
static _Thread_local struct megapipe_worker *here;

/* What the first worker's channel runs on, for the statistics. */
static char driver[32] = "none";

struct event_base *megapipe_worker_new(void *worker_thread, int notify_fd, megapipe_notified call) {
    struct megapipe_worker *worker = calloc(1, sizeof(*worker));
    struct megapipe_worker **longer = realloc(workers, (workers_count + 1) * sizeof(*workers));
    if (worker == NULL || longer == NULL) {
        fprintf(stderr, "megapipe: no memory for a worker; start with fewer threads (-t)\n");
        exit(EXIT_FAILURE);
    }
    workers = longer;
    worker->thread = worker_thread;
    worker->index = workers_count;
    worker->notify_fd = notify_fd;
    worker->notified = call;
    worker->notify_kind = MEGAPIPE_NOTIFY;
    worker->notify_handle = -1;
    TAILQ_INIT(&worker->ready);
    TAILQ_INIT(&worker->closing);
    SLIST_INIT(&worker->pieces);
    SLIST_INIT(&worker->flows);
    for (int i = 0; i < MEGAPIPE_LISTENERS_MAX; i++) {
        worker->shares[i].kind = MEGAPIPE_LISTENER;
        worker->shares[i].worker = worker;
        worker->shares[i].handle = -1;
    }
    workers[workers_count++] = worker;
    return (struct event_base *)worker;
}

struct megapipe_worker *megapipe_worker_of(const struct event_base *base) {
    for (int i = 0; i < workers_count; i++) {
        if ((const void *)workers[i] == (const void *)base)
            return workers[i];
    }
    return NULL;
}

struct megapipe_worker *megapipe_worker_here(void) {
    return here;
}

int megapipe_workers(void) {
    return workers_count;
}

void megapipe_notify_workers(void) {
    const uint64_t one = 1;
    for (int i = 0; i < workers_count; i++) {
        if (write(workers[i]->notify_fd, &one, sizeof(one)) != sizeof(one))
            perror("megapipe: cannot wake a worker");
    }
}

/* Once and not at each edge: memcached reads the descriptor for each report, and would block at
 * the second of two edges that came before its first read. */
static void watch_notifications(struct megapipe_worker *worker) {
    if (mp_poll(worker->notify_handle, POLLIN, 0) == -1) {
        megapipe_complain("cannot watch a worker's wake-up descriptor");
        exit(EXIT_FAILURE);
    }
}

/* Without its channel a worker could serve nobody, and memcached cannot go on without a worker. */
static void open_channel(struct megapipe_worker *worker) {
    const struct mp_options options = {0};
    worker->channel = mp_create(&options);
    if (worker->channel == NULL) {
        megapipe_complain("cannot create a worker's channel");
        exit(EXIT_FAILURE);
    }
    worker->notify_handle =
        mp_register(worker->channel, worker->notify_fd, &worker->notify_kind, NULL);
    if (worker->notify_handle == -1) {
        megapipe_complain("cannot register a worker's wake-up descriptor");
        exit(EXIT_FAILURE);
    }
    watch_notifications(worker);
    if (worker->index != 0)
        return;
    snprintf(driver, sizeof(driver), "%s", mp_driver(worker->channel));
    if (settings.verbose > 0) {
        const char *reason = mp_driver_reason(worker->channel);
        fprintf(stderr, "megapipe %s, driver %s: %s\n", mp_version(), driver,
                reason != NULL ? reason : "as asked for");
    }
}

static void notified(struct megapipe_worker *worker) {
    worker->notified(worker->notify_fd, EV_READ, worker->thread);
    if (!worker->stop)
        watch_notifications(worker);
}

static void handle_stream(struct megapipe_worker *worker, const struct mp_event *event) {
    struct megapipe_connection *connection = event->cookie;
    switch (event->cmd) {
    case MP_RECV:
        megapipe_received(connection, event);
        if (event->buffer != -1)
            mp_release(worker->channel, event->buffer);
        break;
    case MP_WRITE:
    case MP_WRITEV:
        megapipe_wrote(connection, event);
        break;
    case MP_POLL:
        megapipe_readiness(connection, event);
        break;
    case MP_CLOSE:
        megapipe_free(connection);
        break;
    default:
        break;
    }
}

static void handle(struct megapipe_worker *worker, const struct mp_event *event) {
    switch (*(const enum megapipe_kind *)event->cookie) {
    case MEGAPIPE_NOTIFY:
        notified(worker);
        break;
    case MEGAPIPE_LISTENER:
        if (event->cmd == MP_ACCEPT)
            megapipe_accepted(event->cookie, event);
        break;
    case MEGAPIPE_STREAM:
    case MEGAPIPE_READINESS:
        handle_stream(worker, event);
        break;
    }
}

/* Handles a batch while the memory of the requests in it is on its way. */
static void handle_batch(struct megapipe_worker *worker, const struct mp_event *events,
                         int count) {
    const void *buckets[MEGAPIPE_BATCH];
    for (int i = -2 * MEGAPIPE_AHEAD; i < count; i++) {
        const int bucket = i + 2 * MEGAPIPE_AHEAD, item = i + MEGAPIPE_AHEAD;
        /* Nothing is gained for a lone request. */
        if (bucket < count)
            buckets[bucket] = count > 1 ? megapipe_prefetch_bucket(&events[bucket]) : NULL;
        if (item >= 0 && item < count)
            megapipe_prefetch_item(buckets[item]);
        if (i < 0)
            continue;
        handle(worker, &events[i]);
        /* The worker may have stood still meanwhile, for the table to be changed for another. */
        if (events[i].cookie == &worker->notify_kind)
            memset(buckets, 0, sizeof(buckets));
    }
}

static int patience_ms(const struct megapipe_worker *worker) {
    if (!TAILQ_EMPTY(&worker->ready) || worker->postponed_count != 0)
        return 0;
    return TAILQ_EMPTY(&worker->closing) ? -1 : 1000;
}

int64_t megapipe_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* What is done because time has passed or nothing is left to do, not because something has
 * completed. */
static void keep_house(struct megapipe_worker *worker, bool is_idle) {
    if (worker->postponed_count != 0
        && (is_idle || ++worker->postponed_turns >= MEGAPIPE_POSTPONED_TURNS))
        megapipe_decide_postponed(worker);
    if (!TAILQ_EMPTY(&worker->closing))
        megapipe_reap(worker);
}

void megapipe_worker_run(struct event_base *base) {
    struct megapipe_worker *worker = megapipe_worker_of(base);
    struct mp_event events[MEGAPIPE_BATCH];
    here = worker;
    open_channel(worker);
    while (!worker->stop) {
        if (megapipe_listeners_changed(worker))
            megapipe_listeners_sync(worker);
        const int taken =
            mp_dispatch_batch(worker->channel, events, MEGAPIPE_BATCH, patience_ms(worker));
        if (taken == -1 && errno != EINTR) {
            megapipe_complain("a worker's channel has failed");
            exit(EXIT_FAILURE);
        }
        handle_batch(worker, events, taken);
        megapipe_run_ready(worker);
        keep_house(worker, taken == 0);
    }
    if (mp_destroy(worker->channel) == -1)
        megapipe_complain("cannot end a worker's channel");
    worker->channel = NULL;
}

void megapipe_worker_stop(struct event_base *base) {
    megapipe_worker_of(base)->stop = true;
}

/* Connections are closed by then: memcached closes them between the end of the loop and this. */
void megapipe_worker_free(struct event_base *base) {
    struct megapipe_worker *worker = megapipe_worker_of(base);
    struct megapipe_connection *connection;
    while ((connection = TAILQ_FIRST(&worker->closing)) != NULL) {
        TAILQ_REMOVE(&worker->closing, connection, closing_link);
        megapipe_finish(connection);
    }
    megapipe_memory_free(worker);
}

static unsigned long count_of(atomic_ulong *count) {
    return atomic_load_explicit(count, memory_order_relaxed);
}

void megapipe_stats(ADD_STAT add_stats, void *c) {
    APPEND_STAT("driver", "%s", driver);
    for (int i = 0; i < workers_count; i++) {
        struct megapipe_worker *worker = workers[i];
        char key_str[STAT_KEY_LEN];
        char val_str[STAT_VAL_LEN];
        int klen = 0, vlen = 0;
        APPEND_NUM_STAT(i, "accepted", "%lu", count_of(&worker->accepted));
        APPEND_NUM_STAT(i, "sent_copied", "%lu", count_of(&worker->sent_copied));
        APPEND_NUM_STAT(i, "sent_in_place", "%lu", count_of(&worker->sent_in_place));
    }
    add_stats(NULL, 0, NULL, 0, c); /* the end of the list */
}
