/*
 * Creates accept queues for the workers: siblings of the listening sockets, created by the master
 * before it forks. The master keeps them as long as their socket. So a worker that ends, or a new
 * configuration with another number of workers, loses no connection that waits in a queue.
 */
#include "ngx_megapipe.h"

/* Maximum number of queues of one socket: more workers share them. */
#define NGX_MP_SIBLINGS_MAX 256

typedef struct {
    ngx_socket_t listener;
    ngx_uint_t count;
    ngx_uint_t claimed; /* number with CPUs; if 0, the listener has all CPUs */
    int siblings[NGX_MP_SIBLINGS_MAX];
} ngx_mp_group_t;

/* Descriptors that the master needs for other things: logs and files of a configuration. */
#define NGX_MP_OTHER_DESCRIPTORS 64

/* Most descriptors of the master that are looked at. */
#define NGX_MP_LOOKED_AT_MAX 65536

static ngx_uint_t ngx_mp_is_partitioned(ngx_listening_t *ls);
static ngx_uint_t ngx_mp_has_room(ngx_cycle_t *cycle, ngx_uint_t wanted);
static ngx_mp_group_t *ngx_mp_find_group(ngx_socket_t fd);
static ngx_mp_group_t *ngx_mp_new_group(ngx_socket_t fd, ngx_log_t *log);
static void ngx_mp_drop_groups(ngx_cycle_t *cycle);
static ngx_int_t ngx_mp_partition_one(ngx_listening_t *ls, ngx_uint_t wanted,
    ngx_cycle_t *cycle);
static void ngx_mp_masks(cpu_set_t *masks, ngx_uint_t workers, ngx_cycle_t *cycle);
static ngx_uint_t ngx_mp_is_bound(ngx_core_conf_t *ccf, ngx_uint_t worker, int cpu);

static ngx_mp_group_t **ngx_mp_groups;
static ngx_uint_t ngx_mp_group_count;

/* Finds the siblings of a listening socket; none if it is not partitioned. */
ngx_uint_t
ngx_mp_siblings(ngx_socket_t fd, const int **siblings)
{
    ngx_mp_group_t *group = ngx_mp_find_group(fd);

    if (group == NULL) {
        return 0;
    }
    *siblings = group->siblings;
    return group->count;
}

/*
 * Connections that no queue claims go to the original: the first worker serves it, or all workers.
 */
ngx_uint_t
ngx_mp_serves_original(ngx_socket_t fd)
{
    ngx_mp_group_t *group = ngx_mp_find_group(fd);

    return group == NULL || group->claimed == 0 || ngx_worker == 0;
}

ngx_uint_t
ngx_mp_count_descriptors(void)
{
    ngx_uint_t i, count = 0;

    for (i = 0; i < ngx_mp_group_count; i++) {
        count += 1 + ngx_mp_groups[i]->count;
    }
    return count;
}

/* Prints ";LISTENER:QUEUE,QUEUE" for each group, and lets the queues survive execve(2). */
u_char *
ngx_mp_print_groups(u_char *p)
{
    ngx_mp_group_t *group;
    ngx_uint_t i, j;

    for (i = 0; i < ngx_mp_group_count; i++) {
        group = ngx_mp_groups[i];
        p = ngx_sprintf(p, ";%d", group->listener);
        for (j = 0; j < group->count; j++) {
            (void) fcntl(group->siblings[j], F_SETFD, 0);
            p = ngx_sprintf(p, "%c%d", j == 0 ? ':' : ',', group->siblings[j]);
        }
    }
    return p;
}

/* Adds a queue that another binary has created. */
ngx_int_t
ngx_mp_add_queue(ngx_socket_t listener, int queue, ngx_log_t *log)
{
    ngx_mp_group_t *group = ngx_mp_find_group(listener);

    if (group == NULL) {
        group = ngx_mp_new_group(listener, log);
    }
    if (group == NULL || group->count == NGX_MP_SIBLINGS_MAX) {
        return NGX_ERROR;
    }
    group->siblings[group->count++] = queue;
    return NGX_OK;
}

/*
 * Gives all new connections to the original sockets and closes the queues here. The workers that
 * still have them accept the waiting connections when they stop listening.
 */
void
ngx_mp_dissolve(ngx_log_t *log)
{
    cpu_set_t masks[NGX_MP_SIBLINGS_MAX];
    ngx_mp_group_t *group;
    ngx_uint_t i, j;
    int off = 0;

    ngx_memzero(masks, sizeof(masks));
    for (i = 0; i < ngx_mp_group_count; i++) {
        group = ngx_mp_groups[i];
        /* The original may be closed already; any socket of the group can be used. */
        if (group->count > 0
            && mp_partition(group->siblings[0], masks, (int) group->count, group->siblings) == -1)
        {
            ngx_mp_failed(log, NGX_LOG_ALERT, "giving the connections to one queue");
        }
        /* Allows the socket to be partitioned again. */
        (void) setsockopt(group->listener, SOL_SOCKET, SO_REUSEPORT, &off, sizeof(off));
        for (j = 0; j < group->count; j++) {
            (void) ngx_close_socket(group->siblings[j]);
        }
        ngx_free(group);
    }
    ngx_mp_group_count = 0;
}

static ngx_mp_group_t *
ngx_mp_find_group(ngx_socket_t fd)
{
    ngx_uint_t i;

    for (i = 0; i < ngx_mp_group_count; i++) {
        if (ngx_mp_groups[i]->listener == fd) {
            return ngx_mp_groups[i];
        }
    }
    return NULL;
}

static ngx_mp_group_t *
ngx_mp_new_group(ngx_socket_t fd, ngx_log_t *log)
{
    ngx_mp_group_t **groups, *group;
    ngx_uint_t i;

    group = ngx_alloc(sizeof(ngx_mp_group_t), log);
    groups = ngx_alloc((ngx_mp_group_count + 1) * sizeof(ngx_mp_group_t *), log);
    if (group == NULL || groups == NULL) {
        ngx_free(group);
        ngx_free(groups);
        return NULL;
    }
    group->listener = fd;
    group->count = 0;
    group->claimed = 0;
    for (i = 0; i < NGX_MP_SIBLINGS_MAX; i++) {
        group->siblings[i] = -1;
    }
    ngx_memcpy(groups, ngx_mp_groups, ngx_mp_group_count * sizeof(ngx_mp_group_t *));
    groups[ngx_mp_group_count++] = group;
    ngx_free(ngx_mp_groups);
    ngx_mp_groups = groups;
    return group;
}

/* Partitions the listening sockets for `wanted` workers; for none it only cleans up. */
ngx_int_t
ngx_mp_partition(ngx_cycle_t *cycle, ngx_uint_t wanted)
{
    ngx_listening_t *ls = cycle->listening.elts;
    ngx_uint_t i;

    ngx_mp_drop_groups(cycle);
    wanted = ngx_min(wanted, NGX_MP_SIBLINGS_MAX);
    if (wanted > 0 && !ngx_mp_has_room(cycle, wanted)) {
        wanted = 0;
    }
    for (i = 0; i < cycle->listening.nelts; i++) {
        if (!ngx_mp_is_partitioned(&ls[i])
            || (wanted == 0 && ngx_mp_find_group(ls[i].fd) == NULL))
        {
            continue;
        }
        if (ngx_mp_partition_one(&ls[i], wanted, cycle) != NGX_OK) {
            return NGX_ERROR;
        }
    }
    return NGX_OK;
}

static ngx_uint_t
ngx_mp_is_partitioned(ngx_listening_t *ls)
{
    return ls->type == SOCK_STREAM && !ls->reuseport && !ls->ignore
           && (ls->sockaddr->sa_family == AF_INET || ls->sockaddr->sa_family == AF_INET6);
}

/*
 * Returns whether the master has descriptors for the queues of so many workers, and for the
 * sockets by which it talks to them. Raises its soft limit if the hard limit permits it.
 */
static ngx_uint_t
ngx_mp_has_room(ngx_cycle_t *cycle, ngx_uint_t wanted)
{
    ngx_listening_t *ls = cycle->listening.elts;
    ngx_mp_group_t *group;
    ngx_uint_t i, known, queues = 0;
    struct rlimit limit;
    rlim_t needed;
    int fd;

    for (i = 0; i < cycle->listening.nelts; i++) {
        if (ngx_mp_is_partitioned(&ls[i])) {
            group = ngx_mp_find_group(ls[i].fd);
            known = group != NULL ? group->count : 0;
            queues += wanted - ngx_min(wanted, known);
        }
    }
    if (queues == 0 || getrlimit(RLIMIT_NOFILE, &limit) == -1) {
        return 1;
    }
    needed = queues + 2 * wanted + NGX_MP_OTHER_DESCRIPTORS;
    for (fd = 0; (rlim_t) fd < limit.rlim_cur && fd < NGX_MP_LOOKED_AT_MAX; fd++) {
        needed += fcntl(fd, F_GETFD) != -1;
    }
    if (needed <= limit.rlim_cur) {
        return 1;
    }
    limit.rlim_cur = needed;
    if (needed <= limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0) {
        return 1;
    }
    ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                  "megapipe: %ui accept queues for %ui workers would take the master to %ui "
                  "descriptors, of which it may have %ui; the workers share one queue for each "
                  "socket: raise the hard limit (ulimit -Hn) to give each its own",
                  queues, wanted, (ngx_uint_t) needed, (ngx_uint_t) limit.rlim_max);
    return 0;
}

/*
 * Closes the queues of other workers here, which count as descriptors of this process. A worker
 * keeps those of the worker that it watches.
 */
void
ngx_mp_close_other_queues(ngx_cycle_t *cycle)
{
    ngx_core_conf_t *ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    ngx_uint_t watched = ngx_mp_watched_worker(ccf), owner, i, j;
    ngx_mp_group_t *group;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_HELPER) {
        return;
    }
    for (i = 0; i < ngx_mp_group_count; i++) {
        group = ngx_mp_groups[i];
        for (j = 0; j < group->count; j++) {
            owner = j % (ngx_uint_t) ccf->worker_processes;
            if (ngx_process == NGX_PROCESS_HELPER || (owner != ngx_worker && owner != watched)) {
                (void) ngx_close_socket(group->siblings[j]);
                group->siblings[j] = -1;
            }
        }
    }
}

/* Closes the siblings of sockets that the new configuration does not have. */
static void
ngx_mp_drop_groups(ngx_cycle_t *cycle)
{
    ngx_listening_t *ls = cycle->listening.elts;
    ngx_mp_group_t *group;
    ngx_uint_t i, j, kept = 0;

    for (i = 0; i < ngx_mp_group_count; i++) {
        group = ngx_mp_groups[i];
        for (j = 0; j < cycle->listening.nelts && ls[j].fd != group->listener; j++) {
            continue;
        }
        if (j < cycle->listening.nelts) {
            ngx_mp_groups[kept++] = group;
            continue;
        }
        for (j = 0; j < group->count; j++) {
            (void) ngx_close_socket(group->siblings[j]);
        }
        ngx_free(group);
    }
    ngx_mp_group_count = kept;
}

static ngx_int_t
ngx_mp_partition_one(ngx_listening_t *ls, ngx_uint_t wanted, ngx_cycle_t *cycle)
{
    ngx_mp_group_t *group = ngx_mp_find_group(ls->fd);
    ngx_log_t *log = cycle->log;
    cpu_set_t *masks;
    ngx_uint_t count;
    int rc;

    if (group == NULL) {
        group = ngx_mp_new_group(ls->fd, log);
        if (group == NULL) {
            return NGX_ERROR;
        }
    }
    /* Queues are never closed: a connection may be in them. */
    count = ngx_max(group->count, wanted);
    if (count == 0) {
        return NGX_OK;
    }
    masks = ngx_calloc(count * sizeof(cpu_set_t), log);
    if (masks == NULL) {
        return NGX_ERROR;
    }
    if (wanted > 0) {
        ngx_mp_masks(masks, wanted, cycle);
    }
    rc = mp_partition(ls->fd, masks, (int) count, group->siblings);
    ngx_free(masks);
    if (rc == -1) {
        ngx_mp_failed(log, NGX_LOG_WARN, "mp_partition()");
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "megapipe: the workers share the one accept queue of %V; correct the "
                      "cause in the line above to give each its own", &ls->addr_text);
        return NGX_OK;
    }
    group->count = count;
    group->claimed = wanted;
    return NGX_OK;
}

/*
 * Gives each CPU that the master may use to one of the workers that are bound to it, or to any
 * worker. A worker that gets none, because there are more workers than CPUs, shares one.
 */
static void
ngx_mp_masks(cpu_set_t *masks, ngx_uint_t workers, ngx_cycle_t *cycle)
{
    ngx_core_conf_t *ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    cpu_set_t allowed;
    ngx_uint_t worker, tried, turn = 0;
    int cpu;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) == -1) {
        CPU_ZERO(&allowed);
        for (cpu = 0; cpu < ngx_ncpu && cpu < CPU_SETSIZE; cpu++) {
            CPU_SET(cpu, &allowed);
        }
    }
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) {
            continue;
        }
        for (tried = 0; tried < workers; tried++) {
            worker = (turn + tried) % workers;
            if (ngx_mp_is_bound(ccf, worker, cpu)) {
                CPU_SET(cpu, &masks[worker]);
                turn = worker + 1;
                break;
            }
        }
    }
    for (worker = 0, cpu = -1; worker < workers; worker++) {
        for (tried = 0; CPU_COUNT(&masks[worker]) == 0 && tried < CPU_SETSIZE; tried++) {
            cpu = (cpu + 1) % CPU_SETSIZE;
            if (CPU_ISSET(cpu, &allowed) && ngx_mp_is_bound(ccf, worker, cpu)) {
                CPU_SET(cpu, &masks[worker]);
            }
        }
    }
}

/* Follows worker_cpu_affinity; `auto` gives each worker the next CPU of the last mask. */
static ngx_uint_t
ngx_mp_is_bound(ngx_core_conf_t *ccf, ngx_uint_t worker, int cpu)
{
    ngx_cpuset_t *last;
    ngx_uint_t before = 0;
    int other;

    if (ccf->cpu_affinity == NULL) {
        return 1;
    }
    last = &ccf->cpu_affinity[ccf->cpu_affinity_n - 1];
    if (!ccf->cpu_affinity_auto) {
        return CPU_ISSET(cpu, worker < ccf->cpu_affinity_n ? &ccf->cpu_affinity[worker] : last);
    }
    if (!CPU_ISSET(cpu, last)) {
        return 0;
    }
    for (other = 0; other < cpu; other++) {
        before += CPU_ISSET(other, last) != 0;
    }
    return worker % CPU_COUNT(last) == before;
}
