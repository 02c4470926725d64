/*
 * Ends channel connections.
 */
#include "ngx_megapipe.h"

static void ngx_mp_flush_timed_out(ngx_event_t *ev);
static void ngx_mp_discard(ngx_mp_connection_t *mc);

/* Number of connections that nginx has closed and that still have writes in flight. */
static ngx_uint_t ngx_mp_flushing_count;

ngx_uint_t
ngx_mp_flushing(void)
{
    return ngx_mp_flushing_count;
}

/*
 * Handles nginx's close of a connection: output in flight is sent first, unless that takes too
 * long.
 */
void
ngx_mp_close(ngx_connection_t *c)
{
    ngx_mp_connection_t *mc = ngx_mp_of(c);

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
    if (mc->kind == NGX_MP_CHANNEL) {
        ngx_mp_drop_received(mc);
    }
    if (mc->kind != NGX_MP_CHANNEL || mc->flow == NULL) {
        ngx_mp_retire(mc);
        return;
    }
    ngx_mp_flushing_count++;
    /* After an error, a time-out or the time limit of a shutdown, the rest is discarded. */
    if (mc->send_error || mc->receive_error || c->timedout || (c->close && c->error)) {
        ngx_mp_discard(mc);
        return;
    }
    if (mc->receiving) {
        (void) mp_cancel(mc->handle, MP_IN);
    }
    ngx_mp_add_timer(mc, &mc->flow->timer, ngx_mp_flush_timed_out, NGX_MP_FLUSH_TIMEOUT_MS);
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
    ngx_mp_flow_t *flow = mc->flow;
    ngx_mp_block_t *block, *next;

    for (block = flow->sending; block != NULL; block = next) {
        next = block->next;
        ngx_mp_give_block(block);
    }
    flow->sending = NULL;
    flow->sending_end = &flow->sending;
    flow->in_flight_bytes = 0;
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
    ngx_mp_flushing_count--;
    ngx_mp_retire(mc);
}

static void
ngx_mp_flush_timed_out(ngx_event_t *ev)
{
    ngx_mp_connection_t *mc = ngx_mp_of_timer(ev);

    ngx_log_error(NGX_LOG_INFO, ev->log, NGX_ETIMEDOUT,
                  "megapipe: %uz bytes of a closed connection were not taken by the client",
                  mc->flow->in_flight_bytes);
    ngx_mp_discard(mc);
}
