/*
 * megapipe/task.hpp - the coroutine type of megapipe.hpp, which includes this file
 */
#ifndef MEGAPIPE_TASK_HPP
#define MEGAPIPE_TASK_HPP

#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>
#include <variant>

namespace megapipe {

template <class T = void> class task;

namespace detail {

/* What the promises of all tasks have. A task that has waited ends by transferring control to the
 * coroutine that awaits it. One that never waited returns to it, so that a loop over such tasks
 * needs no stack in builds in which g++ (before -O2) compiles the transfer as a call. */
class promise_base {
public:
    struct last_suspension {
        bool await_ready() const noexcept { return false; }
        template <class Promise>
        std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) const noexcept
        {
            const auto next = ended.promise().continuation;
            return next ? next : std::noop_coroutine();
        }
        void await_resume() const noexcept {}
    };

    std::suspend_always initial_suspend() const noexcept { return {}; }
    last_suspension final_suspend() const noexcept { return {}; }

    std::coroutine_handle<> continuation;
};

template <class T> class promise : public promise_base {
public:
    static_assert(std::is_object_v<T>, "a task returns an object or nothing: return a pointer");

    task<T> get_return_object() noexcept;
    template <class U> void return_value(U &&value)
    {
        result_.template emplace<1>(std::forward<U>(value));
    }
    void unhandled_exception() noexcept { result_.template emplace<2>(std::current_exception()); }
    T take()
    {
        if (auto *thrown = std::get_if<2>(&result_))
            std::rethrow_exception(*thrown);
        return std::move(std::get<1>(result_));
    }

private:
    std::variant<std::monostate, T, std::exception_ptr> result_;
};

template <> class promise<void> : public promise_base {
public:
    task<void> get_return_object() noexcept;
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { thrown_ = std::current_exception(); }
    void take() const
    {
        if (thrown_)
            std::rethrow_exception(thrown_);
    }

private:
    std::exception_ptr thrown_;
};

} // namespace detail

/* A coroutine that returns a T. It starts when it is awaited or spawned. Destroying it destroys
 * what its frame owns, and cancels the request that it awaits. */
template <class T> class [[nodiscard]] task {
public:
    using promise_type = detail::promise<T>;

    task(task &&other) noexcept : coroutine_(std::exchange(other.coroutine_, {})) {}
    task &operator=(task &&other) noexcept
    {
        task gone(std::move(*this));
        coroutine_ = std::exchange(other.coroutine_, {});
        return *this;
    }
    ~task()
    {
        if (coroutine_)
            coroutine_.destroy();
    }

    /* Runs the task, and returns its result or throws its exception. Await a task once. */
    auto operator co_await() && noexcept
    {
        struct awaiter {
            std::coroutine_handle<promise_type> coroutine;

            bool await_ready() const noexcept { return false; }
            bool await_suspend(std::coroutine_handle<> waiter) const
            {
                coroutine.resume();
                coroutine.promise().continuation = waiter;
                return !coroutine.done();
            }
            T await_resume() const { return coroutine.promise().take(); }
        };
        return awaiter{coroutine_};
    }

private:
    friend promise_type;
    explicit task(std::coroutine_handle<promise_type> coroutine) noexcept : coroutine_(coroutine) {}

    std::coroutine_handle<promise_type> coroutine_;
};

template <class T> task<T> detail::promise<T>::get_return_object() noexcept
{
    return task<T>(std::coroutine_handle<promise>::from_promise(*this));
}

inline task<void> detail::promise<void>::get_return_object() noexcept
{
    return task<void>(std::coroutine_handle<promise>::from_promise(*this));
}

} // namespace megapipe

#endif
