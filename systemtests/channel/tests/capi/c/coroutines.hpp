// Shared by the C++ test programs: checks that report their line, and tasks that are destroyed.
#ifndef COROUTINES_HPP
#define COROUTINES_HPP

#include <megapipe.hpp>

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <vector>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n  mp_error: %s\n", __FILE__, __LINE__, #condition,    \
                         mp_error());                                                              \
            std::exit(EXIT_FAILURE);                                                               \
        }                                                                                          \
    } while (0)

namespace tests {

using namespace std::chrono_literals;
using megapipe::channel;
using megapipe::socket;
using megapipe::task;

// More bytes than the kernel takes for a peer that does not read.
constexpr std::size_t big = 8 << 20;

// The number of tasks of watch() that have a frame.
inline int living = 0;

struct canary {
    canary() { living += 1; }
    canary(const canary &) = delete;
    ~canary() { living -= 1; }
};

inline task<> watch(task<> work, bool &ended)
{
    const canary canary;
    co_await std::move(work);
    ended = true;
}

inline task<> stop_after(channel &channel, int turns)
{
    while (turns-- > 0)
        co_await channel.sleep(0s);
    channel.stop();
}

// Runs the tasks for some turns of the event loop, so that requests reach the kernel.
inline void turn(channel &channel, int turns = 3)
{
    channel.spawn(stop_after(channel, turns));
    channel.run();
}

// Starts a task, which must wait, and destroys it.
inline void drop(channel &channel, task<> work)
{
    const int before = living;
    bool ended = false;
    const auto id = channel.spawn(watch(std::move(work), ended));
    turn(channel);
    CHECK(!ended && living == before + 1);
    channel.cancel(id);
    turn(channel, 1);
    CHECK(!ended && living == before);
}

// Runs a task to its end, with all others.
inline void finish(channel &channel, task<> work)
{
    bool ended = false;
    channel.spawn(watch(std::move(work), ended));
    channel.run();
    CHECK(ended);
}

// Runs a task to its end; returns its error.
inline std::error_code error_of(channel &channel, task<> work)
{
    try {
        finish(channel, std::move(work));
    } catch (const std::system_error &error) {
        return error.code();
    }
    return {};
}

struct ends {
    socket left, right;

    explicit ends(channel &channel) : ends(channel, descriptors()) {}

private:
    struct two {
        int fds[2];
    };
    static two descriptors()
    {
        two made;
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, made.fds) == 0);
        return made;
    }
    ends(channel &channel, two made) : left(channel, made.fds[0]), right(channel, made.fds[1]) {}
};

inline int open_files()
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

} // namespace tests

#endif
