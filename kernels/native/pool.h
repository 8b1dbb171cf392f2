// Threads that help, and are never waited for unless they do.
//
// OpenMP ends each loop at a barrier of all its threads: where another program has one of their cores, every call waits
// for that core. A decode step of 1 ms took 290 that way, and 12 this way (medians; 2 threads on 2 cores at a load of
// 12). Here who calls takes tasks like the others, and goes on when all are done; a thread that has not come by then is
// not missed. So nothing hangs in a forked child either.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

class Pool {
  public:
    static Pool& instance() {
        static Pool* pool = new Pool;  // never destroyed: its threads may sleep in it when the process ends
        return *pool;
    }

    // task(i) for each i < n_tasks, by the caller and up to n_threads - 1 others
    template <class F>
    void run(int64_t n_tasks, int n_threads, const F& task) {
        std::unique_lock<std::mutex> mine(one_at_a_time, std::defer_lock);
        if (n_threads < 2 || n_tasks < 2 || !mine.try_lock()) {
            for (int64_t i = 0; i < n_tasks; i++) task(i);
            return;
        }
        hire(n_threads - 1);
        call = [](const void* f, int64_t i) { (*static_cast<const F*>(f))(i); };
        what = &task;
        n = n_tasks;
        next.store(0, std::memory_order_relaxed);
        const uint64_t limit = n_threads - 1 < n_tasks - 1 ? n_threads - 1 : n_tasks - 1;
        state.store(((state.load() >> 32) + 1) << 32 | limit << 16);  // nobody is in: the low bits were 0
        if (n_asleep.load() > 0) {
            { std::lock_guard<std::mutex> hold(sleep); }
            wake.notify_all();
        }
        work();
        state.fetch_add(uint64_t(1) << 32);
        for (int spins = 0; state.load(std::memory_order_acquire) & IN; spins++) pause(spins);
    }

  private:
    // state: generation (odd: a job is open), 32 bits; threads it may take, 16; threads that are in it, 16
    static constexpr uint64_t IN = 0xFFFF;
    static constexpr int SPINS = 2000;  // tens of microseconds: from one op of a step to the next

    std::mutex one_at_a_time, sleep;
    std::condition_variable wake;
    std::atomic<uint64_t> state{0};
    std::atomic<int64_t> next{0};
    std::atomic<int> n_asleep{0};
    void (*call)(const void*, int64_t) = nullptr;
    const void* what = nullptr;
    int64_t n = 0;
    int n_hired = 0;

    static void pause(int spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (spins > SPINS) std::this_thread::yield();
    }

    void hire(int wanted) {
        try {
            for (; n_hired < wanted; n_hired++) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {  // no more threads for this process: those that are there will do
        }
    }

    void work() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) call(what, i);
    }

    void serve() {
        for (uint64_t seen = 0;;) {
            uint64_t now = await(seen);
            seen = now >> 32;
            while (now >> 32 == seen && (now & IN) < (now >> 16 & IN))
                if (state.compare_exchange_weak(now, now + 1)) {
                    work();
                    state.fetch_sub(1, std::memory_order_release);
                    break;
                }
        }
    }

    uint64_t await(uint64_t seen) {
        uint64_t now = 0;
        auto is_open = [&] { return now = state.load(), (now >> 32 & 1) && now >> 32 != seen; };
        for (int spins = 0; spins < SPINS; spins++) {
            if (is_open()) return now;
            pause(0);
        }
        std::unique_lock<std::mutex> hold(sleep);
        n_asleep++;
        wake.wait(hold, is_open);
        n_asleep--;
        return now;
    }
};

}  // namespace
