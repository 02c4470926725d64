/* Runs a worker thread's loop, with completions instead of events. */
#include "megapipe_inside.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files a poll for one event, not for each edge: memcached reads the descriptor for each
 * report, and would block if two edges came before its first read. */
static void watch(const struct megapipe_notifier *notifier) {
    if (mp_poll(notifier->handle, POLLIN, 0) == -1) {
        megapipe_complain("cannot watch a worker's wake-up descriptor");
        exit(EXIT_FAILURE);
    }
}

static void register_notifier(struct megapipe_worker *worker, struct megapipe_notifier *notifier) {
    notifier->handle =
        mp_register(worker->channel, event_get_fd(notifier->event), notifier, NULL);
    if (notifier->handle == -1) {
        megapipe_complain("cannot register a worker's wake-up descriptor");
        exit(EXIT_FAILURE);
    }
    watch(notifier);
}

/* Adds a descriptor by which other threads wake the worker, before the worker runs. */
int megapipe_watch_notifier(struct megapipe_worker *worker, struct event *event) {
    if (worker->notifiers_count == MEGAPIPE_NOTIFIERS_MAX)
        return -1;
    worker->notifiers[worker->notifiers_count++] =
        (struct megapipe_notifier){ .kind = MEGAPIPE_NOTIFY, .event = event, .handle = -1 };
    return 0;
}

static struct mp_options options = { .large_buffer_bytes = MEGAPIPE_LARGE_BUFFER_BYTES };

/* Chooses epoll for all workers if there is memory for the rings of some only. */
static void choose_driver(void) {
    if (mp_check_locked_memory(&options, (uint32_t)megapipe_workers()) == -1 && errno == ENOMEM) {
        megapipe_complain("all workers use epoll");
        options.driver = MP_DRIVER_EPOLL;
    }
}

/* Without its channel a worker could serve no client, and memcached cannot run without a
 * worker. */
static void open_channel(struct megapipe_worker *worker) {
    static pthread_once_t chosen = PTHREAD_ONCE_INIT;
    pthread_once(&chosen, choose_driver);
    worker->channel = mp_create(&options);
    if (worker->channel == NULL) {
        megapipe_complain("cannot create a worker's channel");
        exit(EXIT_FAILURE);
    }
    for (int i = 0; i < worker->notifiers_count; i++)
        register_notifier(worker, &worker->notifiers[i]);
    snprintf(worker->driver, sizeof(worker->driver), "%s", mp_driver(worker->channel));
    if (worker->index == 0 && settings.verbose > 0) {
        const char *reason = mp_driver_reason(worker->channel);
        fprintf(stderr, "megapipe %s, driver %s: %s\n", mp_version(), worker->driver,
                reason != NULL ? reason : "as asked for");
    }
}

static void notified(struct megapipe_worker *worker, const struct megapipe_notifier *notifier) {
    struct event *event = notifier->event;
    event_get_callback(event)(event_get_fd(event), EV_READ, event_get_callback_arg(event));
    if (!worker->stop)
        watch(notifier);
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
        notified(worker, event->cookie);
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

/* Handles a batch, and prefetches the items of its next requests meanwhile. */
static void handle_batch(struct megapipe_worker *worker, const struct mp_event *events,
                         int count) {
    const void *buckets[MEGAPIPE_BATCH];
    for (int i = -2 * MEGAPIPE_AHEAD; i < count; i++) {
        const int bucket = i + 2 * MEGAPIPE_AHEAD, item = i + MEGAPIPE_AHEAD;
        /* A prefetch does not help a lone request. */
        if (bucket < count)
            buckets[bucket] = count > 1 ? megapipe_prefetch_bucket(&events[bucket]) : NULL;
        if (item >= 0 && item < count)
            megapipe_prefetch_item(buckets[item]);
        if (i < 0)
            continue;
        /* A connection may not exist any more afterwards. */
        const enum megapipe_kind kind = *(const enum megapipe_kind *)events[i].cookie;
        handle(worker, &events[i]);
        /* The worker may have paused meanwhile, and the table may have been replaced. */
        if (kind == MEGAPIPE_NOTIFY)
            memset(buckets, 0, sizeof(buckets));
    }
}

static int patience_ms(const struct megapipe_worker *worker) {
    if (!TAILQ_EMPTY(&worker->ready) || worker->postponed_count != 0)
        return 0;
    return TAILQ_EMPTY(&worker->closing) ? -1 : 1000;
}

/* Does the work that is due by time or when the worker is idle, and not because of a
 * completion. */
static void keep_house(struct megapipe_worker *worker, bool is_idle) {
    if (worker->postponed_count != 0
        && (is_idle || ++worker->postponed_turns >= MEGAPIPE_POSTPONED_TURNS))
        megapipe_decide_postponed(worker);
    if (!TAILQ_EMPTY(&worker->closing))
        megapipe_reap(worker);
}

bool megapipe_turn(struct event_base *base) {
    struct megapipe_worker *worker = megapipe_worker_of(base);
    struct mp_event events[MEGAPIPE_BATCH];
    if (worker == NULL) {
        event_base_loop(base, EVLOOP_ONCE);
        return !event_base_got_exit(base);
    }
    if (worker->channel == NULL) {
        megapipe_worker_enter(worker);
        open_channel(worker);
    }
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
    if (!worker->stop)
        return true;
    if (mp_destroy(worker->channel) == -1)
        megapipe_complain("cannot end a worker's channel");
    worker->channel = NULL;
    return false;
}

void megapipe_worker_stop(struct event_base *base) {
    struct megapipe_worker *worker = megapipe_worker_of(base);
    if (worker != NULL)
        worker->stop = true;
    else
        event_base_loopexit(base, NULL);
}

/* Connections are closed by then: memcached closes them between the end of the loop and this
 * call. */
void megapipe_worker_free(struct event_base *base) {
    struct megapipe_worker *worker = megapipe_worker_of(base);
    struct megapipe_connection *connection;
    if (worker == NULL) {
        event_base_free(base);
        return;
    }
    while ((connection = TAILQ_FIRST(&worker->closing)) != NULL) {
        TAILQ_REMOVE(&worker->closing, connection, closing_link);
        megapipe_finish(connection);
    }
    megapipe_memory_free(worker);
}
