/*
 * megapipe/loop.hpp - the event loop of megapipe.hpp, which includes this file at its end
 *
 * collect() delivers completions to members and operations and appends these to the list of ready
 * ones; only resume_ready() runs tasks. So no event in hand is of a member that a task has freed,
 * and the destructor of an operation may collect, too.
 */
#ifndef MEGAPIPE_LOOP_HPP
#define MEGAPIPE_LOOP_HPP

#include <megapipe.hpp>

namespace megapipe {

namespace detail {

/* The coroutine around a spawned task. */
struct root_promise {
    struct root {
        using promise_type = root_promise;
        root_promise *promise;
    };
    struct last_suspension {
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<root_promise> root) const noexcept
        {
            root.promise().end();
        }
        void await_resume() const noexcept {}
    };

    root_promise(channel &channel, task<> &) noexcept : home(&channel) {}
    root get_return_object() noexcept { return {this}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    last_suspension final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { thrown = std::current_exception(); }

    std::coroutine_handle<root_promise> coroutine() noexcept
    {
        return std::coroutine_handle<root_promise>::from_promise(*this);
    }
    void end() noexcept
    {
        if (std::exchange(ends, true))
            return;
        next_ended = home->ended_;
        home->ended_ = this;
    }

    channel *home;
    task_id id = 0;
    bool ends = false;
    root_promise *next_ended = nullptr;
    std::exception_ptr thrown;
};

inline root_promise::root run_root(channel &, task<> work)
{
    co_await std::move(work);
}

inline member::member(channel &channel) noexcept : home(&channel), next(channel.members_)
{
    if (next)
        next->previous = this;
    channel.members_ = this;
}

inline member::~member()
{
    if (next)
        next->previous = previous;
    if (previous)
        previous->next = next;
    else if (home)
        home->members_ = next;
}

inline int member::leave() noexcept
{
    closing = true;
    home->closing_ += 1;
    if ((broken ? mp_abort(handle) : mp_close(handle)) == 0)
        return 0;
    const int error = errno;
    closed(error);
    errno = error;
    return -1;
}

inline void member::disown() noexcept
{
    owned = false;
    received = lease();
    while (accepted)
        pop_accepted()->disown();
    if (handle == MP_NONE)
        delete this;
    else if (!closing)
        leave();
}

inline void member::closed(int error) noexcept
{
    home->closing_ -= closing;
    closing = broken = false;
    handle = MP_NONE;
    for (auto &waiter : waiting)
        if (operation *ended = std::exchange(waiter, nullptr)) {
            ended->subject_ = nullptr;
            ended->registered_ = false;
            ended->complete(ended->lane_ == end ? error : ECANCELED);
        }
    if (!owned)
        delete this;
}

inline void member::complete(lane direction, int error) noexcept
{
    if (waiting[direction])
        waiting[direction]->complete(error);
}

inline void member::push_accepted(member *peer) noexcept
{
    (accepted ? last_accepted->next_accepted : accepted) = peer;
    last_accepted = peer;
}

inline member *member::pop_accepted() noexcept
{
    member *first = std::exchange(accepted, accepted->next_accepted);
    first->next_accepted = nullptr;
    return first;
}

inline operation::~operation()
{
    if (stage_ == stage::pending && uses_ != use::nothing)
        withdraw();
    if (stage_ == stage::ready) {
        home_->remove(*this);
        if (buffer_ && registered_ && subject_->owned)
            subject_->received = std::move(buffer_);
    }
    detach();
}

/* Fails if there is no handle, or another request of the direction is awaited. */
inline void operation::check(bool registered) const
{
    if (!subject_ || !subject_->home || subject_->closing
        || (registered && subject_->handle == MP_NONE))
        throw std::system_error(EBADF, std::system_category(),
                                std::string(name_) + ": the handle is closed or not connected");
    if (subject_->waiting[lane_])
        throw std::system_error(EBUSY, std::system_category(),
                                std::string(name_) + ": another request of the handle is awaited");
}

/* The request was submitted. */
inline void operation::begin(std::coroutine_handle<> waiter)
{
    waiter_ = waiter;
    stage_ = stage::pending;
    if (subject_) {
        home_ = subject_->home;
        subject_->waiting[lane_] = this;
        registered_ = true;
    }
    if (deadline_ != clock::time_point::max())
        alarm_ = home_->alarms_.emplace(deadline_, this);
#ifdef __cpp_lib_jthread
    if (stop_.stop_possible())
        on_stop_.emplace(std::move(stop_), stopper{this});
#endif
}

inline void operation::detach() noexcept
{
    stage_ = stage::idle;
    if (alarm_)
        home_->alarms_.erase(*std::exchange(alarm_, std::nullopt));
#ifdef __cpp_lib_jthread
    on_stop_.reset();
#endif
    if (std::exchange(registered_, false))
        subject_->waiting[lane_] = nullptr;
}

/* The task goes on: ends the request, and throws its error. */
inline void operation::finish()
{
    detach();
    if (error_)
        throw std::system_error(error_, std::system_category(), name_);
}

inline void operation::complete(int error) noexcept
{
    if (stage_ != stage::pending)
        return;
    error_ = error == ECANCELED && verdict_ ? verdict_ : error;
    stage_ = stage::ready;
    home_->append(*this);
}

/* Ends the request early, with this error unless its result has come first. */
inline void operation::interrupt(int error) noexcept
{
    if (stage_ != stage::pending)
        return;
    verdict_ = error;
    if (uses_ == use::nothing)
        complete(error);
    else if (!subject_->closing)
        mp_cancel(subject_->handle, lane_ == in ? MP_IN : MP_OUT);
}

/* Cancels the request and waits for its last completion. */
inline void operation::withdraw() noexcept
{
    const bool is_closing = subject_->closing;
    if (is_closing && uses_ == use::request)
        return; /* no event follows but MP_CLOSE, and no memory is used */
    if (is_closing) {
        mp_abort(subject_->handle);
    } else if (mp_cancel(subject_->handle, lane_ == in ? MP_IN : MP_OUT) < 0) {
        subject_->broken = true;
        subject_->leave();
    }
    while (stage_ == stage::pending)
        if (home_->collect(-1) < 0)
            std::terminate(); /* a defect of the library; the memory cannot be freed */
}

inline int connect_request::submit() noexcept
{
    if (subject_->handle != MP_NONE)
        return mp_connect(subject_->handle, to_.data(), to_.size());
    mp_channel *home = subject_->home->native();
    subject_->handle = mp_connect_to(home, to_.data(), to_.size(), subject_);
    return subject_->handle == MP_NONE ? -1 : 0;
}

inline owner::owner(channel &home, int descriptor, bool takes, const cpu_set_t *cpus)
    : member_(new member(home))
{
    member_->handle = mp_register(home.native(), descriptor, member_, cpus);
    if (member_->handle != MP_NONE)
        return;
    const auto error = failure();
    delete member_;
    if (takes)
        ::close(descriptor);
    throw error;
}

} // namespace detail

inline timer::timer(channel &home) : owner(new detail::member(home))
{
    member_->handle = mp_timer(home.native(), member_);
    if (member_->handle == MP_NONE) {
        const auto error = detail::failure();
        delete std::exchange(member_, nullptr);
        throw error;
    }
}

inline channel::~channel()
{
    while (!roots_.empty()) {
        auto *root = roots_.extract(roots_.begin()).mapped();
        root->coroutine().destroy();
    }
    for (auto *left = members_; left; left = left->next)
        if (left->handle != MP_NONE && !left->closing)
            left->leave();
    mp_destroy(native_);
    while (members_) {
        auto *left = std::exchange(members_, members_->next);
        left->home = nullptr;
        left->handle = MP_NONE;
        left->next = left->previous = nullptr;
        if (!left->owned)
            delete left;
    }
}

inline task_id channel::spawn(task<> work)
{
    auto *root = detail::run_root(*this, std::move(work)).promise;
    try {
        roots_.emplace(last_id_ + 1, root);
    } catch (...) {
        root->coroutine().destroy();
        throw;
    }
    const task_id id = root->id = ++last_id_;
    root->coroutine().resume();
    return id;
}

inline void channel::cancel(task_id id) noexcept
{
    if (const auto found = roots_.find(id); found != roots_.end())
        found->second->end();
}

inline void channel::run()
{
    struct running {
        bool &flag;
        explicit running(bool &flag) : flag(flag) { flag = true; }
        ~running() { flag = false; }
    };
    if (runs_)
        throw std::logic_error("channel::run() was called by a task of the channel");
    const running guard(runs_);
    stops_ = false;
    for (;;) {
        resume_ready();
        if (stops_ || (roots_.empty() && closing_ == 0))
            return;
        if (collect(timeout_ms()) < 0)
            throw detail::failure();
        expire();
    }
}

/* Resumes what is ready, and destroys what has ended or was cancelled. */
inline void channel::resume_ready()
{
    for (reap(); first_ready_ && !stops_; reap()) {
        detail::operation &next = *first_ready_;
        remove(next);
        next.waiter_.resume();
    }
}

inline void channel::reap()
{
    while (ended_) {
        auto *root = std::exchange(ended_, ended_->next_ended);
        const auto thrown = std::move(root->thrown);
        roots_.erase(root->id);
        root->coroutine().destroy();
        if (thrown)
            std::rethrow_exception(thrown);
    }
}

/* Waits for completions and delivers them, without resuming a task. Returns -1 and errno if the
 * channel fails. */
inline int channel::collect(int timeout_ms) noexcept
{
    mp_event events[64];
    const int count = mp_dispatch_batch(native_, events, 64, timeout_ms);
    for (int at = 0; at < count; at++)
        deliver(events[at]);
    return count;
}

inline void channel::deliver(const mp_event &event) noexcept
{
    auto *subject = static_cast<detail::member *>(event.cookie);
    lease bytes(native_, event.buffer, event.data, event.buffer < 0 ? 0 : event.size);
    if (!subject)
        return; /* a connection for which there was no memory */
    if (event.cmd == MP_CLOSE)
        return subject->closed(event.error);
    if (event.cmd == MP_ACCEPT)
        return accepted(*subject, event);
    if (event.cmd == MP_TIMER) {
        subject->expirations += event.count;
        return subject->complete(detail::in, event.error);
    }
    const bool is_input = event.cmd == MP_READ || event.cmd == MP_RECV;
    auto *waiter = subject->waiting[is_input ? detail::in : detail::out];
    if (!waiter)
        return;
    int error = event.error;
    if (event.cmd == MP_WRITE && !error && event.size < waiter->size_) {
        subject->broken = true; /* cancelled half-way */
        error = ECANCELED;
    } else if (event.cmd == MP_WRITE && error && error != ECANCELED) {
        subject->broken = true;
    }
    waiter->size_ = event.size;
    waiter->buffer_ = std::move(bytes);
    waiter->complete(error);
}

inline void channel::accepted(detail::member &subject, const mp_event &event) noexcept
{
    subject.shortage = event.error;
    if (event.error) {
        if (event.flags & MP_MORE)
            return; /* the channel accepts again by itself */
        subject.ahead = 0;
        return subject.complete(detail::in, event.error);
    }
    subject.ahead -= 1;
    auto *peer = new (std::nothrow) detail::member(*this);
    const mp_handle handle = mp_register(native_, event.fd, peer, nullptr);
    const int error = handle == MP_NONE ? errno : ENOMEM;
    if (peer && handle != MP_NONE) {
        peer->handle = handle;
        subject.push_accepted(peer);
        return subject.complete(detail::in, 0);
    }
    delete peer;
    mp_abort(handle);
    subject.shortage = error;
    subject.complete(detail::in, error);
}

inline void channel::append(detail::operation &ready) noexcept
{
    ready.next_ = nullptr;
    ready.previous_ = last_ready_;
    (last_ready_ ? last_ready_->next_ : first_ready_) = &ready;
    last_ready_ = &ready;
}

inline void channel::remove(detail::operation &ready) noexcept
{
    (ready.previous_ ? ready.previous_->next_ : first_ready_) = ready.next_;
    (ready.next_ ? ready.next_->previous_ : last_ready_) = ready.previous_;
    ready.stage_ = detail::operation::stage::idle;
}

/* Interrupts the requests whose time is up. */
inline void channel::expire() noexcept
{
    const auto now = detail::clock::now();
    while (!alarms_.empty() && alarms_.begin()->first <= now) {
        detail::operation *late = alarms_.extract(alarms_.begin()).mapped();
        late->alarm_.reset();
        late->interrupt(ETIMEDOUT);
    }
}

inline int channel::timeout_ms() const noexcept
{
    using milliseconds = std::chrono::milliseconds;
    if (alarms_.empty())
        return -1;
    const auto left = alarms_.begin()->first - detail::clock::now();
    const auto count = std::chrono::ceil<milliseconds>(left).count();
    return static_cast<int>(std::clamp<milliseconds::rep>(count, 0, INT_MAX));
}

} // namespace megapipe

#endif
