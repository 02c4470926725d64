/*
 * Sets up new connections: what nginx needs to know of one, and its first receive, before its
 * server gets it.
 */
#include "ngx_megapipe.h"

/*
 * How long the kernel may take to tell the address of a client. A worker that ends waits for
 * connections with timers only.
 */
#define NGX_MP_ADDRESS_TIMEOUT_MS 60000

static ngx_int_t ngx_mp_request_address(ngx_mp_connection_t *mc);
static void ngx_mp_address_timed_out(ngx_event_t *ev);
static void ngx_mp_introduce(ngx_mp_connection_t *mc, struct sockaddr *address, socklen_t length);
static ngx_int_t ngx_mp_set_up(ngx_connection_t *c, ngx_listening_t *ls);
static ngx_int_t ngx_mp_set_address(ngx_connection_t *c, ngx_listening_t *ls,
    struct sockaddr *address, socklen_t length);
static ngx_uint_t ngx_mp_is_gone(ngx_err_t error);
static void ngx_mp_address_refused(ngx_connection_t *c, ngx_err_t error);
static void ngx_mp_client_gone(ngx_connection_t *c, ngx_err_t error);
static void ngx_mp_refuse(ngx_connection_t *c);
static void ngx_mp_close_socket(int fd);

/* Takes a connection that a listener accepted, and requests its client's address. */
void
ngx_mp_new_connection(ngx_listening_t *ls, int fd)
{
    ngx_connection_t *c;
    ngx_mp_connection_t *mc;

#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_accepted, 1);
#endif
    ngx_accept_disabled = ngx_cycle->connection_n / 8 - ngx_cycle->free_connection_n;

    c = ngx_get_connection(fd, &ls->log);
    if (c == NULL) {
        ngx_mp_close_socket(fd);
        return;
    }
    c->type = SOCK_STREAM;
    c->listening = ls;
#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_active, 1);
#endif

    mc = ngx_mp_new(c, NGX_MP_CHANNEL);
    if (mc == NULL || ngx_mp_register(mc, &ls->log) != NGX_OK) {
        ngx_mp_close_socket(fd);
        if (mc != NULL) {
            ngx_mp_retire(mc);
        }
        c->read->index = NGX_INVALID_INDEX;
        c->shared = 1;
        ngx_mp_refuse(c);
        return;
    }
    mc->lightweight = fd >= MP_LWSOCKET_FIRST;
    if (!mc->lightweight) {
        struct sockaddr_storage address;
        socklen_t length = sizeof(address);

        mc->fd = fd;
        ngx_mp_counts.descriptors++;
        if (getpeername(fd, (struct sockaddr *) &address, &length) == -1) {
            if (ngx_mp_is_gone(ngx_socket_errno)) {
                ngx_mp_client_gone(c, ngx_socket_errno);
            } else {
                ngx_log_error(NGX_LOG_ALERT, &ls->log, ngx_socket_errno, "getpeername() failed");
                ngx_mp_refuse(c);
            }
            return;
        }
        if (ngx_mp_start_receiving(mc) != NGX_OK) {
            ngx_mp_refuse(c);
            return;
        }
        ngx_mp_introduce(mc, (struct sockaddr *) &address, length);
        return;
    }
    ngx_mp_counts.lightweight++;
    /* The request goes to the kernel together with the first receive. */
    if (ngx_mp_request_address(mc) != NGX_OK || ngx_mp_start_receiving(mc) != NGX_OK) {
        ngx_mp_refuse(c);
    }
}

static ngx_int_t
ngx_mp_request_address(ngx_mp_connection_t *mc)
{
    ngx_event_t *ev = mc->connection->read;

    if (mp_request_peer_address(mc->handle) == -1) {
        ngx_mp_failed(mc->connection->log, NGX_LOG_ALERT, "mp_request_peer_address()");
        return NGX_ERROR;
    }
    ev->handler = ngx_mp_address_timed_out;
    ev->log = mc->connection->log;
    ngx_add_timer(ev, NGX_MP_ADDRESS_TIMEOUT_MS);
    return NGX_OK;
}

static void
ngx_mp_address_timed_out(ngx_event_t *ev)
{
    ngx_connection_t *c = ev->data;

    /* At the end of worker_shutdown_timeout nginx calls it, too. */
    if (ev->timedout) {
        ngx_log_error(NGX_LOG_ALERT, c->log, NGX_ETIMEDOUT,
                      "megapipe: the kernel did not tell the address of a client");
    }
    ngx_mp_refuse(c);
}

/*
 * Handles a completion of mp_request_peer_address. Declines if no lightweight socket has an
 * address.
 */
ngx_int_t
ngx_mp_peer_known(ngx_mp_connection_t *mc, struct mp_event *done)
{
    if (mc->connection == NULL) {
        return NGX_OK;
    }
    ngx_del_timer(mc->connection->read);
    if (done->error == 0) {
        ngx_mp_introduce(mc, done->data, (socklen_t) done->size);
    } else if (ngx_mp_is_gone(done->error)) {
        ngx_mp_client_gone(mc->connection, done->error);
    } else {
        ngx_mp_address_refused(mc->connection, done->error);
        return NGX_DECLINED;
    }
    return NGX_OK;
}

/* Returns whether the request failed because of the client, and not of this host. */
static ngx_uint_t
ngx_mp_is_gone(ngx_err_t error)
{
    return error == NGX_ENOTCONN || error == NGX_ECONNRESET || error == NGX_ECANCELED;
}

/*
 * The kernel does not report the address of a lightweight socket in any way, although it did when
 * the channel was created. From now on connections are accepted as descriptors, which have it.
 */
static void
ngx_mp_address_refused(ngx_connection_t *c, ngx_err_t error)
{
    static ngx_uint_t told;
    ngx_uint_t level = told ? NGX_LOG_INFO : NGX_LOG_ALERT;

    ngx_log_error(level, c->log, error,
                  "megapipe: the kernel does not tell the address of a client on a lightweight "
                  "socket; connections are accepted as descriptors instead");
    told = 1;
    ngx_mp_refuse(c);
}

/* Passes a connection to its server. */
static void
ngx_mp_introduce(ngx_mp_connection_t *mc, struct sockaddr *address, socklen_t length)
{
    ngx_connection_t *c = mc->connection;
    ngx_listening_t *ls = c->listening;

    c->pool = ngx_create_pool(ls->pool_size, &ls->log);
    if (c->pool == NULL || ngx_mp_set_up(c, ls) != NGX_OK
        || ngx_mp_set_address(c, ls, address, length) != NGX_OK)
    {
        ngx_mp_refuse(c);
        return;
    }
    c->read->ready = mc->unseen != 0;
    mc->unseen = 0;
    ls->handler(c);
}

/* Sets the fields of a new connection that nginx needs. */
static ngx_int_t
ngx_mp_set_up(ngx_connection_t *c, ngx_listening_t *ls)
{
    ngx_log_t *log = ngx_palloc(c->pool, sizeof(ngx_log_t));

    if (log == NULL) {
        return NGX_ERROR;
    }
    *log = ls->log;
    c->recv = ngx_mp_recv;
    c->send = ngx_mp_send;
    c->recv_chain = ngx_mp_recv_chain;
    c->send_chain = ngx_mp_send_chain;
    c->log = log;
    c->pool->log = log;
    c->local_sockaddr = ls->sockaddr;
    c->local_socklen = ls->socklen;
    c->read->log = log;
    c->write->log = log;
    c->read->active = 1;
    c->write->active = 1;
    c->write->ready = 1;
    /* Inherited from the listener; header and file are one send, so there is nothing to cork. */
    c->tcp_nodelay = NGX_TCP_NODELAY_SET;
    c->tcp_nopush = NGX_TCP_NOPUSH_DISABLED;
    c->sndlowat = 1;
    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;
#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_handled, 1);
#endif
    log->data = NULL;
    log->handler = NULL;
    return NGX_OK;
}

static ngx_int_t
ngx_mp_set_address(ngx_connection_t *c, ngx_listening_t *ls, struct sockaddr *address,
    socklen_t length)
{
    c->sockaddr = ngx_palloc(c->pool, length);
    if (c->sockaddr == NULL) {
        return NGX_ERROR;
    }
    ngx_memcpy(c->sockaddr, address, length);
    c->socklen = length;
    if (ls->addr_ntop) {
        c->addr_text.data = ngx_pnalloc(c->pool, ls->addr_text_max_len);
        if (c->addr_text.data == NULL) {
            return NGX_ERROR;
        }
        c->addr_text.len = ngx_sock_ntop(c->sockaddr, c->socklen, c->addr_text.data,
                                         ls->addr_text_max_len, 0);
        if (c->addr_text.len == 0) {
            return NGX_ERROR;
        }
    }
#if (NGX_DEBUG)
    ngx_debug_accepted_connection(
        (ngx_event_conf_t *) ngx_event_get_conf(ngx_cycle->conf_ctx, ngx_event_core_module), c);
#endif
    ngx_log_debug3(NGX_LOG_DEBUG_EVENT, c->log, 0, "*%uA megapipe: accept %V fd:%d", c->number,
                   &c->addr_text, c->fd);
    return NGX_OK;
}

/*
 * Counts the connection as handled, as with accept(2), which returns the address of a client that
 * has ended.
 */
static void
ngx_mp_client_gone(ngx_connection_t *c, ngx_err_t error)
{
#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_handled, 1);
#endif
    ngx_log_error(NGX_LOG_INFO, c->log, error,
                  "the client of a new connection has gone");
    ngx_mp_refuse(c);
}

/* Ends a connection that was not passed to a server. */
static void
ngx_mp_refuse(ngx_connection_t *c)
{
    ngx_pool_t *pool = c->pool;

    c->log = (ngx_log_t *) ngx_cycle->log;
    ngx_close_connection(c);
    if (pool != NULL) {
        ngx_destroy_pool(pool);
    }
#if (NGX_STAT_STUB)
    (void) ngx_atomic_fetch_add(ngx_stat_active, -1);
#endif
}

/* Closes an accepted socket that is not registered. */
static void
ngx_mp_close_socket(int fd)
{
    mp_handle handle;

    if (fd < MP_LWSOCKET_FIRST) {
        (void) ngx_close_socket(fd);
        return;
    }
    handle = mp_register(ngx_mp_channel, fd, NULL, NULL);
    if (handle != -1) {
        (void) mp_unregister(handle);
    }
}
