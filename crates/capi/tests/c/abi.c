/* Sizes and places that programs compiled against an older header rely on. */
#include <megapipe.h>
#include <assert.h>
#include <stdio.h>

#define AT(type, field, place) static_assert(offsetof(struct type, field) == (place), #field)

static_assert(sizeof(mp_handle) == 8, "mp_handle");
static_assert(sizeof(struct mp_event) == 72, "mp_event");
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
static_assert(sizeof(struct mp_options) == 80, "mp_options");
AT(mp_options, driver, 0);
AT(mp_options, linger_us, 24);
AT(mp_options, steal_interval_us, 44);
AT(mp_options, reserved, 48);
static_assert(sizeof(struct mp_counters) == 112, "mp_counters may grow at its end only");
AT(mp_counters, requests, 0);
AT(mp_counters, orphaned, 104);
static_assert(MP_ACCEPT == 1 && MP_RECV == 7 && MP_POLL == 11, "commands");
static_assert(MP_CLOSE == 12 && MP_PEER_ADDRESS == 13, "commands");
static_assert(MP_DRIVER_AUTO == 0 && MP_DRIVER_EPOLL == 2, "drivers");
static_assert(MP_LWSOCKET_FIRST == 1073741824 && MP_NONE == -1 && MP_MORE == 1, "numbers");

int main(void)
{
    printf("megapipe %s\n", mp_version());
    return 0;
}
