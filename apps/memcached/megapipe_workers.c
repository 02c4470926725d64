/* Manages the table of the workers, and provides what all other files need: time and error
 * texts. */
#include "megapipe_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void megapipe_complain(const char *what) {
    const char *why = mp_error();
    fprintf(stderr, "megapipe: %s: %s\n", what, why != NULL ? why : strerror(errno));
}

/* Workers are identified by their address, because a base of libevent must not be read as a
 * worker. */
static struct megapipe_worker **workers;
static int workers_count;
static _Thread_local struct megapipe_worker *here;

struct event_base *megapipe_worker_new(void *worker_thread, struct event_base *base) {
#ifdef PROXY
    if (settings.proxy_enabled)
        return base;
#endif
    event_base_free(base);
    struct megapipe_worker *worker = calloc(1, sizeof(*worker));
    struct megapipe_worker **longer = realloc(workers, (workers_count + 1) * sizeof(*workers));
    if (worker == NULL || longer == NULL) {
        fprintf(stderr, "megapipe: no memory for a worker; use fewer threads (-t)\n");
        exit(EXIT_FAILURE);
    }
    workers = longer;
    worker->thread = worker_thread;
    worker->index = workers_count;
    strcpy(worker->driver, "none");
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

void megapipe_worker_enter(struct megapipe_worker *worker) {
    here = worker;
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
        if (write(event_get_fd(workers[i]->notifiers[0].event), &one, sizeof(one)) != sizeof(one))
            perror("megapipe: cannot wake a worker");
    }
}

int64_t megapipe_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static unsigned long count_of(atomic_ulong *count) {
    return atomic_load_explicit(count, memory_order_relaxed);
}

uint64_t megapipe_held_bytes(int worker) {
    return worker < workers_count ? count_of(&workers[worker]->held_bytes) : 0;
}

void megapipe_stats(ADD_STAT add_stats, void *c) {
    APPEND_STAT("driver", "%s", workers_count != 0 ? workers[0]->driver : "libevent");
    for (int i = 0; i < workers_count; i++) {
        struct megapipe_worker *worker = workers[i];
        char key_str[STAT_KEY_LEN];
        char val_str[STAT_VAL_LEN];
        int klen = 0, vlen = 0;
        APPEND_NUM_STAT(i, "accepted", "%lu", count_of(&worker->accepted));
        APPEND_NUM_STAT(i, "sent_copied", "%lu", count_of(&worker->sent_copied));
        APPEND_NUM_STAT(i, "sent_in_place", "%lu", count_of(&worker->sent_in_place));
        APPEND_NUM_STAT(i, "held_bytes", "%lu", count_of(&worker->held_bytes));
    }
    add_stats(NULL, 0, NULL, 0, c); /* the end of the list */
}
