/*
 * Accepts from the queues of a worker that does not run: one that has ended and cannot be replaced,
 * or that is stopped or blocked. Each worker counts its turns of the check in memory that all
 * workers of a configuration share, and watches the worker before it.
 */
#include "ngx_megapipe.h"
#include <sys/mman.h>

/* Checks without progress of the watched worker until its queues are served here. */
#define NGX_MP_UNCHANGED_MAX 3

/* How often they are served then. */
#define NGX_MP_TAKEOVER_MS 50

/* Maximum number of connections that are taken from a queue at once. */
#define NGX_MP_TAKEOVER_MAX 64

/* A count of its own cache line, which only its worker writes. */
typedef struct {
    ngx_atomic_t turns;
    u_char padding[64 - sizeof(ngx_atomic_t)];
} ngx_mp_turns_t;

/* A queue of the watched worker; nginx's connection has its descriptor and its listener. */
typedef struct {
    ngx_connection_t connection;
    ngx_event_t read;
} ngx_mp_foreign_t;

static void ngx_mp_serve_foreign(void);
static ngx_int_t ngx_mp_watch_queue(ngx_listening_t *ls, int fd, ngx_cycle_t *cycle);

static ngx_mp_turns_t *ngx_mp_turns;
static size_t ngx_mp_turns_bytes;

static ngx_mp_foreign_t *ngx_mp_foreign;
static ngx_uint_t ngx_mp_foreign_count;
static ngx_atomic_uint_t ngx_mp_last_turns;
static ngx_uint_t ngx_mp_unchanged;

/* Called in the master for each configuration. The workers of the last one keep theirs. */
ngx_int_t
ngx_mp_share_turns(ngx_uint_t workers, ngx_log_t *log)
{
    if (ngx_mp_turns != NULL) {
        (void) munmap(ngx_mp_turns, ngx_mp_turns_bytes);
        ngx_mp_turns = NULL;
    }
    if (workers < 2) {
        return NGX_OK;
    }
    ngx_mp_turns_bytes = workers * sizeof(ngx_mp_turns_t);
    ngx_mp_turns = mmap(NULL, ngx_mp_turns_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ngx_mp_turns == MAP_FAILED) {
        ngx_mp_turns = NULL;
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "mmap() of %uz bytes failed",
                      ngx_mp_turns_bytes);
        return NGX_ERROR;
    }
    return NGX_OK;
}

/* Returns the worker whose queues this one watches; itself if there is none. */
ngx_uint_t
ngx_mp_watched_worker(const ngx_core_conf_t *ccf)
{
    ngx_uint_t workers = (ngx_uint_t) ccf->worker_processes;

    return ngx_mp_turns == NULL ? ngx_worker : (ngx_worker + workers - 1) % workers;
}

/* Notes the queues of the watched worker. Called in a worker, before it listens. */
ngx_int_t
ngx_mp_watch_queues(ngx_cycle_t *cycle)
{
    ngx_core_conf_t *ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    ngx_uint_t watched = ngx_mp_watched_worker(ccf), i, j, count;
    ngx_listening_t *ls = cycle->listening.elts;
    const int *siblings;

    if (ngx_process != NGX_PROCESS_WORKER || watched == ngx_worker) {
        return NGX_OK;
    }
    for (i = 0; i < cycle->listening.nelts; i++) {
        count = ngx_mp_siblings(ls[i].fd, &siblings);
        for (j = watched; j < count; j += (ngx_uint_t) ccf->worker_processes) {
            if (ngx_mp_watch_queue(&ls[i], siblings[j], cycle) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }
    return NGX_OK;
}

static ngx_int_t
ngx_mp_watch_queue(ngx_listening_t *ls, int fd, ngx_cycle_t *cycle)
{
    ngx_mp_foreign_t *queues, *queue;

    queues = ngx_calloc((ngx_mp_foreign_count + 1) * sizeof(ngx_mp_foreign_t), cycle->log);
    if (queues == NULL) {
        return NGX_ERROR;
    }
    if (ngx_mp_foreign_count > 0) {
        ngx_memcpy(queues, ngx_mp_foreign, ngx_mp_foreign_count * sizeof(ngx_mp_foreign_t));
        ngx_free(ngx_mp_foreign);
    }
    queue = &queues[ngx_mp_foreign_count++];
    queue->connection.fd = fd;
    queue->connection.listening = ls;
    queue->connection.log = &ls->log;
    queue->read.log = &ls->log;
    queue->read.accept = 1;
    ngx_mp_foreign = queues;
    return NGX_OK;
}

/*
 * Counts a turn, and serves the queues of the watched worker if it has counted none for some time.
 * Returns when to call it again.
 */
ngx_msec_t
ngx_mp_check_worker(ngx_msec_t interval_ms)
{
    ngx_core_conf_t *ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx, ngx_core_module);
    ngx_atomic_uint_t turns;

    if (ngx_mp_turns == NULL || ngx_process != NGX_PROCESS_WORKER) {
        return interval_ms;
    }
    ngx_mp_turns[ngx_worker].turns++;
    turns = ngx_mp_turns[ngx_mp_watched_worker(ccf)].turns;
    if (turns != ngx_mp_last_turns) {
        ngx_mp_last_turns = turns;
        ngx_mp_unchanged = 0;
        return interval_ms;
    }
    ngx_mp_unchanged++;
    if (ngx_mp_unchanged < NGX_MP_UNCHANGED_MAX || ngx_mp_foreign_count == 0) {
        return interval_ms;
    }
    if (ngx_mp_unchanged == NGX_MP_UNCHANGED_MAX) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "megapipe: worker %ui does not run; its new connections are served here",
                      ngx_mp_watched_worker(ccf));
    }
    ngx_mp_serve_foreign();
    return NGX_MP_TAKEOVER_MS;
}

/* Accepts as nginx does, with descriptors: one connection at a time, or all with multi_accept. */
static void
ngx_mp_serve_foreign(void)
{
    ngx_mp_foreign_t *queue;
    ngx_uint_t i, taken;

    for (i = 0; i < ngx_mp_foreign_count; i++) {
        queue = &ngx_mp_foreign[i];
        queue->connection.read = &queue->read;
        queue->read.data = &queue->connection;
        queue->read.handler = ngx_event_accept;
        for (taken = 0; taken < NGX_MP_TAKEOVER_MAX && !queue->read.timer_set
                        && ngx_mp_is_ready(queue->connection.fd, POLLIN); taken++)
        {
            ngx_event_accept(&queue->read);
        }
    }
}
