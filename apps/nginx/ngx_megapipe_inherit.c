/*
 * Passes the accept queues of the old binary to a new one (USR2). nginx names its listening sockets
 * in the environment of the new binary; this module also names the queues there. The new workers
 * then serve the connections that wait in them. An eventfd reports to the old master whether they
 * do.
 */
#include "ngx_megapipe.h"
#include <sys/eventfd.h>

/* "EVENTFD;LISTENER:QUEUE,QUEUE;LISTENER:QUEUE" */
#define NGX_MP_VARIABLE "MEGAPIPE_QUEUES"

#define NGX_MP_FIELD_MAX (NGX_INT32_LEN + 1)

static ngx_int_t ngx_mp_read_number(u_char **text, ngx_socket_t *number);
static void ngx_mp_inherit_group(u_char **text, ngx_cycle_t *cycle);
static ngx_listening_t *ngx_mp_inherited_listener(ngx_socket_t fd, ngx_cycle_t *cycle);
static ngx_uint_t ngx_mp_is_queue_of(ngx_listening_t *ls, ngx_socket_t fd);

/* The eventfd by which the new binary reports that it serves the queues; -1 for none. */
static int ngx_mp_taken_over = -1;

/* Takes over the queues that an old binary has named. Called once, before any queue is created. */
void
ngx_mp_inherit(ngx_cycle_t *cycle)
{
    static ngx_uint_t done;
    ngx_socket_t notice;
    uint64_t one = 1;
    u_char *text = (u_char *) getenv(NGX_MP_VARIABLE);

    if (done || text == NULL) {
        return;
    }
    done = 1;
    if (ngx_mp_read_number(&text, &notice) != NGX_OK || fcntl(notice, F_GETFD) == -1) {
        return;
    }
    while (*text == ';') {
        text++;
        ngx_mp_inherit_group(&text, cycle);
    }
    if (write(notice, &one, sizeof(one)) == (ssize_t) sizeof(one)) {
        (void) close(notice);
    }
}

static ngx_int_t
ngx_mp_read_number(u_char **text, ngx_socket_t *number)
{
    u_char *p = *text;
    ngx_int_t value;

    while (*p >= '0' && *p <= '9') {
        p++;
    }
    value = ngx_atoi(*text, p - *text);
    *text = p;
    *number = (ngx_socket_t) value;
    return value == NGX_ERROR || value > INT_MAX ? NGX_ERROR : NGX_OK;
}

/* Reads "LISTENER:QUEUE,QUEUE"; closes queues of sockets that the configuration does not have. */
static void
ngx_mp_inherit_group(u_char **text, ngx_cycle_t *cycle)
{
    ngx_socket_t listener, queue;
    ngx_listening_t *ls;
    u_char separator = ':';

    if (ngx_mp_read_number(text, &listener) != NGX_OK) {
        return;
    }
    ls = ngx_mp_inherited_listener(listener, cycle);
    while (**text == separator) {
        separator = ',';
        (*text)++;
        if (ngx_mp_read_number(text, &queue) != NGX_OK) {
            return;
        }
        if (ls != NULL && ngx_mp_is_queue_of(ls, queue)
            && ngx_mp_add_queue(ls->fd, queue, cycle->log) == NGX_OK)
        {
            continue;
        }
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "megapipe: the inherited queue %d of the socket %d is not used", queue,
                      listener);
    }
}

static ngx_listening_t *
ngx_mp_inherited_listener(ngx_socket_t fd, ngx_cycle_t *cycle)
{
    ngx_listening_t *ls = cycle->listening.elts;
    ngx_uint_t i;

    for (i = 0; i < cycle->listening.nelts; i++) {
        if (ls[i].fd == fd && ls[i].inherited) {
            return &ls[i];
        }
    }
    return NULL;
}

/* Returns whether the descriptor is a socket that listens on the same address. */
static ngx_uint_t
ngx_mp_is_queue_of(ngx_listening_t *ls, ngx_socket_t fd)
{
    ngx_sockaddr_t address;
    socklen_t length = sizeof(address), size = sizeof(int);
    int listens = 0;

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens
           && getsockname(fd, &address.sockaddr, &length) == 0
           && ngx_cmp_sockaddr(&address.sockaddr, length, ls->sockaddr, ls->socklen, 1) == NGX_OK;
}

/* Names all queues in the environment of a new binary. */
ngx_int_t
ngx_mp_bequeath(ngx_cycle_t *cycle)
{
    ngx_core_conf_t *ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    ngx_uint_t count = ngx_mp_count_descriptors();
    ngx_str_t *variable;
    u_char *p;

    if (count == 0) {
        return NGX_OK;
    }
    if (ngx_mp_taken_over == -1) {
        ngx_mp_taken_over = ngx_mp_eventfd(EFD_NONBLOCK, cycle->log);
    }
    variable = ngx_array_push(&ccf->env);
    p = ngx_pnalloc(cycle->pool, sizeof(NGX_MP_VARIABLE) + (count + 1) * NGX_MP_FIELD_MAX + 1);
    if (variable == NULL || p == NULL || ngx_mp_taken_over == -1) {
        return NGX_ERROR;
    }
    variable->data = p;
    variable->len = sizeof(NGX_MP_VARIABLE) - 1;
    p = ngx_sprintf(p, NGX_MP_VARIABLE "=%d", ngx_mp_taken_over);
    p = ngx_mp_print_groups(p);
    *p = '\0';
    return NGX_OK;
}

/*
 * Handles the end of the master. A new binary without this module serves only nginx's own sockets,
 * so they get all connections from now on.
 */
void
ngx_mp_leave_queues(ngx_cycle_t *cycle)
{
    uint64_t count = 0;

    if (ngx_mp_taken_over == -1
        || read(ngx_mp_taken_over, &count, sizeof(count)) == (ssize_t) sizeof(count))
    {
        return;
    }
    ngx_mp_dissolve(cycle->log);
}
