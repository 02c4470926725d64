/*
 * An echo server with coroutines: sends back what it receives, in the channel's buffers.
 *
 *   c++ -std=c++20 echo.cpp $(pkg-config --cflags --libs megapipe) -o /tmp/echo
 *   /tmp/echo 7000 & echo hello | ncat 127.0.0.1 7000
 */
#include <megapipe.hpp>

#include <cstdlib>
#include <iostream>

/* Runs once for each connection, which ends with this function. */
static megapipe::task<> serve(megapipe::socket peer)
{
    try {
        while (auto message = co_await peer.receive())
            co_await peer.write(std::move(message));
    } catch (const std::system_error &error) {
        std::cerr << "echo: " << error.what() << '\n'; /* the client has reset the connection */
    }
}

static megapipe::task<> accept_all(megapipe::channel &channel, megapipe::listener listener)
{
    for (;;)
        channel.spawn(serve(co_await listener.accept()));
}

int main(int argc, char **argv)
{
    const auto port = static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 7000);
    try {
        megapipe::channel channel;
        megapipe::listener listener(channel, {"127.0.0.1", port});
        std::cout << "listening on 127.0.0.1:" << listener.local().port() << std::endl;
        channel.spawn(accept_all(channel, std::move(listener)));
        channel.run();
    } catch (const std::exception &error) {
        std::cerr << "echo: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
