/* Checks sizes and offsets that programs compiled against an older header rely on. */
#include <mtcp.h>
#include <xio.h>
#include <assert.h>
#include <stdio.h>

#define AT(type, field, place) static_assert(offsetof(struct type, field) == (place), #field)

static_assert(sizeof(mp_handle) == 8, "mp_handle");
static_assert(sizeof(struct mp_event) == 96, "mp_event");
AT(mp_event, cmd, 0);
AT(mp_event, flags, 4);
AT(mp_event, handle, 8);
AT(mp_event, cookie, 16);
AT(mp_event, error, 24);
AT(mp_event, fd, 28);
AT(mp_event, size, 32);
AT(mp_event, data, 40);
AT(mp_event, buffer, 48);
AT(mp_event, pending, 56);
AT(mp_event, revents, 60);
AT(mp_event, offset, 64);
AT(mp_event, count, 72);
AT(mp_event, address, 80);
AT(mp_event, address_size, 88);
AT(mp_event, reserved, 92);
static_assert(sizeof(struct mp_options) == 76, "mp_options");
AT(mp_options, driver, 0);
AT(mp_options, linger_us, 24);
AT(mp_options, steal_interval_us, 44);
AT(mp_options, keep_steering, 48);
AT(mp_options, output_pause, 52);
AT(mp_options, output_limit, 56);
AT(mp_options, close_timeout_ms, 60);
AT(mp_options, events_after_close, 64);
AT(mp_options, max_connections, 68);
AT(mp_options, reserved, 72);
static_assert(sizeof(struct mp_counters) == 120, "mp_counters may grow at its end only");
AT(mp_counters, requests, 0);
AT(mp_counters, orphaned, 104);
AT(mp_counters, rebalanced, 112);
static_assert(MP_ACCEPT == 1 && MP_RECV == 7 && MP_POLL == 11, "commands");
static_assert(MP_CLOSE == 12 && MP_PEER_ADDRESS == 13 && MP_TIMER == 14, "commands");
static_assert(MP_PEEK == 15 && MP_SEND_FILE == 16, "commands");
static_assert(MP_SENDMSG == 17 && MP_RECVMSG == 18, "commands");
static_assert(MP_SENDTO == 19 && MP_RECVFROM == 20 && MP_FSYNC == 21, "commands");
static_assert(MP_DRIVER_AUTO == 0 && MP_DRIVER_EPOLL == 2, "drivers");
static_assert(MP_LWSOCKET_FIRST == 1073741824 && MP_NONE == -1 && MP_MORE == 1, "numbers");
static_assert(MP_LWSOCKET == 1 && MP_WITH_PEER == 2, "flags");

static_assert(sizeof(xio_handle) == 8, "xio_handle");
static_assert(sizeof(struct xio_buffer) == 40, "xio_buffer");
AT(xio_buffer, data, 0);
AT(xio_buffer, bytes, 8);
AT(xio_buffer, handle, 16);
AT(xio_buffer, token, 24);
AT(xio_buffer, epoch, 32);
static_assert(sizeof(struct xio_options) == 88, "xio_options");
AT(xio_options, trust, 0);
AT(xio_options, ring_bytes, 12);
AT(xio_options, users, 16);
AT(xio_options, users_count, 32);
AT(xio_options, transport, 40);
AT(xio_options, socket, 48);
AT(xio_options, linger_ms, 56);
AT(xio_options, requires_owner, 60);
AT(xio_options, owner, 64);
AT(xio_options, reserved_word, 68);
AT(xio_options, reserved, 72);
static_assert(sizeof(struct xio_poll) == 16, "xio_poll");
AT(xio_poll, events, 8);
AT(xio_poll, revents, 10);
static_assert(sizeof(struct xio_event) == 256, "xio_event");
AT(xio_event, epoch, 4);
AT(xio_event, transport, 8);
AT(xio_event, reason, 16);
static_assert(sizeof(struct xio_peer_info) == 144, "xio_peer_info");
AT(xio_peer_info, host, 16);
AT(xio_peer_info, program, 80);
static_assert(sizeof(struct xio_counters) == 72, "xio_counters may grow at its end only");
AT(xio_counters, pause_total_ns, 56);
AT(xio_counters, undelivered, 64);
static_assert(XIO_NONE == -1 && XIO_ANY == UINT32_MAX && XIO_TRUSTED == 1, "numbers");
static_assert(XIO_MOVED == 1 && XIO_MOVE_FAILED == 2, "events");

static_assert(sizeof(mctx_t) == sizeof(void *), "mctx_t");
static_assert(sizeof(struct mtcp_conf) == 28, "mtcp_conf");
AT(mtcp_conf, max_concurrency, 4);
AT(mtcp_conf, max_num_buffers, 8);
AT(mtcp_conf, tcp_timeout, 24);
static_assert(sizeof(struct mtcp_epoll_event) == 16, "mtcp_epoll_event");
AT(mtcp_epoll_event, data, 8);
static_assert(MTCP_EPOLL_CTL_ADD == 1 && MTCP_EPOLL_CTL_DEL == 2, "controls");
static_assert(MTCP_EPOLLIN == 1 && MTCP_EPOLLOUT == 4 && MTCP_EPOLLET == 1u << 31, "events");

int main(void)
{
    printf("megapipe %s\n", mp_version());
    return 0;
}
