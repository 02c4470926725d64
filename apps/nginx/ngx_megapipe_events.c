/*
 * Implements nginx's event actions over a channel.
 */
#include "ngx_megapipe.h"

/* Maximum number of completions in one turn of nginx's loop; its timers come after them. */
#define NGX_MP_EVENTS 512

/* How long a worker that ends waits for writes that nginx considers sent. */
#define NGX_MP_FINISH_TIMEOUT_MS 1000

static ngx_int_t ngx_mp_make_room(ngx_cycle_t *cycle, rlim_t wanted, struct rlimit *before);
static void ngx_mp_completion(struct mp_event *done, ngx_uint_t flags);
static void ngx_mp_stale(struct mp_event *done);

static struct mp_event ngx_mp_batch[NGX_MP_EVENTS];
static ngx_uint_t ngx_mp_finishing;

/* Returns the options of a worker's channel. */
struct mp_options
ngx_mp_options(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf)
{
    struct mp_options options;

    ngx_memzero(&options, sizeof(options));
    options.driver = (uint32_t) conf->driver;
    options.batch = (uint32_t) conf->batch;
    options.completions = (uint32_t) conf->completions;
    /* Closed connections whose last bytes are in flight count, too. */
    options.max_handles = (uint32_t) ngx_min(
        cycle->connection_n * 2 + NGX_MP_OTHER_HANDLES_MAX, (ngx_uint_t) NGX_MP_HANDLES_MAX);
    options.large_buffer_bytes = NGX_MP_LARGE_BUFFER_BYTES;
    /* With room for a whole accept queue the channel can use a multishot accept. */
    options.max_lwsockets = (uint32_t) cycle->connection_n + 1024;
    return options;
}

/* Creates the worker's channel. */
ngx_int_t
ngx_mp_open(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf)
{
    struct mp_options options = ngx_mp_options(cycle, conf);
    struct rlimit before;
    const char *reason;
    ngx_uint_t level;

    ngx_mp_close_other_queues(cycle);
    if (ngx_mp_watch_queues(cycle) != NGX_OK) {
        return NGX_ERROR;
    }
    if (ngx_mp_make_room(cycle, options.max_lwsockets, &before) != NGX_OK) {
        return NGX_ERROR;
    }
    ngx_mp_channel = mp_create(&options);
    (void) setrlimit(RLIMIT_NOFILE, &before);
    if (ngx_mp_channel == NULL) {
        ngx_mp_failed(cycle->log, NGX_LOG_EMERG, "mp_create()");
        return NGX_ERROR;
    }
    reason = mp_driver_reason(ngx_mp_channel);
    /* Memory was there when the master looked; other workers may have a ring. */
    level = ngx_strstr(reason, "no memory for a ring") != NULL ? NGX_LOG_WARN : NGX_LOG_NOTICE;
    ngx_log_error(level, cycle->log, 0, "megapipe: driver %s: %s", mp_driver(ngx_mp_channel),
                  reason);
    ngx_mp_lightweight = conf->lightweight;
    return NGX_OK;
}

/*
 * Raises the soft limit of descriptors while the ring is created, because the kernel reduces the
 * ring's table of lightweight sockets to it. If the hard limit is lower, new connections wait for
 * an entry.
 */
static ngx_int_t
ngx_mp_make_room(ngx_cycle_t *cycle, rlim_t wanted, struct rlimit *before)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, before) == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno,
                      "getrlimit(RLIMIT_NOFILE) failed; permit it in the sandbox");
        return NGX_ERROR;
    }
    ngx_mp_descriptors_are_few = before->rlim_cur < cycle->connection_n;
    limit = *before;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        (void) setrlimit(RLIMIT_NOFILE, &limit);
    }
    return NGX_OK;
}

/* Sends the output that nginx considers sent, and destroys the channel. */
void
ngx_mp_finish(ngx_cycle_t *cycle)
{
    ngx_msec_t end;
    struct mp_counters counters;

    if (ngx_mp_channel == NULL) {
        return;
    }
    ngx_time_update();
    end = ngx_current_msec + NGX_MP_FINISH_TIMEOUT_MS;
    ngx_mp_finishing = 1;
    (void) mp_flush(ngx_mp_channel);
    while (ngx_mp_flushing() > 0 && ngx_current_msec < end) {
        (void) ngx_mp_process_events(cycle, end - ngx_current_msec, NGX_UPDATE_TIME);
    }

    ngx_memzero(&counters, sizeof(counters));
    (void) mp_statistics(ngx_mp_channel, &counters, sizeof(counters));
    ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0,
                  "megapipe: connections: %uL lightweight, %uL with descriptors, %uL polled; "
                  "descriptors made for: %uL large, %uL lingering, %uL unread, %uL reset, "
                  "%uL address; "
                  "%uL completions in %uL system calls",
                  ngx_mp_counts.lightweight, ngx_mp_counts.descriptors, ngx_mp_counts.readiness,
                  ngx_mp_counts.upgrades[NGX_MP_LARGE], ngx_mp_counts.upgrades[NGX_MP_LINGER],
                  ngx_mp_counts.upgrades[NGX_MP_UNREAD], ngx_mp_counts.upgrades[NGX_MP_RESET],
                  ngx_mp_counts.upgrades[NGX_MP_ADDRESS],
                  counters.completions, counters.system_calls);
    (void) mp_destroy(ngx_mp_channel);
    ngx_mp_channel = NULL;
    ngx_mp_notify_done();
}

ngx_int_t
ngx_mp_add_event(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags)
{
    ngx_connection_t *c = ev->data;

    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, ev->log, 0, "megapipe: add event fd:%d %s%s", c->fd,
                   ev->write ? "write" : "read", ev->accept ? ", listening" : "");
    if (ev->accept) {
        return ngx_mp_listen(ev);
    }
    return ngx_mp_watch(c, ev);
}

ngx_int_t
ngx_mp_del_event(ngx_event_t *ev, ngx_int_t event, ngx_uint_t flags)
{
    ngx_connection_t *c = ev->data;
    ngx_mp_connection_t *mc = ngx_mp_of(c);

    ngx_log_debug2(NGX_LOG_DEBUG_EVENT, ev->log, 0, "megapipe: del event fd:%d %s", c->fd,
                   ev->write ? "write" : "read");
    if (ev->accept) {
        ngx_mp_unlisten(ev, flags);
        return NGX_OK;
    }
    ev->active = 0;
    if (mc != NULL && !c->read->active && !c->write->active && mc->kind == NGX_MP_READINESS) {
        mc->connection = NULL;
        c->read->index = NGX_INVALID_INDEX;
        ngx_mp_retire(mc);
    }
    return NGX_OK;
}

ngx_int_t
ngx_mp_add_connection(ngx_connection_t *c)
{
    return ngx_mp_watch(c, c->read) == NGX_OK ? ngx_mp_watch(c, c->write) : NGX_ERROR;
}

ngx_int_t
ngx_mp_del_connection(ngx_connection_t *c, ngx_uint_t flags)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);

    c->read->active = 0;
    c->write->active = 0;
    if (mc == NULL) {
        return NGX_OK;
    }
    if (mc->kind == NGX_MP_READINESS || (flags & NGX_CLOSE_EVENT)) {
        ngx_mp_close(c);
    }
    return NGX_OK;
}

ngx_int_t
ngx_mp_process_events(ngx_cycle_t *cycle, ngx_msec_t timer, ngx_uint_t flags)
{
    int i, count, timeout_ms;
    ngx_err_t error;

    ngx_mp_reuse_retired();
    ngx_mp_batch_number++;
    timeout_ms = timer > INT_MAX ? (timer == NGX_TIMER_INFINITE ? -1 : INT_MAX) : (int) timer;
    count = mp_dispatch_batch(ngx_mp_channel, ngx_mp_batch, NGX_MP_EVENTS, timeout_ms);
    error = count == -1 ? ngx_errno : 0;

    if (flags & NGX_UPDATE_TIME || ngx_event_timer_alarm) {
        ngx_time_update();
    }
    ngx_log_debug2(NGX_LOG_DEBUG_EVENT, cycle->log, 0, "megapipe: timer %M, completions %d", timer,
                   count);
    ngx_event_timer_alarm = 0;
    if (error) {
        if (error == NGX_EINTR) {
            return NGX_OK;
        }
        ngx_set_errno(error);
        ngx_mp_failed(cycle->log, NGX_LOG_ALERT, "mp_dispatch_batch()");
        return NGX_ERROR;
    }
    for (i = 0; i < count; i++) {
        ngx_mp_completion(&ngx_mp_batch[i], flags);
    }
    ngx_mp_deliver_received(flags);
    return NGX_OK;
}

static void
ngx_mp_completion(struct mp_event *done, ngx_uint_t flags)
{
    ngx_mp_connection_t *mc = done->cookie;

    if (mc != NULL && done->cmd == MP_CLOSE) {
        ngx_mp_closed(mc);
        return;
    }
    if (mc == NULL || mc->handle == -1 || mc->handle != done->handle) {
        ngx_mp_stale(done);
        return;
    }
    /*
     * Other modules, such as the thread pools, may have ended before; no handler of nginx may run.
     */
    if (ngx_mp_finishing && (mc->kind != NGX_MP_CHANNEL || mc->connection != NULL)) {
        ngx_mp_stale(done);
        return;
    }
    if (mc->kind == NGX_MP_LISTENER) {
        ngx_mp_accepted(mc, done, flags);
        return;
    }
    switch (done->cmd) {
    case MP_RECV:
        ngx_mp_received(mc, done);
        break;
    case MP_WRITE:
        ngx_mp_written(mc, done, flags);
        break;
    case MP_POLL:
        ngx_mp_polled(mc, done, flags);
        break;
    case MP_PEER_ADDRESS:
        if (ngx_mp_peer_known(mc, done) == NGX_DECLINED) {
            ngx_mp_accept_descriptors();
        }
        break;
    case MP_READ:
        ngx_mp_notified(done, flags);
        break;
    default:
        break;
    }
}

/* Does nothing: an earlier completion of the batch may have closed the connection. */
static void
ngx_mp_stale(struct mp_event *done)
{
    mp_handle handle;

    if (done->cmd == MP_RECV && done->buffer != -1) {
        (void) mp_release(ngx_mp_channel, done->buffer);
    }
    if (done->cmd == MP_ACCEPT && done->error == 0 && done->fd >= 0) {
        handle = mp_register(ngx_mp_channel, done->fd, NULL, NULL);
        if (handle != -1) {
            (void) mp_close(handle);
        }
    }
}
