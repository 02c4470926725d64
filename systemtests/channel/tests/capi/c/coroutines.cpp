// Tests megapipe.hpp. A task may be destroyed, or its request interrupted, at each co_await: the
// kernel no longer uses its memory then, no descriptor, buffer or connection is lost, and the
// handle still works. Run by tests/programs/coroutines.rs.
#include "coroutines.hpp"

namespace tests {

static task<> receive(socket &from, std::string &text)
{
    if (auto message = co_await from.receive())
        text += message.text();
}

static task<> write(socket &to, std::string_view text)
{
    co_await to.write(text);
}

static task<> read(socket &from, std::span<std::byte> room, std::size_t &size)
{
    size = co_await from.read(room);
}

static task<> forward(socket &from, socket &to)
{
    auto message = co_await from.receive();
    co_await to.write(std::move(message));
}

static task<> connect(channel &channel, megapipe::address to)
{
    socket peer(channel);
    co_await peer.connect(to).within(10ms);
}

static task<> accept(megapipe::listener &listener, int &count)
{
    const auto peer = co_await listener.accept();
    count += peer.peer().port() > 0;
}

static task<> cancel_after(channel &channel, megapipe::task_id id, int turns)
{
    while (turns-- > 0)
        co_await channel.sleep(0s);
    channel.cancel(id);
}

static task<> write_and_cancel(socket &to, std::string_view text, channel &channel,
                               megapipe::task_id id)
{
    co_await to.write(text);
    channel.cancel(id);
}

static void a_destroyed_receive_loses_no_bytes(channel &channel)
{
    ends ends(channel);
    std::string text, sent;

    drop(channel, receive(ends.left, text));
    // Its task is destroyed before, while and after the bytes arrive; in the last round when they
    // have arrived and the task was not resumed yet.
    for (int turns = 0; turns < 6; turns++) {
        const auto id = channel.spawn(receive(ends.left, text));
        if (turns < 5) {
            channel.spawn(write(ends.right, "hello"));
            finish(channel, cancel_after(channel, id, turns));
        } else {
            turn(channel);
            finish(channel, write_and_cancel(ends.right, "hello", channel, id));
        }
        sent += "hello";
        while (text.size() < sent.size())
            finish(channel, receive(ends.left, text));
        CHECK(text == sent);
    }
}

static void kept_bytes_are_read_first(channel &channel)
{
    ends ends(channel);
    std::string text;
    std::byte room[3];
    std::size_t size = 0;

    const auto id = channel.spawn(receive(ends.left, text));
    finish(channel, write(ends.right, "hello"));
    turn(channel);
    channel.cancel(id);
    turn(channel);
    finish(channel, write(ends.right, "!"));
    for (std::size_t found = text.size(); found < 6; found += size) {
        finish(channel, read(ends.left, room, size));
        CHECK(size > 0);
        text.append(reinterpret_cast<char *>(room), size);
    }
    CHECK(text == "hello!");
}

static void a_destroyed_read_no_longer_writes_to_its_memory(channel &channel)
{
    ends ends(channel);
    std::vector<std::byte> room(65536);
    std::string text;
    std::size_t size = 0;

    drop(channel, read(ends.left, room, size));
    std::fill(room.begin(), room.end(), std::byte{1});
    finish(channel, write(ends.right, "hello"));
    turn(channel);
    CHECK(std::all_of(room.begin(), room.end(), [](auto byte) { return byte == std::byte{1}; }));
    finish(channel, receive(ends.left, text));
    CHECK(text == "hello");
}

// A peer that reads only after the task was destroyed gets none of the bytes of that time, and a
// reset in place of an end, because it lacks a part of the message.
static void a_destroyed_write_no_longer_reads_its_memory(channel &channel)
{
    megapipe::listener listener(channel, {"127.0.0.1", 0});
    const megapipe::address to = listener.local();
    const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), room = 4096;
    CHECK(setsockopt(client, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    CHECK(::connect(client, to.data(), to.size()) == 0);
    {
        socket peer(channel);
        finish(channel, [](auto &listener, auto &peer) -> task<> {
            peer = co_await listener.accept();
        }(listener, peer));
        std::string bytes(big, 'a');
        drop(channel, write(peer, bytes));
        std::fill(bytes.begin(), bytes.end(), 'b');
    }
    channel.run();
    std::vector<char> found(big);
    std::size_t size = 0;
    ssize_t count;
    while ((count = ::read(client, &found[size], big - size)) > 0)
        size += static_cast<std::size_t>(count);
    CHECK(count < 0 && errno == ECONNRESET && size < big);
    CHECK(std::all_of(&found[0], &found[size], [](char byte) { return byte == 'a'; }));
    close(client);
}

// The channel has two buffers of each class: without those that were lost a receive would wait.
static void a_destroyed_write_returns_its_buffer(channel &channel)
{
    for (int round = 0; round < 6; round++) {
        ends source(channel), full(channel);
        const std::string bytes(big, 'a');
        drop(channel, write(full.left, bytes));
        finish(channel, write(source.right, "hello"));
        drop(channel, forward(source.left, full.left));
    }
}

static void a_destroyed_accept_loses_no_connection(channel &channel)
{
    megapipe::listener listener(channel, {"127.0.0.1", 0});
    int count = 0;

    drop(channel, accept(listener, count));
    for (int turns = 0; turns < 6; turns++) {
        const int before = count;
        const auto id = channel.spawn(accept(listener, count));
        channel.spawn(cancel_after(channel, id, turns));
        finish(channel, connect(channel, listener.local()));
        if (count == before)
            finish(channel, accept(listener, count));
        CHECK(count == before + 1);
    }
    finish(channel, connect(channel, listener.local())); // accepted ahead, and never taken
}

// The accept queue of the listener is full, so the kernel does not answer.
static void a_connect_may_be_destroyed_or_take_too_long(channel &channel)
{
    const megapipe::address any("127.0.0.1", 0);
    const int full = mp_listen(any.data(), any.size(), 1);
    const auto to = megapipe::detail::bound_to(full);
    std::vector<socket> others;

    for (int count = 0; count < 4; count++)
        others.emplace_back(channel);
    for (auto &other : others)
        channel.spawn([](auto &other, auto to) -> task<> {
            try {
                co_await other.connect(to);
            } catch (const std::system_error &error) {
                CHECK(error.code() == std::errc::operation_canceled);
            }
        }(other, to));
    turn(channel);
    drop(channel, [](auto &channel, auto to) -> task<> {
        socket peer(channel);
        co_await peer.connect(to);
    }(channel, to));
    CHECK(error_of(channel, [](auto &channel, auto to, auto others) -> task<> {
              try {
                  co_await connect(channel, to);
              } catch (...) {
                  for (auto &other : others)
                      other.abort();
                  throw;
              }
          }(channel, to, std::span(others))) == std::errc::timed_out);
    channel.run();
    close(full);
}

static void sleeps_ticks_and_closes_may_be_destroyed(channel &channel)
{
    ends ends(channel);
    megapipe::timer timer(channel);
    const std::string bytes(big, 'a');
    std::uint64_t count = 0;
    const auto tick = [](auto &timer, auto &count) -> task<> { count += co_await timer.tick(); };

    drop(channel, [](auto &channel) -> task<> { co_await channel.sleep(1h); }(channel));
    drop(channel, tick(timer, count));
    timer.set(1ms);
    finish(channel, tick(timer, count));
    CHECK(count == 1);
    const auto writer = channel.spawn(write(ends.left, bytes));
    turn(channel);
    drop(channel, [](auto &left) -> task<> { co_await left.close(); }(ends.left));
    CHECK(bool(ends.left)); // until its output is written
    channel.cancel(writer); // which resets it
    channel.run();
    CHECK(!ends.left);
}

// An echo over TCP, with a timer, and an end; destroyed after each number of turns.
static task<> echo(channel &channel, megapipe::listener &listener)
{
    auto peer = co_await listener.accept();
    std::byte room[100];
    while (const auto size = co_await peer.read(room)) {
        co_await channel.sleep(0s);
        co_await peer.write(std::span<const std::byte>(room, size));
    }
    co_await peer.shutdown(SHUT_WR);
}

static task<> talk(channel &channel, megapipe::address to)
{
    socket peer(channel);
    co_await peer.connect(to);
    for (int count = 0; count < 3; count++) {
        co_await peer.write("hello").within(1h);
        const auto message = co_await peer.receive();
        if (!message)
            co_return; // the other task was destroyed
        CHECK(message.text() == "hello");
    }
    co_await peer.shutdown(SHUT_WR);
    CHECK(!co_await peer.receive());
    co_await peer.close();
}

static void tasks_may_be_destroyed_after_each_turn(const mp_options &options)
{
    const auto ignore = [](task<> work) -> task<> {
        try {
            co_await std::move(work); // the other end may have been reset
        } catch (const std::system_error &) {
        }
    };
    int completed = 0;
    for (int turns = 0; turns < 60; turns++)
        for (int which = 0; which < 3; which++) {
            channel channel(options);
            megapipe::listener listener(channel, {"127.0.0.1", 0});
            bool ended[2] = {};
            const megapipe::task_id ids[] = {
                channel.spawn(ignore(watch(echo(channel, listener), ended[0]))),
                channel.spawn(ignore(watch(talk(channel, listener.local()), ended[1]))),
            };
            turn(channel, turns);
            completed += ended[0] && ended[1];
            if (which < 2) { // else the channel ends with both of its tasks
                channel.cancel(ids[which]);
                turn(channel, 3);
            }
        }
    CHECK(living == 0 && completed > 0);
}

static void requests_are_limited(channel &channel)
{
    ends ends(channel);
    std::string text;
    std::stop_source stop;

    CHECK(error_of(channel, [](auto &left) -> task<> {
              co_await left.receive().within(1ms);
          }(ends.left)) == std::errc::timed_out);
    channel.spawn([](auto &channel, auto stop) -> task<> {
        co_await channel.sleep(0s);
        stop.request_stop();
    }(channel, stop));
    const auto until = [](auto &left, auto stop) -> task<> {
        co_await left.receive().until(stop);
    };
    for (int round = 0; round < 2; round++) // the second time it was stopped before
        CHECK(error_of(channel, until(ends.left, stop.get_token()))
              == std::errc::operation_canceled);
    CHECK(error_of(channel, [](auto &channel, auto stop) -> task<> {
              co_await channel.sleep(1h).until(stop);
          }(channel, stop.get_token())) == std::errc::operation_canceled);
    finish(channel, write(ends.right, "hello"));
    finish(channel, receive(ends.left, text));
    CHECK(text == "hello");
    CHECK(error_of(channel, [](auto &right) -> task<> {
              co_await right.write(std::string(big, 'a')).within(1ms);
          }(ends.right)) == std::errc::timed_out);
}

static void misuse_is_an_error(channel &channel)
{
    ends ends(channel);
    std::string text;
    socket unconnected(channel);

    const auto waiting = channel.spawn(receive(ends.left, text));
    CHECK(error_of(channel, receive(ends.left, text)) == std::errc::device_or_resource_busy);
    channel.cancel(waiting);
    CHECK(error_of(channel, receive(unconnected, text)) == std::errc::bad_file_descriptor);
    const socket moved(std::move(unconnected));
    CHECK(error_of(channel, receive(unconnected, text)) == std::errc::bad_file_descriptor);
    ends.left.abort();
    CHECK(error_of(channel, receive(ends.left, text)) == std::errc::bad_file_descriptor);
}

static task<std::string> named(int number)
{
    if (number < 0)
        throw std::out_of_range("negative");
    co_return std::to_string(number);
}

static void results_and_exceptions_pass_through_tasks(channel &channel)
{
    finish(channel, []() -> task<> {
        CHECK(co_await named(7) == "7");
        try {
            co_await named(-1);
            CHECK(false);
        } catch (const std::out_of_range &) {
        }
    }());
    finish(channel, []() -> task<> { // which needs no stack for each
        for (int count = 0; count < 100000; count++)
            CHECK((co_await named(count)).size() < 7);
    }());
    // Each that leaves a task leaves run(), which goes on when it is called again.
    for (int count = 0; count < 2; count++)
        channel.spawn([]() -> task<> { co_await named(-1); }());
    int thrown = 0;
    for (int count = 0; count < 3; count++)
        try {
            channel.run();
        } catch (const std::out_of_range &) {
            thrown += 1;
        }
    CHECK(thrown == 2);
}

// run() waits until a closed socket has written its output.
static void a_close_writes_all_output(channel &channel)
{
    ends ends(channel);
    std::size_t found = 0;

    channel.spawn([](socket right) -> task<> {
        co_await right.write(std::string(big, 'a'));
    }(std::move(ends.right)));
    finish(channel, [](auto &left, auto &found) -> task<> {
        while (const auto message = co_await left.receive())
            found += message.size();
    }(ends.left, found));
    CHECK(found == big);
}

static void all()
{
    const int before = open_files();
    mp_options options{};
    options.small_buffers = options.large_buffers = 2;
    for (const auto test : {
             a_destroyed_receive_loses_no_bytes,
             kept_bytes_are_read_first,
             a_destroyed_read_no_longer_writes_to_its_memory,
             a_destroyed_write_no_longer_reads_its_memory,
             a_destroyed_write_returns_its_buffer,
             a_destroyed_accept_loses_no_connection,
             a_connect_may_be_destroyed_or_take_too_long,
             sleeps_ticks_and_closes_may_be_destroyed,
             requests_are_limited,
             misuse_is_an_error,
             results_and_exceptions_pass_through_tasks,
             a_close_writes_all_output,
         }) {
        channel channel(options);
        test(channel);
    }
    tasks_may_be_destroyed_after_each_turn(options);
    CHECK(living == 0 && open_files() == before);
    std::puts("all is well");
}

} // namespace tests

int main()
{
    tests::all();
}
