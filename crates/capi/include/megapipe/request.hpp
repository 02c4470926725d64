/*
 * megapipe/request.hpp - awaited requests of megapipe.hpp, which includes this file
 *
 * An object of each awaited request is in the frame of the coroutine. It is pending from its
 * submission to its last completion, then ready, until its coroutine is resumed. Its destructor
 * cancels it and waits, so that its memory is never freed before.
 */
#ifndef MEGAPIPE_REQUEST_HPP
#define MEGAPIPE_REQUEST_HPP

#include <megapipe/values.hpp>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <version>
#ifdef __cpp_lib_jthread
#include <stop_token>
#endif

namespace megapipe {

class channel;

namespace detail {

using clock = std::chrono::steady_clock;

class operation;

/* Each handle has one awaited request in each lane; end is that of close(). */
enum lane : unsigned char { in, out, end };

/* What a pending request uses: nothing, the channel, or the memory of its task. */
enum class use : unsigned char { nothing, request, memory };

/* Connections that a listener accepts before they are awaited. */
inline constexpr int ahead_max = 64;

/* The state of a handle, which is the cookie of its events. Freed when the handle is closed and its
 * owner has gone. */
struct member {
    explicit member(channel &channel) noexcept;
    member(const member &) = delete;
    ~member();

    void complete(lane direction, int error) noexcept;
    /* Closes the handle, or resets it if a write was cut. Returns -1 and errno if that fails. */
    int leave() noexcept;
    void disown() noexcept;
    void closed(int error) noexcept;
    void push_accepted(member *peer) noexcept;
    member *pop_accepted() noexcept;

    channel *home; /* NULL after the channel */
    member *next = nullptr, *previous = nullptr;
    mp_handle handle = MP_NONE;
    operation *waiting[3] = {}; /* by lane */
    bool owned = true, closing = false, broken = false;
    lease received; /* of a receive that was destroyed after its completion */
    member *accepted = nullptr, *last_accepted = nullptr, *next_accepted = nullptr;
    int ahead = 0;    /* connections that the channel may still accept */
    int shortage = 0; /* the last transient error of an accept */
    std::uint64_t expirations = 0;
};

/* An awaited request. It lives in the frame of the coroutine that awaits it. */
class operation {
public:
    operation(const operation &) = delete;
    ~operation();

protected:
    operation(const char *name, member *subject, lane direction, use uses) noexcept
        : name_(name), subject_(subject), lane_(direction), uses_(uses)
    {
    }
    void check(bool registered = true) const;
    void begin(std::coroutine_handle<> waiter);
    void finish();

    friend channel;
    friend member;
    enum class stage : unsigned char { idle, pending, ready };

    void complete(int error) noexcept;
    void interrupt(int error) noexcept;
    void withdraw() noexcept;
    void detach() noexcept;

    const char *name_;
    channel *home_ = nullptr;
    member *subject_;                                 /* NULL for a sleep, and after the handle */
    operation *next_ = nullptr, *previous_ = nullptr; /* in the channel's list of ready ones */
    std::coroutine_handle<> waiter_;
    lane lane_;
    use uses_;
    stage stage_ = stage::idle;
    bool registered_ = false; /* with its subject */
    int error_ = 0, verdict_ = 0;
    std::size_t size_ = 0;
    lease buffer_;
    clock::time_point deadline_ = clock::time_point::max();
    std::optional<std::multimap<clock::time_point, operation *>::iterator> alarm_;
#ifdef __cpp_lib_jthread
    struct stopper {
        operation *stopped;
        void operator()() const noexcept { stopped->interrupt(ECANCELED); }
    };
    std::stop_token stop_;
    std::optional<std::stop_callback<stopper>> on_stop_;
#endif
};

inline clock::time_point after(clock::duration time) noexcept
{
    const auto now = clock::now();
    return time < clock::time_point::max() - now ? now + time : clock::time_point::max();
}

/* Awaits a request. It is an object of its own because g++ 12 copies an awaiter that a function
 * such as within() returns by reference. */
template <class Request> struct awaiter {
    Request *awaited;

    bool await_ready() const { return awaited->await_ready(); }
    void await_suspend(std::coroutine_handle<> waiter) const { awaited->await_suspend(waiter); }
    auto await_resume() const { return awaited->await_resume(); }
};

/* How a request is awaited, and its limits. Derived submits it, and may be ready without that. */
template <class Derived> class [[nodiscard]] request : public operation {
public:
    /* The request fails with ETIMEDOUT if it has not completed after this time. */
    Derived &within(clock::duration time) { return by(after(time)); }
    /* The request fails with ETIMEDOUT if it has not completed at this time. */
    Derived &by(clock::time_point deadline)
    {
        deadline_ = deadline;
        return static_cast<Derived &>(*this);
    }
#ifdef __cpp_lib_jthread
    /* The request fails with ECANCELED when a stop is requested: in the channel's thread. */
    Derived &until(std::stop_token stop)
    {
        stop_ = std::move(stop);
        return static_cast<Derived &>(*this);
    }
#endif

    awaiter<Derived> operator co_await() noexcept { return {static_cast<Derived *>(this)}; }

    bool await_ready()
    {
        check();
        return static_cast<Derived *>(this)->is_ready();
    }
    void await_suspend(std::coroutine_handle<> waiter)
    {
        if (static_cast<Derived *>(this)->submit() < 0)
            throw failure();
        begin(waiter);
    }
    void await_resume() { finish(); }

protected:
    using operation::operation;
    bool is_ready() const noexcept { return false; }
};

class read_request : public request<read_request> {
public:
    read_request(member *subject, std::span<std::byte> room) noexcept
        : request("read", subject, in, use::memory), room_(room)
    {
    }
    std::size_t await_resume()
    {
        finish();
        return size_;
    }

private:
    friend request;
    bool is_ready() noexcept
    {
        lease &kept = subject_->received;
        if (!kept)
            return false;
        size_ = std::min(kept.size(), room_.size());
        std::copy_n(kept.bytes().begin(), size_, room_.begin());
        kept.remove_prefix(size_);
        if (kept.size() == 0)
            kept = lease();
        return true;
    }
    int submit() noexcept { return mp_read(subject_->handle, room_.data(), room_.size()); }

    std::span<std::byte> room_;
};

class receive_request : public request<receive_request> {
public:
    explicit receive_request(member *subject) noexcept
        : request("receive", subject, in, use::request)
    {
    }
    lease await_resume()
    {
        finish();
        return std::move(buffer_);
    }

private:
    friend request;
    bool is_ready() noexcept
    {
        buffer_ = std::move(subject_->received);
        return bool(buffer_);
    }
    int submit() noexcept { return mp_recv(subject_->handle, 0); }
};

class write_request : public request<write_request> {
public:
    write_request(member *subject, std::span<const std::byte> bytes) noexcept
        : request("write", subject, out, use::memory), bytes_(bytes)
    {
        size_ = bytes.size();
    }
    write_request(member *subject, lease &&bytes) noexcept
        : request("write", subject, out, use::request), bytes_(bytes)
    {
        size_ = bytes.size();
        buffer_ = std::move(bytes);
    }

private:
    friend request;
    int submit() noexcept
    {
        return buffer_ ? buffer_.write_to(subject_->handle)
                       : mp_write(subject_->handle, bytes_.data(), bytes_.size());
    }

    std::span<const std::byte> bytes_;
};

class shutdown_request : public request<shutdown_request> {
public:
    shutdown_request(member *subject, int how) noexcept
        : request("shutdown", subject, out, use::request), how_(how)
    {
    }

private:
    friend request;
    int submit() const noexcept { return mp_shutdown(subject_->handle, how_); }

    int how_;
};

class connect_request : public request<connect_request> {
public:
    connect_request(member *subject, const address &to) noexcept
        : request("connect", subject, out, use::request), to_(to)
    {
    }
    bool await_ready() const
    {
        check(false);
        return false;
    }

private:
    friend request;
    int submit() noexcept;

    address to_;
};

class close_request : public request<close_request> {
public:
    explicit close_request(member *subject) noexcept : request("close", subject, end, use::nothing)
    {
    }

private:
    friend request;
    int submit() noexcept { return subject_->leave(); }
};

class tick_request : public request<tick_request> {
public:
    explicit tick_request(member *subject) noexcept : request("timer", subject, in, use::nothing) {}
    std::uint64_t await_resume()
    {
        finish();
        return std::exchange(subject_->expirations, 0);
    }

private:
    friend request;
    bool is_ready() const noexcept { return subject_->expirations > 0; }
    int submit() const noexcept { return 0; }
};

class sleep_request : public request<sleep_request> {
public:
    sleep_request(channel &home, clock::time_point end_of_sleep) noexcept
        : request("sleep", nullptr, in, use::nothing)
    {
        home_ = &home;
        deadline_ = end_of_sleep;
    }
    bool await_ready() const noexcept { return false; }
    void await_resume()
    {
        if (error_ == ETIMEDOUT)
            error_ = 0;
        finish();
    }

private:
    friend request;
    int submit() const noexcept { return 0; }
};

} // namespace detail

} // namespace megapipe

#endif
