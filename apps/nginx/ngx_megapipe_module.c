/*
 * Defines the directives of the events block, and the hooks that nginx calls.
 */
#include "ngx_megapipe.h"

/* The manager and the loader of the cache have channels, too. */
#define NGX_MP_HELPERS 2

static char *ngx_mp_check_completions(ngx_conf_t *cf, void *post, void *data);
static void *ngx_mp_create_conf(ngx_cycle_t *cycle);
static char *ngx_mp_init_conf(ngx_cycle_t *cycle, void *conf);
static ngx_int_t ngx_mp_init(ngx_cycle_t *cycle, ngx_msec_t timer);
static ngx_uint_t ngx_mp_is_used(ngx_cycle_t *cycle);
static ngx_int_t ngx_mp_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_mp_choose_driver(ngx_cycle_t *cycle);
static int ngx_mp_try_worker(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf, ngx_core_conf_t *ccf);
static int ngx_mp_rings_fit(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf, ngx_core_conf_t *ccf);
static ngx_int_t ngx_mp_apply_partition(ngx_cycle_t *cycle);
static void ngx_mp_unloaded(void *data);
static void ngx_mp_exit_process(ngx_cycle_t *cycle);
static void ngx_mp_exit_master(ngx_cycle_t *cycle);

/* What a child of the master reports as its exit status. */
enum { NGX_MP_WORKS, NGX_MP_RINGS_DO_NOT_FIT, NGX_MP_FAILS };

/* The master's current configuration; NULL when it ends. */
static ngx_cycle_t *ngx_mp_current;

static ngx_str_t ngx_mp_name = ngx_string("megapipe");

static ngx_conf_enum_t ngx_mp_drivers[] = {
    { ngx_string("auto"), MP_DRIVER_AUTO },
    { ngx_string("uring"), MP_DRIVER_URING },
    { ngx_string("epoll"), MP_DRIVER_EPOLL },
    { ngx_null_string, 0 },
};

static ngx_conf_num_bounds_t ngx_mp_batch_bounds = { ngx_conf_check_num_bounds, 1, 1024 };
static ngx_conf_post_t ngx_mp_completions_post = { ngx_mp_check_completions };

static ngx_command_t ngx_mp_commands[] = {
    { ngx_string("megapipe_driver"), NGX_EVENT_CONF | NGX_CONF_TAKE1, ngx_conf_set_enum_slot, 0,
      offsetof(ngx_mp_conf_t, driver), &ngx_mp_drivers },
    { ngx_string("megapipe_batch"), NGX_EVENT_CONF | NGX_CONF_TAKE1, ngx_conf_set_num_slot, 0,
      offsetof(ngx_mp_conf_t, batch), &ngx_mp_batch_bounds },
    { ngx_string("megapipe_completions"), NGX_EVENT_CONF | NGX_CONF_TAKE1, ngx_conf_set_num_slot,
      0, offsetof(ngx_mp_conf_t, completions), &ngx_mp_completions_post },
    { ngx_string("megapipe_lwsockets"), NGX_EVENT_CONF | NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
      offsetof(ngx_mp_conf_t, lightweight), NULL },
    { ngx_string("megapipe_partition"), NGX_EVENT_CONF | NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
      offsetof(ngx_mp_conf_t, partition), NULL },
    ngx_null_command,
};

static ngx_event_module_t ngx_mp_context = {
    &ngx_mp_name,
    ngx_mp_create_conf,
    ngx_mp_init_conf,
    { ngx_mp_add_event, ngx_mp_del_event, ngx_mp_add_event, ngx_mp_del_event,
      ngx_mp_add_connection, ngx_mp_del_connection, ngx_mp_notify, ngx_mp_process_events,
      ngx_mp_init, ngx_mp_finish },
};

ngx_module_t ngx_megapipe_module = {
    NGX_MODULE_V1,
    &ngx_mp_context,
    ngx_mp_commands,
    NGX_EVENT_MODULE,
    NULL,
    ngx_mp_init_module,
    NULL,
    NULL,
    NULL,
    ngx_mp_exit_process,
    ngx_mp_exit_master,
    NGX_MODULE_V1_PADDING,
};

static char *
ngx_mp_check_completions(ngx_conf_t *cf, void *post, void *data)
{
    ngx_int_t value = *(ngx_int_t *) data;

    if (value < 64 || value > 65536 || (value & (value - 1)) != 0) {
        return "takes a power of two from 64 to 65536";
    }
    return NGX_CONF_OK;
}

static void *
ngx_mp_create_conf(ngx_cycle_t *cycle)
{
    ngx_mp_conf_t *conf = ngx_palloc(cycle->pool, sizeof(ngx_mp_conf_t));

    if (conf != NULL) {
        conf->driver = NGX_CONF_UNSET_UINT;
        conf->batch = NGX_CONF_UNSET;
        conf->completions = NGX_CONF_UNSET;
        conf->lightweight = NGX_CONF_UNSET;
        conf->partition = NGX_CONF_UNSET;
    }
    return conf;
}

static char *
ngx_mp_init_conf(ngx_cycle_t *cycle, void *data)
{
    ngx_mp_conf_t *conf = data;

    /* Zero stands for the channel's own default. */
    ngx_conf_init_uint_value(conf->driver, MP_DRIVER_AUTO);
    ngx_conf_init_value(conf->batch, 0);
    ngx_conf_init_value(conf->completions, 0);
    ngx_conf_init_value(conf->lightweight, 1);
    ngx_conf_init_value(conf->partition, 1);
    if (ngx_mp_is_used(cycle) && cycle->connection_n > NGX_MP_CONNECTIONS_MAX) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "megapipe: worker_connections is %ui, and a channel takes %d at most; "
                      "lower it, and use more workers", cycle->connection_n,
                      NGX_MP_CONNECTIONS_MAX);
        return NGX_CONF_ERROR;
    }
    return NGX_CONF_OK;
}

/* Called in a worker, before it listens. */
static ngx_int_t
ngx_mp_init(ngx_cycle_t *cycle, ngx_msec_t timer)
{
    if (ngx_mp_open(cycle, ngx_event_get_conf(cycle->conf_ctx, ngx_megapipe_module)) != NGX_OK) {
        return NGX_ERROR;
    }
    if (ngx_mp_notify_init(cycle->log) != NGX_OK) {
        ngx_mp_context.actions.notify = NULL;
    }

    ngx_io = ngx_os_io;
    ngx_event_actions = ngx_mp_context.actions;
    ngx_event_flags = NGX_USE_CLEAR_EVENT | NGX_USE_GREEDY_EVENT | NGX_USE_EPOLL_EVENT;
#if (NGX_HAVE_EPOLLRDHUP)
    ngx_use_epoll_rdhup = 1;
#endif
#if (NGX_HAVE_FILE_AIO)
    ngx_file_aio = 0;
#endif
    return NGX_OK;
}

static ngx_uint_t
ngx_mp_is_used(ngx_cycle_t *cycle)
{
    ngx_event_conf_t *ecf;

    if (ngx_get_conf(cycle->conf_ctx, ngx_events_module) == NULL) {
        return 0;
    }
    ecf = ngx_event_get_conf(cycle->conf_ctx, ngx_event_core_module);
    return ecf->use == ngx_megapipe_module.ctx_index;
}

/* Called in the master, for every configuration, before its workers are forked. */
static ngx_int_t
ngx_mp_init_module(ngx_cycle_t *cycle)
{
    ngx_pool_cleanup_t *cleanup;

    if (ngx_mp_choose_driver(cycle) != NGX_OK) {
        return NGX_ERROR;
    }
    if (ngx_test_config) {
        return NGX_OK;
    }
    ngx_mp_inherit(cycle);
    if (ngx_mp_apply_partition(cycle) != NGX_OK || ngx_mp_bequeath(cycle) != NGX_OK) {
        return NGX_ERROR;
    }
    cleanup = ngx_pool_cleanup_add(cycle->pool, 0);
    if (cleanup == NULL) {
        return NGX_ERROR;
    }
    cleanup->handler = ngx_mp_unloaded;
    cleanup->data = cycle;
    ngx_mp_current = cycle;
    return NGX_OK;
}

/*
 * Tries the channel of a worker. Chooses epoll for all workers if there is memory for the rings of
 * some only: all rings of a user share the limit on locked memory, so a process with the user of
 * the workers looks. Refuses what no worker could run with, but not in a reload, which would end
 * the master.
 */
static ngx_int_t
ngx_mp_choose_driver(ngx_cycle_t *cycle)
{
    ngx_mp_conf_t *conf;
    ngx_core_conf_t *ccf;
    ngx_pid_t pid;
    int status = 0;

    if (!ngx_mp_is_used(cycle)) {
        return NGX_OK;
    }
    conf = ngx_event_get_conf(cycle->conf_ctx, ngx_megapipe_module);
    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    pid = fork();
    if (pid == 0) {
        _exit(ngx_mp_try_worker(cycle, conf, ccf));
    }
    while (pid != -1 && waitpid(pid, &status, 0) == -1 && ngx_errno == NGX_EINTR) {
        continue;
    }
    if (pid == -1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno, "fork() failed");
        return NGX_ERROR;
    }
    status = WIFEXITED(status) ? WEXITSTATUS(status) : NGX_MP_WORKS;
    if (status == NGX_MP_WORKS) {
        return NGX_OK;
    }
    if (ngx_is_init_cycle(cycle->old_cycle)
        && (status == NGX_MP_FAILS || conf->driver == MP_DRIVER_URING))
    {
        return NGX_ERROR;
    }
    conf->driver = MP_DRIVER_EPOLL;
    return NGX_OK;
}

/* Becomes a worker's user as nginx does, and tries the driver that the configuration names. */
static int
ngx_mp_try_worker(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf, ngx_core_conf_t *ccf)
{
    struct mp_options options = ngx_mp_options(cycle, conf);
    mp_channel *channel;

    if (geteuid() == 0
        && (setgid(ccf->group) == -1 || initgroups(ccf->username, ccf->group) == -1
            || setuid(ccf->user) == -1))
    {
        return NGX_MP_WORKS; /* a worker will fail in the same way, and tell it */
    }
    if (conf->driver != MP_DRIVER_EPOLL && !ngx_mp_rings_fit(cycle, conf, ccf)) {
        return NGX_MP_RINGS_DO_NOT_FIT;
    }
    /* A ring takes locked memory for some time after its end: it is tried only if it must work. */
    if (conf->driver == MP_DRIVER_AUTO) {
        return NGX_MP_WORKS;
    }
    channel = mp_create(&options);
    if (channel == NULL) {
        ngx_mp_failed(cycle->log, NGX_LOG_EMERG, "mp_create()");
        return NGX_MP_FAILS;
    }
    (void) mp_destroy(channel);
    return NGX_MP_WORKS;
}

/* Returns false, with a message, if there is no memory for the rings of all workers. */
static int
ngx_mp_rings_fit(ngx_cycle_t *cycle, const ngx_mp_conf_t *conf, ngx_core_conf_t *ccf)
{
    struct mp_options options = ngx_mp_options(cycle, conf);
    ngx_uint_t asked = conf->driver == MP_DRIVER_URING;
    ngx_uint_t level = asked ? NGX_LOG_EMERG : NGX_LOG_ERR;
    uint32_t channels = ccf->master ? (uint32_t) ccf->worker_processes + NGX_MP_HELPERS : 1;

    options.driver = MP_DRIVER_AUTO;
    if (mp_check_locked_memory(&options, channels + asked) == 0 || ngx_errno != NGX_ENOMEM) {
        return 1;
    }
    ngx_log_error(level, cycle->log, 0, "megapipe: %s: %s",
                  asked ? "not each worker gets a ring" : "all workers use epoll", mp_error());
    return 0;
}

static ngx_int_t
ngx_mp_apply_partition(ngx_cycle_t *cycle)
{
    ngx_mp_conf_t *conf;
    ngx_core_conf_t *ccf;
    ngx_event_conf_t *ecf;
    ngx_uint_t apart;

    if (!ngx_mp_is_used(cycle)) {
        return ngx_mp_partition(cycle, 0);
    }
    conf = ngx_event_get_conf(cycle->conf_ctx, ngx_megapipe_module);
    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    ecf = ngx_event_get_conf(cycle->conf_ctx, ngx_event_core_module);
    /* The mutex lets one worker listen at a time, which must then get all connections. */
    apart = ccf->master && conf->partition && !ecf->accept_mutex && ccf->worker_processes > 1;
    if (ngx_mp_share_turns(apart ? (ngx_uint_t) ccf->worker_processes : 0, cycle->log) != NGX_OK) {
        return NGX_ERROR;
    }
    return ngx_mp_partition(cycle, apart ? (ngx_uint_t) ccf->worker_processes : 0);
}

/*
 * Handles the end of a configuration. If no newer one has loaded this module, nothing will serve
 * the queues any more.
 */
static void
ngx_mp_unloaded(void *data)
{
    if (ngx_process == NGX_PROCESS_MASTER && ngx_mp_current == data) {
        ngx_mp_dissolve(ngx_cycle->log);
    }
}

static void
ngx_mp_exit_process(ngx_cycle_t *cycle)
{
    ngx_mp_finish(cycle);
}

static void
ngx_mp_exit_master(ngx_cycle_t *cycle)
{
    ngx_mp_current = NULL;
    ngx_mp_leave_queues(cycle);
}
