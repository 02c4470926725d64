// Tests that the header is valid C++17: all of it compiles, and a message arrives.
#include <megapipe.h>

#include <cstdio>
#include <cstring>
#include <memory>

struct Destroy {
    void operator()(mp_channel *channel) const { mp_destroy(channel); }
};

int main()
{
    mp_options options{};
    options.batch = 8;
    std::unique_ptr<mp_channel, Destroy> channel(mp_create(&options));
    int fds[2];
    if (!channel || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    const mp_handle left = mp_register(channel.get(), fds[0], nullptr, nullptr);
    const mp_handle right = mp_register(channel.get(), fds[1], nullptr, nullptr);
    if (mp_write(left, "hello", 5) != 0 || mp_recv(right, 0) != 0)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    for (mp_event event{}; mp_dispatch(channel.get(), &event, 10000) == 1;) {
        if (event.cmd == MP_RECV && event.size == 5 && !std::memcmp(event.data, "hello", 5))
            return mp_release(channel.get(), event.buffer);
    }
    return 1;
}
