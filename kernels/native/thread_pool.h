// A thread pool that never waits for an idle thread.
//
// OpenMP ends each loop with a barrier of all threads: if another program occupies a core, every call waits for that
// core. A decode step of 1 ms took 290 ms that way, and takes 12 ms this way (medians; 2 threads on 2 cores at a load
// of 12). Here the caller takes tasks like the other threads and returns when all tasks are done; it does not wait for
// threads that took none. A forked child has no other threads, and gets its own pool: in the old one a thread may
// have held the mutex, or been about to leave the condition variable, when the process forked.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <system_error>
#include <thread>

// Not in an unnamed namespace like everything else here: the two sources of the library share one pool.
class __attribute__((visibility("hidden"))) ThreadPool {
  public:
    static ThreadPool& instance() {
        static const int renewed = pthread_atfork(nullptr, nullptr, [] { current() = new ThreadPool; });
        (void)renewed;
        return *current();
    }

    // Calls task(i) for each i < n_tasks, in the caller and up to n_threads - 1 other threads.
    template <class F>
    void run(int64_t n_tasks, int n_threads, const F& task) {
        std::unique_lock<std::mutex> mine(one_at_a_time, std::defer_lock);
        if (n_threads < 2 || n_tasks < 2 || !mine.try_lock()) {
            for (int64_t i = 0; i < n_tasks; i++) task(i);
            return;
        }
        add_threads(n_threads - 1);
        call = [](const void* f, int64_t i) { (*static_cast<const F*>(f))(i); };
        what = &task;
        n = n_tasks;
        next.store(0, std::memory_order_relaxed);
        const uint64_t limit = n_threads - 1 < n_tasks - 1 ? n_threads - 1 : n_tasks - 1;
        state.store(((state.load() >> 32) + 1) << 32 | limit << 16);  // no thread is in the job: the low bits were 0
        if (n_asleep.load() > 0) {
            { std::lock_guard<std::mutex> hold(sleep); }
            wake.notify_all();
        }
        work();
        state.fetch_add(uint64_t(1) << 32);
        for (int spins = 0; state.load(std::memory_order_acquire) & IN; spins++) pause(spins);
    }

  private:
    // state: generation (odd: a job is open), 32 bits; threads that may join, 16 bits; threads that joined, 16 bits
    static constexpr uint64_t IN = 0xFFFF;
    static constexpr int SPINS = 2000;  // tens of microseconds: the time between two ops of a step

    static ThreadPool*& current() {
        static ThreadPool* pool = new ThreadPool;  // never destroyed: its threads may sleep in it at exit
        return pool;
    }

    std::mutex one_at_a_time, sleep;
    std::condition_variable wake;
    std::atomic<uint64_t> state{0};
    std::atomic<int64_t> next{0};
    std::atomic<int> n_asleep{0};
    void (*call)(const void*, int64_t) = nullptr;
    const void* what = nullptr;
    int64_t n = 0;
    int n_added = 0;

    static void pause(int spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (spins > SPINS) std::this_thread::yield();
    }

    void add_threads(int wanted) {
        try {
            for (; n_added < wanted; n_added++) std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {  // no more threads for this process: continue with those that exist
        }
    }

    void work() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) call(what, i);
    }

    void serve() {
        for (uint64_t last = 0;;) {
            uint64_t now = wait_for_job(last);
            last = now >> 32;
            while (now >> 32 == last && (now & IN) < (now >> 16 & IN))
                if (state.compare_exchange_weak(now, now + 1)) {
                    work();
                    state.fetch_sub(1, std::memory_order_release);
                    break;
                }
        }
    }

    uint64_t wait_for_job(uint64_t last) {
        uint64_t now = 0;
        auto is_open = [&] { return now = state.load(), (now >> 32 & 1) && now >> 32 != last; };
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

namespace {

constexpr int RANGES = 2;  // per thread: with one range each, all would wait for the whole share of a busy core

// Calls f(from, to, block) for ranges of n panels of weights, and each of n_blocks blocks of rows. A thread has
// adjacent panels, so that the processor's prefetcher and ours fetch what the same thread needs next.
template <class F>
void each_range(int64_t n, int64_t n_blocks, int n_threads, const F& f) {
    const int64_t n_ranges = std::min<int64_t>(n, n_threads < 2 ? 1 : RANGES * n_threads);
    ThreadPool::instance().run(n_ranges * n_blocks, n_threads, [&](int64_t task) {
        const int64_t i = task / n_blocks;
        f(i * n / n_ranges, (i + 1) * n / n_ranges, task % n_blocks);
    });
}

}  // namespace
