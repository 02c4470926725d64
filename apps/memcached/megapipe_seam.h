/* The seam between memcached and the channel: all that memcached's own sources call.
 *
 * The functions named megapipe_event_* take what libevent's functions of the same name take. An
 * event whose base belongs to a worker thread goes to that worker's channel; the main thread's
 * timers and listeners stay with libevent, which is out of the path of data that way.
 */
#ifndef MEGAPIPE_SEAM_H
#define MEGAPIPE_SEAM_H

#include <event.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>

struct conn;

/* What the channel knows of a connection; NULL in a connection that is not in one. */
struct megapipe_connection;

/* Called when other threads have queued something for a worker. */
typedef void (*megapipe_notified)(evutil_socket_t fd, short which, void *worker_thread);

/* Makes what stands in a worker for its event base. Ends the process if memory is short, as the
 * start of memcached's threads does. */
struct event_base *megapipe_worker_new(void *worker_thread, int notify_fd, megapipe_notified call);

/* Serves the worker's channel in the calling thread until megapipe_worker_stop. All requests have
 * ended when it returns, so whoever closes connections then frees no memory that is being sent. */
void megapipe_worker_run(struct event_base *base);
void megapipe_worker_stop(struct event_base *base);
void megapipe_worker_free(struct event_base *base);

int megapipe_event_base_set(struct event_base *base, struct event *event);
int megapipe_event_add(struct event *event, const struct timeval *timeout);
int megapipe_event_del(struct event *event);

/* As read(2) on a non-blocking socket, from what the channel has received. */
ssize_t megapipe_read(struct conn *c, void *buffer, size_t size);

/* As sendmsg(2) on a non-blocking socket. Little is copied and filed at once; much is filed where
 * it lies and fails with EAGAIN, and the call that is repeated after its completion succeeds. */
ssize_t megapipe_sendmsg(struct conn *c, struct msghdr *message, int flags);

/* Closes the socket, after what is still being sent. */
void megapipe_close(struct conn *c);

/* Called before a side thread borrows a connection: what has been filed goes out before what the
 * side thread writes to the descriptor, which never blocks from now on. */
void megapipe_lend(struct conn *c);

/* Called by the side thread: the connection is closed as soon as its worker has it back. */
void megapipe_close_lent(struct conn *c);

/* As bind(2), but tries again for a second while the address is in use: the kernel ends the rings
 * of a stopped process, and with them its listening sockets, a moment after the process. */
int megapipe_bind(int fd, const struct sockaddr *address, socklen_t length);

/* Leaves a listening TCP socket to the workers, each of which accepts on its CPUs. */
void megapipe_listen(struct conn *c);

/* Ends all accepting, before the process ends: the kernel would give the address free later. */
void megapipe_stop_accepting(void);

/* The hard limit of descriptors for memcached's limit of connections, with room for those of the
 * channels as far as it is possible. */
rlim_t megapipe_hard_limit(rlim_t possible);

/* Whether a connection with this descriptor is one too many. */
bool megapipe_is_full(int fd);

/* Where the items of a hash value begin, in memcached's own table; the only function here that
 * memcached defines. Valid in a worker until it has returned to its loop, as the table is only
 * changed for a larger one while the workers stand still. */
const void *megapipe_bucket(uint32_t hash_value);

/* The figures of `stats megapipe`; the function is memcached's ADD_STAT. */
void megapipe_stats(void (*add_stats)(const char *key, const uint16_t key_bytes, const char *value,
                                      const uint32_t value_bytes, const void *cookie),
                    void *c);

#endif
