/*
 * Determines which HTTP listeners can work without descriptors, and when nginx is going to use a
 * descriptor.
 */
#include "ngx_megapipe.h"

static ngx_int_t ngx_mp_http_add_variables(ngx_conf_t *cf);
static ngx_int_t ngx_mp_http_init(ngx_conf_t *cf);
static void ngx_mp_find_userid(ngx_conf_t *cf);
static ngx_int_t ngx_mp_log_handler(ngx_http_request_t *r);
static ngx_int_t ngx_mp_header_filter(ngx_http_request_t *r);
static ngx_uint_t ngx_mp_asks_for_address(ngx_http_request_t *r);
static ngx_int_t ngx_mp_driver_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data);
static ngx_int_t ngx_mp_socket_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data);
static ngx_uint_t ngx_mp_address_takes(ngx_http_addr_conf_t *conf);
static ngx_uint_t ngx_mp_is_wildcard(const struct sockaddr *address);
static ngx_uint_t ngx_mp_variables_need(ngx_uint_t wildcard);

/* The least value of the directive `userid` with which nginx makes identifiers: v1. */
#define NGX_MP_USERID_V1 2

static ngx_http_output_header_filter_pt ngx_mp_next_header_filter;

/* The directive `userid` and the index of its module; NULL if nginx was built without it. */
static const ngx_command_t *ngx_mp_userid;
static ngx_uint_t ngx_mp_userid_index;

static ngx_http_variable_t ngx_mp_variables[] = {
    { ngx_string("megapipe_driver"), NULL, ngx_mp_driver_variable, 0, 0, 0 },
    { ngx_string("megapipe_socket"), NULL, ngx_mp_socket_variable, 0, NGX_HTTP_VAR_NOCACHEABLE,
      0 },
    ngx_http_null_variable,
};

static ngx_http_module_t ngx_mp_http_context = {
    ngx_mp_http_add_variables, ngx_mp_http_init, NULL, NULL, NULL, NULL, NULL, NULL,
};

ngx_module_t ngx_megapipe_http_module = {
    NGX_MODULE_V1,
    &ngx_mp_http_context,
    NULL,
    NGX_HTTP_MODULE,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NGX_MODULE_V1_PADDING,
};

static ngx_int_t
ngx_mp_http_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t *ours, *variable;

    for (ours = ngx_mp_variables; ours->name.len; ours++) {
        variable = ngx_http_add_variable(cf, &ours->name, ours->flags);
        if (variable == NULL) {
            return NGX_ERROR;
        }
        variable->get_handler = ours->get_handler;
    }
    return NGX_OK;
}

static ngx_int_t
ngx_mp_http_init(ngx_conf_t *cf)
{
    ngx_http_core_main_conf_t *cmcf;
    ngx_http_handler_pt *handler;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    handler = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (handler == NULL) {
        return NGX_ERROR;
    }
    *handler = ngx_mp_log_handler;
    ngx_mp_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_mp_header_filter;
    ngx_mp_find_userid(cf);
    return NGX_OK;
}

static void
ngx_mp_find_userid(ngx_conf_t *cf)
{
    ngx_module_t **module;
    ngx_command_t *command;

    for (module = cf->cycle->modules; *module != NULL; module++) {
        command = (*module)->type == NGX_HTTP_MODULE ? (*module)->commands : NULL;
        for (; command != NULL && command->name.len; command++) {
            if (command->set == ngx_conf_set_enum_slot
                && ngx_strcmp(command->name.data, "userid") == 0)
            {
                ngx_mp_userid = command;
                ngx_mp_userid_index = (*module)->ctx_index;
            }
        }
    }
}

static ngx_uint_t
ngx_mp_has_channel(ngx_connection_t *c)
{
    return c->recv == ngx_mp_recv;
}

/* The last function that is called before nginx sets SO_LINGER on a connection that it resets. */
static ngx_int_t
ngx_mp_log_handler(ngx_http_request_t *r)
{
    ngx_http_core_loc_conf_t *clcf;

    if (r->connection->timedout && ngx_mp_has_channel(r->connection)) {
        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
        if (clcf->reset_timedout_connection) {
            (void) ngx_mp_upgrade(r->connection, NGX_MP_RESET);
        }
    }
    return NGX_OK;
}

/*
 * Makes a descriptor for what nginx asks it while it makes a response's header: the address to
 * which the client has connected.
 */
static ngx_int_t
ngx_mp_header_filter(ngx_http_request_t *r)
{
    ngx_connection_t *c = r->connection;

    if (r == r->main && ngx_mp_has_channel(c) && ngx_mp_of(c)->lightweight
        && ngx_mp_is_wildcard(c->local_sockaddr) && ngx_mp_asks_for_address(r)
        && ngx_mp_upgrade(c, NGX_MP_ADDRESS) != NGX_OK)
    {
        return NGX_ERROR;
    }
    return ngx_mp_next_header_filter(r);
}

/* A redirect of a client that named no host has the address, and so has a user's identifier. */
static ngx_uint_t
ngx_mp_asks_for_address(ngx_http_request_t *r)
{
    ngx_table_elt_t *location = r->headers_out.location;
    u_char *userid;

    if (location != NULL && location->value.len > 0 && location->value.data[0] == '/'
        && r->headers_in.server.len == 0)
    {
        return 1;
    }
    if (ngx_mp_userid == NULL) {
        return 0;
    }
    userid = (u_char *) r->loc_conf[ngx_mp_userid_index] + ngx_mp_userid->offset;
    return *(ngx_uint_t *) userid >= NGX_MP_USERID_V1;
}

static ngx_int_t
ngx_mp_set_variable(ngx_http_variable_value_t *v, const char *text)
{
    v->len = (unsigned) ngx_strlen(text);
    v->data = (u_char *) text;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    return NGX_OK;
}

static ngx_int_t
ngx_mp_driver_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    return ngx_mp_set_variable(v, ngx_mp_channel == NULL ? "none" : mp_driver(ngx_mp_channel));
}

/* Decides how the client's connection is served. */
static ngx_int_t
ngx_mp_socket_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    const char *text = "polled";

    if (ngx_mp_has_channel(r->connection)) {
        text = ngx_mp_of(r->connection)->lightweight ? "lightweight" : "descriptor";
    }
    return ngx_mp_set_variable(v, text);
}

/*
 * Returns whether the channel receives and sends for the connections of a listener: those of TCP
 * with plain HTTP/1. Also returns whether nginx will read from their descriptors.
 */
ngx_uint_t
ngx_mp_takes_completions(ngx_listening_t *ls, ngx_uint_t *needs_descriptors)
{
    ngx_http_port_t *port = ls->servers;
    ngx_uint_t i, wildcard = ngx_mp_is_wildcard(ls->sockaddr);
    ngx_http_in_addr_t *addresses;
    ngx_http_in6_addr_t *addresses6;

    if (ls->handler != ngx_http_init_connection || ls->type != SOCK_STREAM
        || (ls->sockaddr->sa_family != AF_INET && ls->sockaddr->sa_family != AF_INET6))
    {
        return 0;
    }
    addresses = port->addrs;
    addresses6 = port->addrs;
    for (i = 0; i < port->naddrs; i++) {
        if (!ngx_mp_address_takes(ls->sockaddr->sa_family == AF_INET6 ? &addresses6[i].conf
                                                                      : &addresses[i].conf))
        {
            return 0;
        }
    }
    /* nginx asks the descriptor which of several addresses the client used. */
    *needs_descriptors = port->naddrs > 1 || ngx_mp_variables_need(wildcard);
    if (*needs_descriptors) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "megapipe: connections of %V have descriptors: %s", &ls->addr_text,
                      port->naddrs > 1 ? "several addresses share its socket"
                                       : "a variable asks for what only a descriptor tells");
    }
    return 1;
}

/*
 * TLS and HTTP/2 read the descriptor themselves. nginx 1.25.1 replaced the directive `ssl` by the
 * parameter of `listen`, and the parameter `http2` by a directive.
 */
static ngx_uint_t
ngx_mp_address_takes(ngx_http_addr_conf_t *conf)
{
#if (NGX_HTTP_SSL && nginx_version < 1025001)
    ngx_http_ssl_srv_conf_t *ssl;

    ssl = ngx_http_get_module_srv_conf(conf->default_server->ctx, ngx_http_ssl_module);
    if (ssl->enable) {
        return 0;
    }
#endif
#if (NGX_HTTP_V2 && nginx_version >= 1025001)
    ngx_http_v2_srv_conf_t *http2;

    http2 = ngx_http_get_module_srv_conf(conf->default_server->ctx, ngx_http_v2_module);
    if (http2->enable) {
        return 0;
    }
#endif
    return !conf->ssl && !conf->http2 && !conf->proxy_protocol;
}

static ngx_uint_t
ngx_mp_is_wildcard(const struct sockaddr *address)
{
    static const u_char none[16];

    if (address->sa_family == AF_INET6) {
        return ngx_memcmp(&((const struct sockaddr_in6 *) address)->sin6_addr, none, 16) == 0;
    }
    return address->sa_family == AF_INET
           && ((const struct sockaddr_in *) address)->sin_addr.s_addr == INADDR_ANY;
}

/* Returns whether the configuration uses a variable that nginx takes from the descriptor. */
static ngx_uint_t
ngx_mp_variables_need(ngx_uint_t wildcard)
{
    ngx_http_core_main_conf_t *cmcf;
    ngx_http_variable_t *variables;
    ngx_str_t *name;
    ngx_uint_t i;

    cmcf = ngx_http_cycle_get_module_main_conf(ngx_cycle, ngx_http_core_module);
    if (cmcf == NULL) {
        return 0;
    }
    variables = cmcf->variables.elts;
    for (i = 0; i < cmcf->variables.nelts; i++) {
        name = &variables[i].name;
        if (name->len > 8 && ngx_strncmp(name->data, "tcpinfo_", 8) == 0) {
            return 1;
        }
        if (wildcard && name->len == 11
            && (ngx_strncmp(name->data, "server_addr", 11) == 0
                || ngx_strncmp(name->data, "server_port", 11) == 0))
        {
            return 1;
        }
    }
    return 0;
}

/* Returns whether nginx may linger after the response if the client sends more until then. */
ngx_uint_t
ngx_mp_ends_connection(ngx_connection_t *c)
{
    ngx_http_request_t *r = ((ngx_http_request_t *) c->data)->main;
    ngx_http_core_loc_conf_t *clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (clcf->lingering_close == NGX_HTTP_LINGERING_OFF) {
        return 0;
    }
    return r->reading_body || r->discard_body || !r->keepalive || ngx_exiting || ngx_terminate
           || clcf->keepalive_timeout == 0;
}

/*
 * Returns whether nginx, when this is sent, may shut the connection's descriptor down and continue
 * to read: the conditions of its lingering close.
 */
ngx_uint_t
ngx_mp_may_linger(ngx_connection_t *c)
{
    ngx_http_request_t *r = ((ngx_http_request_t *) c->data)->main;
    ngx_http_core_loc_conf_t *clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!ngx_mp_ends_connection(c)) {
        return 0;
    }
    if (r->reading_body || r->discard_body) {
        return 1;
    }
    return clcf->lingering_close == NGX_HTTP_LINGERING_ALWAYS || r->lingering_close
           || r->header_in->pos < r->header_in->last || c->read->ready || c->pipeline;
}
