/*
 * Manages the channel of a worker, and the records of what is registered with it; the other files
 * use both. A record has a timer, and a descriptor if nginx needs one.
 */
#include "ngx_megapipe.h"

mp_channel *ngx_mp_channel;
ngx_mp_counts_t ngx_mp_counts;
ngx_uint_t ngx_mp_descriptors_are_few;
ngx_uint_t ngx_mp_lightweight;

static ngx_mp_connection_t *ngx_mp_free;
static ngx_mp_connection_t *ngx_mp_retired;

static const char *ngx_mp_reasons[NGX_MP_REASONS] = {
    "a response that is large, or comes in parts, is sent by nginx",
    "nginx lingers when it closes",
    "the client sent more, or ended, during a request",
    "the connection is reset after a time-out",
    "nginx needs the address that the client has connected to",
};

/* nginx logs a timer with the descriptor of its connection; these timers have none. */
static ngx_connection_t ngx_mp_no_connection;

void
ngx_mp_failed(ngx_log_t *log, ngx_uint_t level, const char *what)
{
    ngx_err_t error = ngx_errno;

    ngx_log_error(level, log, error, "megapipe: %s failed: %s", what, mp_error());
}

/*
 * Returns a new record, which the connection's events find by the field that nginx leaves to
 * modules.
 */
ngx_mp_connection_t *
ngx_mp_new(ngx_connection_t *c, ngx_mp_kind_e kind)
{
    ngx_mp_connection_t *mc = ngx_mp_free;

    if (mc != NULL) {
        ngx_mp_free = mc->next;
        ngx_memzero(mc, sizeof(ngx_mp_connection_t));
    } else {
        mc = ngx_calloc(sizeof(ngx_mp_connection_t), c->log);
        if (mc == NULL) {
            return NULL;
        }
    }
    mc->connection = c;
    mc->handle = -1;
    mc->fd = (ngx_socket_t) -1;
    mc->kind = kind;
    c->read->index = (ngx_uint_t) mc;
    return mc;
}

ngx_int_t
ngx_mp_register(ngx_mp_connection_t *mc, ngx_log_t *log)
{
    ngx_socket_t fd = mc->fd != (ngx_socket_t) -1 ? mc->fd : mc->connection->fd;

    mc->handle = mp_register(ngx_mp_channel, fd, mc, NULL);
    if (mc->handle == -1) {
        ngx_mp_failed(log, NGX_LOG_ALERT, "mp_register()");
        return NGX_ERROR;
    }
    return NGX_OK;
}

/*
 * The record is reused only after this batch, whose completions may still name it. Connections that
 * nginx closes after the channel was destroyed, such as the sockets of a resolver, are not
 * registered any more.
 */
void
ngx_mp_retire(ngx_mp_connection_t *mc)
{
    if (mc->handle != -1 && ngx_mp_channel != NULL && mp_unregister(mc->handle) == -1) {
        ngx_mp_failed(ngx_cycle->log, NGX_LOG_ALERT, "mp_unregister()");
    }
    if (mc->fd != (ngx_socket_t) -1) {
        (void) ngx_close_socket(mc->fd);
    }
    if (mc->kind == NGX_MP_LISTENER) {
        ngx_free(mc->listener);
    } else if (mc->kind == NGX_MP_CHANNEL) {
        ngx_mp_give_empty_flow(mc);
    }
    mc->handle = -1;
    mc->connection = NULL;
    mc->next = ngx_mp_retired;
    ngx_mp_retired = mc;
}

/* Frees the records that were retired before this batch. */
void
ngx_mp_reuse_retired(void)
{
    ngx_mp_connection_t *mc;

    while (ngx_mp_retired != NULL) {
        mc = ngx_mp_retired;
        ngx_mp_retired = mc->next;
        mc->next = ngx_mp_free;
        ngx_mp_free = mc;
    }
}

void
ngx_mp_deliver(ngx_event_t *ev, ngx_uint_t flags)
{
    if (flags & NGX_POST_EVENTS) {
        ngx_post_event(ev, ev->accept ? &ngx_posted_accept_events : &ngx_posted_events);
    } else {
        ev->handler(ev);
    }
}

void
ngx_mp_add_timer(ngx_mp_connection_t *mc, ngx_mp_timer_t *timer, ngx_event_handler_pt handler,
    ngx_msec_t timeout_ms)
{
    ngx_mp_no_connection.fd = (ngx_socket_t) -1;
    timer->mc = mc;
    timer->event.handler = handler;
    timer->event.data = &ngx_mp_no_connection;
    timer->event.log = ngx_cycle->log;
    ngx_add_timer(&timer->event, timeout_ms);
}

void
ngx_mp_del_timer(ngx_mp_timer_t *timer)
{
    if (timer->event.timer_set) {
        ngx_del_timer(&timer->event);
    }
}

ngx_mp_connection_t *
ngx_mp_of_timer(ngx_event_t *ev)
{
    return ((ngx_mp_timer_t *) ((u_char *) ev - offsetof(ngx_mp_timer_t, event)))->mc;
}

/*
 * Opens a descriptor for the connection, which nginx then uses and closes; the I/O can continue.
 */
ngx_int_t
ngx_mp_upgrade(ngx_connection_t *c, ngx_mp_reason_e reason)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    int fd;

    if (mc == NULL || !mc->lightweight) {
        return NGX_OK;
    }
    fd = mp_to_fd(mc->handle);
    if (fd == -1) {
        ngx_mp_failed(c->log, NGX_LOG_ALERT, "mp_to_fd()");
        return NGX_ERROR;
    }
    if (ngx_nonblocking(fd) == -1) {
        ngx_log_error(NGX_LOG_ALERT, c->log, ngx_socket_errno, ngx_nonblocking_n " failed");
        (void) ngx_close_socket(fd);
        return NGX_ERROR;
    }
    ngx_log_error(NGX_LOG_INFO, c->log, 0, "megapipe: descriptor %d for a lightweight socket: %s",
                  fd, ngx_mp_reasons[reason]);
    ngx_mp_counts.upgrades[reason]++;
    mc->lightweight = 0;
    c->fd = fd;
    return NGX_OK;
}
