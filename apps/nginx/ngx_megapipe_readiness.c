/*
 * Implements readiness connections: the channel polls the descriptor, nginx's own functions do the
 * I/O.
 */
#include "ngx_megapipe.h"
#include <sys/eventfd.h>

static ngx_int_t ngx_mp_await_notify(void);

static ngx_mp_connection_t ngx_mp_notifier;
static uint64_t ngx_mp_notify_count;
static ngx_event_t ngx_mp_notify_event;
static ngx_event_handler_pt ngx_mp_notify_handler;

/* Starts to deliver the event; one request polls both directions. */
ngx_int_t
ngx_mp_watch(ngx_connection_t *c, ngx_event_t *ev)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    uint32_t bit = ev->write ? POLLOUT : POLLIN;

    if (mc == NULL) {
        mc = ngx_mp_new(c, NGX_MP_READINESS);
        if (mc == NULL || ngx_mp_register(mc, ev->log) != NGX_OK) {
            return NGX_ERROR;
        }
        ngx_mp_counts.readiness++;
        if (ngx_mp_poll(mc, POLLIN | POLLOUT | POLLRDHUP) != NGX_OK) {
            return NGX_ERROR;
        }
        ev->active = 1;
        return NGX_OK;
    }

    if (!mc->polling && mc->kind == NGX_MP_READINESS
        && ngx_mp_poll(mc, POLLIN | POLLOUT | POLLRDHUP) != NGX_OK)
    {
        return NGX_ERROR;
    }
    ev->active = 1;
    /* The edge may have come while nginx did not request the event. */
    if ((mc->unseen & bit)
        || (mc->kind == NGX_MP_READINESS && ngx_mp_is_ready(c->fd, (short) bit)))
    {
        mc->unseen &= ~bit;
        ev->ready = 1;
        if (!ev->write) {
            ev->available = -1;
        }
        ngx_post_event(ev, &ngx_posted_events);
    }
    return NGX_OK;
}

ngx_uint_t
ngx_mp_is_ready(ngx_socket_t fd, short events)
{
    struct pollfd asked = { .fd = fd, .events = events };

    return poll(&asked, 1, 0) == 1;
}

ngx_int_t
ngx_mp_poll(ngx_mp_connection_t *mc, unsigned events)
{
    if (mp_poll(mc->handle, events, MP_REPEAT) == -1) {
        ngx_mp_failed(mc->connection->log, NGX_LOG_ALERT, "mp_poll()");
        return NGX_ERROR;
    }
    mc->polling = 1;
    return NGX_OK;
}

/* Handles a completion of mp_poll. */
void
ngx_mp_polled(ngx_mp_connection_t *mc, struct mp_event *done, ngx_uint_t flags)
{
    ngx_connection_t *c = mc->connection;
    uint32_t revents = done->revents;

    if (!(done->flags & MP_MORE)) {
        mc->polling = 0;
    }
    if (c == NULL || done->error == ECANCELED) {
        return;
    }
    /* The next read or write gets the error. */
    if (done->error || (revents & (POLLERR | POLLHUP))) {
        revents |= POLLIN | POLLOUT;
    }
    if (mc->kind == NGX_MP_CHANNEL) {
        revents &= POLLOUT;
    }
    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, c->log, 0, "megapipe: poll fd:%d ev:%04XD error %d", c->fd,
                   revents, done->error);

    if (!mc->polling && !done->error) {
        (void) ngx_mp_poll(mc, mc->kind == NGX_MP_CHANNEL ? POLLOUT
                                                          : POLLIN | POLLOUT | POLLRDHUP);
    }

    if (revents & POLLIN) {
        if (c->read->active) {
            if (revents & POLLRDHUP) {
                c->read->pending_eof = 1;
            }
            c->read->ready = 1;
            c->read->available = -1;
            ngx_mp_deliver(c->read, flags);
        } else {
            mc->unseen |= POLLIN;
        }
    }
    if (mc->connection != c || !(revents & POLLOUT)) {
        return;
    }
    /* The channel's own writes end by their completions. */
    if (mc->kind == NGX_MP_CHANNEL && ngx_mp_in_flight_bytes(mc) > 0) {
        return;
    }
    if (c->write->active) {
        c->write->ready = 1;
#if (NGX_THREADS)
        c->write->complete = 1;
#endif
        ngx_mp_deliver(c->write, flags);
    } else {
        mc->unseen |= POLLOUT;
    }
}

/* Makes an eventfd, or says why it cannot. */
ngx_socket_t
ngx_mp_eventfd(int flags, ngx_log_t *log)
{
    ngx_socket_t fd = eventfd(0, flags);

    if (fd == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      "megapipe: eventfd() failed; raise worker_rlimit_nofile, or permit "
                      "eventfd2(2) in the sandbox");
    }
    return fd;
}

/*
 * Other threads wake the worker by an eventfd. The channel reads it, one value at a time: a
 * registered eventfd may block, so a read after an edge that came twice would never return.
 */
ngx_int_t
ngx_mp_notify_init(ngx_log_t *log)
{
    ngx_mp_connection_t *mc = &ngx_mp_notifier;

    ngx_memzero(mc, sizeof(ngx_mp_connection_t));
    mc->kind = NGX_MP_NOTIFIER;
    mc->fd = ngx_mp_eventfd(EFD_NONBLOCK | EFD_CLOEXEC, log);
    if (mc->fd == -1) {
        return NGX_ERROR;
    }
    mc->handle = mp_register(ngx_mp_channel, mc->fd, mc, NULL);
    if (mc->handle == -1) {
        ngx_mp_failed(log, NGX_LOG_ALERT, "mp_register()");
        return NGX_ERROR;
    }
    ngx_memzero(&ngx_mp_notify_event, sizeof(ngx_event_t));
    ngx_mp_notify_event.log = log;
    return ngx_mp_await_notify();
}

static ngx_int_t
ngx_mp_await_notify(void)
{
    if (mp_read(ngx_mp_notifier.handle, &ngx_mp_notify_count, sizeof(ngx_mp_notify_count)) == -1) {
        ngx_mp_failed(ngx_cycle->log, NGX_LOG_ALERT, "mp_read() of the worker's eventfd");
        return NGX_ERROR;
    }
    return NGX_OK;
}

/* Any thread may call it. */
ngx_int_t
ngx_mp_notify(ngx_event_handler_pt handler)
{
    uint64_t one = 1;

    ngx_mp_notify_handler = handler;
    if (write(ngx_mp_notifier.fd, &one, sizeof(one)) != (ssize_t) sizeof(one)) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "write() to the eventfd of the worker failed");
        return NGX_ERROR;
    }
    return NGX_OK;
}

/* Handles a completion of the eventfd's read. */
void
ngx_mp_notified(struct mp_event *done, ngx_uint_t flags)
{
    if (done->error) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, done->error,
                      "read of the worker's eventfd failed");
        return;
    }
    (void) ngx_mp_await_notify();
    ngx_mp_notify_event.handler = ngx_mp_notify_handler;
    ngx_mp_deliver(&ngx_mp_notify_event, flags);
}

void
ngx_mp_notify_done(void)
{
    if (ngx_mp_notifier.fd > 0) {
        (void) close(ngx_mp_notifier.fd);
        ngx_mp_notifier.fd = -1;
    }
}
