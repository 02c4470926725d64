/*
 * megapipe.hpp - coroutines on the channel of MegaPipe, for C++20: headers over megapipe.h
 *
 * A task runs until it awaits a request. channel::run() resumes it when the request has completed.
 * An echo server (the full program is examples/cpp/echo.cpp):
 *
 *     megapipe::task<> serve(megapipe::socket peer)
 *     {
 *         try {
 *             while (auto message = co_await peer.receive())
 *                 co_await peer.write(std::move(message));
 *         } catch (const std::system_error &error) {
 *             std::cerr << error.what() << '\n'; // the client has reset the connection
 *         }
 *     }
 *
 *     megapipe::task<> accept_all(megapipe::channel &channel, megapipe::listener listener)
 *     {
 *         for (;;)
 *             channel.spawn(serve(co_await listener.accept()));
 *     }
 *
 *     int main()
 *     {
 *         megapipe::channel channel;
 *         channel.spawn(accept_all(channel, {channel, {"127.0.0.1", 7000}}));
 *         channel.run();
 *     }
 *
 * Errors are std::system_error with an errno: `error.code() == std::errc::timed_out`. An exception
 * that leaves a spawned task leaves channel::run(). None passes through C, which has no callbacks.
 *
 * Cancellation. Destroying a suspended task, by channel::cancel() or ~channel(), is sound at each
 * co_await: its request is cancelled, and the destructor waits for the last completion, so the
 * kernel no longer uses memory that is then freed. This takes microseconds; for a disk file, the
 * time of the transfer. A received buffer and an accepted connection that completed meanwhile are
 * kept for the next request; the bytes of a read() are lost. within(), by() and until() limit one
 * request: they cancel it, and the task goes on after the last completion.
 *
 * Limits. A handle has one awaited request for each direction: reads, receives, accepts and ticks;
 * connects, writes and shutdowns. A second one fails with EBUSY. A listener accepts at most 64
 * connections before they are awaited.
 *
 * Ends. Destructors close as mp_close() does, after all output; a socket is reset instead if one of
 * its writes was cancelled half-way. channel::run() waits for these ends.
 *
 * Threads. A channel and all that was made with it belong to the channel's thread: do not destroy
 * a task elsewhere. A channel is destroyed after its sockets, listeners, timers and buffers, except
 * those that its tasks own.
 */
#ifndef MEGAPIPE_HPP
#define MEGAPIPE_HPP

#include <megapipe/request.hpp>
#include <megapipe/task.hpp>
#include <megapipe/values.hpp>

#include <climits>
#include <new>
#include <unistd.h>
#include <unordered_map>

namespace megapipe {

/* A spawned task, from channel::spawn(); never used again in the same channel. */
using task_id = std::uint64_t;

namespace detail {

class accept_request;
struct root_promise;

/* Passes a descriptor on; throws the error of the call of megapipe.h that returned none. */
inline int checked(int descriptor)
{
    if (descriptor < 0)
        throw failure();
    return descriptor;
}

inline address bound_to(int descriptor)
{
    sockaddr_storage found;
    socklen_t size = sizeof found;
    if (getsockname(descriptor, reinterpret_cast<sockaddr *>(&found), &size) < 0)
        throw std::system_error(errno, std::system_category(), "getsockname");
    return {reinterpret_cast<sockaddr *>(&found), size};
}

/* What handles, listeners and timers have in common: they own a member. */
class owner {
public:
    owner(owner &&other) noexcept : member_(std::exchange(other.member_, nullptr)) {}
    owner &operator=(owner &&other) noexcept
    {
        owner gone(std::move(*this));
        member_ = std::exchange(other.member_, nullptr);
        return *this;
    }
    ~owner()
    {
        if (member_)
            member_->disown();
    }

    /* Whether there is a handle: not if it was moved, closed, or not connected yet. */
    explicit operator bool() const noexcept { return native() != MP_NONE; }
    /* The handle, for calls of megapipe.h that submit no request, such as mp_sockopt(). */
    mp_handle native() const noexcept { return member_ ? member_->handle : MP_NONE; }
    /* Closes after all output, as mp_close() does, and reports its error. The destructor does the
     * same without a report. */
    auto close() noexcept { return close_request(member_); }

protected:
    explicit owner(member *member) noexcept : member_(member) {}
    owner(channel &home, int descriptor, bool takes, const cpu_set_t *cpus = nullptr);

    member *member_;
};

} // namespace detail

/* A pipe, terminal, file, eventfd(2), signalfd(2) or socket as a member of a channel. */
class handle : public detail::owner {
public:
    /* Takes the descriptor over, even if it throws. */
    handle(channel &home, int descriptor) : owner(home, descriptor, true) {}

    /* Reads at most the size of room; 0 is the end. room must stay valid until the completion. */
    auto read(std::span<std::byte> room) noexcept { return detail::read_request(member_, room); }
    /* Receives from a stream or pipe into a buffer of the channel: mp_recv(). */
    auto receive() noexcept { return detail::receive_request(member_); }
    /* Writes all bytes, which must stay valid until the completion. */
    auto write(std::span<const std::byte> bytes) noexcept
    {
        return detail::write_request(member_, bytes);
    }
    auto write(std::string_view text) noexcept { return write(std::as_bytes(std::span(text))); }
    /* Writes a received buffer without a copy, and returns it to the channel: mp_write_buffer(). */
    auto write(lease &&bytes) noexcept { return detail::write_request(member_, std::move(bytes)); }

protected:
    explicit handle(detail::member *member) noexcept : owner(member) {}
};

/* A stream socket. An accepted one is lightweight. */
class socket : public handle {
public:
    /* A socket that is not connected yet. */
    explicit socket(channel &home) : handle(new detail::member(home)) {}
    using handle::handle;

    /* Connects a new lightweight socket, or this one again after a failure. */
    auto connect(const address &to) noexcept { return detail::connect_request(member_, to); }
    /* Shuts down as shutdown(2) does, after all output: SHUT_RD, SHUT_WR or SHUT_RDWR. */
    auto shutdown(int how) noexcept { return detail::shutdown_request(member_, how); }
    /* Closes at once and resets the connection: mp_abort(). */
    void abort() noexcept
    {
        if (member_)
            member_->broken = true;
        socket gone(std::move(*this));
    }
    address peer() const
    {
        sockaddr_storage found;
        socklen_t size = sizeof found;
        if (mp_peer_address(native(), reinterpret_cast<sockaddr *>(&found), &size) < 0)
            throw detail::failure();
        return {reinterpret_cast<sockaddr *>(&found), size};
    }

private:
    friend detail::accept_request;
    explicit socket(detail::member *member) noexcept : handle(member) {}
};

namespace detail {

class accept_request : public request<accept_request> {
public:
    explicit accept_request(member *subject) noexcept : request("accept", subject, in, use::nothing)
    {
    }
    socket await_resume()
    {
        finish();
        return socket(subject_->pop_accepted());
    }

private:
    friend request;
    bool is_ready() const noexcept { return subject_->accepted; }
    int submit() noexcept
    {
        const int more = ahead_max - subject_->ahead;
        if (more < ahead_max / 2)
            return 0;
        const int status = mp_accept(subject_->handle, more, MP_LWSOCKET);
        subject_->ahead += status < 0 ? 0 : more;
        return status;
    }
};

} // namespace detail

/* A listening TCP socket. */
class listener : public detail::owner {
public:
    /* Binds and listens as mp_listen() does. */
    listener(channel &home, const address &at, int backlog = 0)
        : listener(home, detail::checked(mp_listen(at.data(), at.size(), backlog)), true, nullptr)
    {
    }
    /* Registers the share of a listening descriptor, which stays the caller's, for the connections
     * of these CPUs: mp_register(). Each thread does so in its channel. */
    listener(channel &home, int descriptor, const cpu_set_t &cpus)
        : listener(home, descriptor, false, &cpus)
    {
    }

    /* Waits for the next connection. While descriptors or memory are lacking it waits, too, and
     * shortage() has the reason. */
    auto accept() noexcept { return detail::accept_request(member_); }
    /* The last transient error of an accept, such as EMFILE, until the next success. */
    std::error_code shortage() const noexcept
    {
        return {member_ ? member_->shortage : 0, std::system_category()};
    }
    /* The address at which it listens, with the port that the kernel chose for port 0. */
    const address &local() const noexcept { return local_; }

private:
    listener(channel &home, int descriptor, bool takes, const cpu_set_t *cpus)
        : owner(home, descriptor, takes, cpus), local_(detail::bound_to(descriptor))
    {
    }

    address local_;
};

/* A timer of mp_timer(), for regular work. channel::sleep() needs no timer. */
class timer : public detail::owner {
public:
    explicit timer(channel &home);

    /* Expires after first, and then every interval unless that is 0; first 0 stops it. */
    void set(std::chrono::nanoseconds first, std::chrono::nanoseconds interval = {})
    {
        const auto count = [](std::chrono::nanoseconds time) {
            return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
        };
        if (mp_timer_set(native(), count(first), count(interval)) < 0)
            throw detail::failure();
        member_->expirations = 0;
    }
    /* Waits for an expiration; returns their number since the last tick. */
    auto tick() noexcept { return detail::tick_request(member_); }
};

/* A channel with an event loop for tasks. */
class channel {
public:
    explicit channel(const mp_options &options = {})
    {
        native_ = mp_create(&options);
        if (!native_)
            throw detail::failure();
    }
    channel(const channel &) = delete;
    /* Destroys the spawned tasks, and closes what is open. Output that is not written is lost:
     * run() waits for it. */
    ~channel();

    /* Starts a task, which the channel owns from now on; it runs until it first waits. If it is a
     * lambda, that must have no captures: the frame has the parameters, but not the captures. */
    task_id spawn(task<> work);
    /* Destroys a task before run() resumes the next one. Does nothing if the task has ended. */
    void cancel(task_id id) noexcept;
    /* Resumes tasks until all have ended and all closed handles are closed, or until stop(). Throws
     * what leaves a spawned task; a further call goes on with the others. */
    void run();
    /* Makes run() return when the task that runs now has waited or ended. */
    void stop() noexcept { stops_ = true; }

    /* Waits for at least this time, to the millisecond. */
    auto sleep(detail::clock::duration time) noexcept
    {
        return detail::sleep_request(*this, detail::after(time));
    }
    /* The channel, for calls of megapipe.h that submit no request and do not dispatch. */
    mp_channel *native() const noexcept { return native_; }

private:
    friend detail::member;
    friend detail::operation;
    friend detail::root_promise;

    int collect(int timeout_ms) noexcept;
    void deliver(const mp_event &event) noexcept;
    void accepted(detail::member &subject, const mp_event &event) noexcept;
    void append(detail::operation &ready) noexcept;
    void remove(detail::operation &ready) noexcept;
    void resume_ready();
    void reap();
    void expire() noexcept;
    int timeout_ms() const noexcept;

    mp_channel *native_ = nullptr;
    detail::member *members_ = nullptr;
    std::size_t closing_ = 0; /* members whose MP_CLOSE has not come */
    detail::operation *first_ready_ = nullptr, *last_ready_ = nullptr;
    std::multimap<detail::clock::time_point, detail::operation *> alarms_;
    std::unordered_map<task_id, detail::root_promise *> roots_;
    detail::root_promise *ended_ = nullptr; /* to be destroyed */
    task_id last_id_ = 0;
    bool stops_ = false, runs_ = false;
};

} // namespace megapipe

#include <megapipe/loop.hpp>

#endif
