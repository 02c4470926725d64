/*
 * Ends channel connections.
 */
#include "ngx_megapipe.h"

static void ngx_mp_flush_timed_out(ngx_event_t *ev);
static int64_t ngx_mp_left_bytes(ngx_mp_connection_t *mc);
static void ngx_mp_discard(ngx_mp_connection_t *mc);

/* Number of connections that nginx has closed and that still have writes in flight. */
static ngx_uint_t ngx_mp_flushing_count;

ngx_uint_t
ngx_mp_flushing(void)
{
    return ngx_mp_flushing_count;
}

/*
 * Handles nginx's close of a connection: output in flight is sent first, as long as the client
 * takes some of it within each `send_timeout`.
 */
void
ngx_mp_close(ngx_connection_t *c)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);
    ngx_uint_t unread;

    c->read->active = 0;
    c->write->active = 0;
    c->read->index = NGX_INVALID_INDEX;
    /* nginx has no descriptor to close, or must not close it before the last write has ended. */
    if (mc->lightweight || mc->fd != (ngx_socket_t) -1) {
        c->shared = 1;
    }
    mc->connection = NULL;

    if (ngx_mp_channel == NULL) {
        /* Its buffers and its output in flight ended with the channel. */
        ngx_mp_retire(mc);
        return;
    }
    if (mc->kind != NGX_MP_CHANNEL) {
        ngx_mp_retire(mc);
        return;
    }
    unread = ngx_mp_has_received(mc);
    ngx_mp_drop_received(mc);
    if (mc->flow == NULL && !unread) {
        ngx_mp_retire(mc);
        return;
    }
    ngx_mp_flushing_count++;
    /*
     * After an error, a time-out or the time limit of a shutdown, the rest is discarded. Unread
     * input resets the connection, as it does in the kernel's close(2).
     */
    if (mc->flow == NULL || mc->send_error || mc->receive_error || c->timedout
        || (c->close && c->error))
    {
        ngx_mp_discard(mc);
        return;
    }
    if (mc->receiving) {
        (void) mp_cancel(mc->handle, MP_IN);
    }
    mc->flow->left_bytes = 0;
    ngx_mp_add_timer(mc, &mc->flow->timer, ngx_mp_flush_timed_out, mc->flow->send_timeout_ms);
}

/*
 * Resets the connection, so that the client does not mistake a part of the response for the whole.
 * The kernel uses the blocks until MP_CLOSE, and the channel closes the descriptor.
 */
static void
ngx_mp_discard(ngx_mp_connection_t *mc)
{
    if (mp_abort(mc->handle) == -1) {
        ngx_mp_failed(ngx_cycle->log, NGX_LOG_ALERT, "mp_abort()");
    }
    mc->handle = -1;
    mc->fd = (ngx_socket_t) -1;
}

/* Handles the last completion of a connection whose rest is discarded. */
void
ngx_mp_closed(ngx_mp_connection_t *mc)
{
    if (mc->flow != NULL) {
        ngx_mp_drop_sending(mc->flow);
    }
    ngx_mp_flushing_count--;
    ngx_mp_retire(mc);
}

/* Handles the end of a closed connection's write; the kernel used its memory until now. */
void
ngx_mp_flushed(ngx_mp_connection_t *mc)
{
    if (mc->handle == -1 || mc->flow->sending != NULL) {
        return;
    }
    ngx_mp_del_timer(&mc->flow->timer);
    if (mc->send_error) {
        ngx_mp_discard(mc);
        return;
    }
    ngx_mp_flushing_count--;
    ngx_mp_retire(mc);
}

static void
ngx_mp_flush_timed_out(ngx_event_t *ev)
{
    ngx_mp_connection_t *mc = ngx_mp_of_timer(ev);
    ngx_mp_flow_t *flow = mc->flow;
    int64_t left_bytes = ngx_mp_left_bytes(mc);

    if (left_bytes != flow->left_bytes) {
        flow->left_bytes = left_bytes;
        ngx_add_timer(ev, flow->send_timeout_ms);
        return;
    }
    ngx_log_error(NGX_LOG_INFO, ev->log, NGX_ETIMEDOUT,
                  "megapipe: %uz bytes of a closed connection were not taken by the client",
                  ngx_mp_in_flight_bytes(mc));
    ngx_mp_discard(mc);
}

/*
 * Returns the number of bytes that the client has not acknowledged; 0 if it is unknown. A write
 * makes progress only when a third of the socket's buffer is free, which takes a slow client long.
 */
static int64_t
ngx_mp_left_bytes(ngx_mp_connection_t *mc)
{
    int unacknowledged = 0, fd = mp_to_fd(mc->handle);

    if (fd == -1) {
        ngx_mp_failed(ngx_cycle->log, NGX_LOG_ERR, "mp_to_fd()");
        return 0;
    }
    (void) ioctl(fd, TIOCOUTQ, &unacknowledged);
    (void) ngx_close_socket(fd);
    return mp_queued(mc->handle) + unacknowledged;
}
