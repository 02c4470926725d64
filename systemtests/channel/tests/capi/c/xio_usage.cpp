// Tests that the header of flows is valid C++17: all of it compiles, and a message arrives.
#include <xio.h>

#include <cstdio>
#include <cstring>
#include <memory>

struct Unregister {
    void operator()(xio_context *context) const { xio_unregister_name(context); }
};

int main()
{
    xio_options options{};
    options.timeout_ms = 10000;
    options.trust = XIO_UNTRUSTED;
    std::unique_ptr<xio_context, Unregister> server(
        xio_register_name("tcp://127.0.0.1:0", &options));
    char name[128];
    if (!server || xio_name(server.get(), name, sizeof name) < 0)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    const xio_handle listener = xio_listen(server.get());
    const xio_handle client = xio_connect(server.get(), name);
    const xio_handle flow = xio_accept(listener, 10000);
    xio_buffer buffer{};
    if (xio_getwritebuf(client, 5, &buffer, 1, -1) != 1)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    std::memcpy(buffer.data, "hello", 5);
    xio_poll poll{flow, POLLIN, 0, 0};
    if (xio_commit(client, &buffer) != 0 || xpoll(nullptr, 0, &poll, 1, 10000) != 1)
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    if (xio_getreadbuf(flow, &buffer, 1, 0) != 1 || std::memcmp(buffer.data, "hello", buffer.bytes))
        return std::fprintf(stderr, "%s\n", mp_error()), 1;
    return xio_release(&buffer) || xio_close(flow) || xio_close(client) || xio_close(listener);
}
