// Attention over work items (see attention/plan.py), directly on the pages.
//
// An item's keys are processed in blocks of 64, with an online softmax in base 2. Items with few and with many rows
// have different code (few.h, many.h), unless the processor multiplies bfloat16 in tiles (tiled.h). All sums are
// float32. 8-bit numbers are multiplied without their scales: a key's scale is applied to its score, and a value's
// scale to its weight.
#pragma once

#include "few.h"
#include "items.h"
#include "many.h"
#include "thread_pool.h"
#include "tiled.h"

namespace {

template <class T>
void merge(const Call& c, const int32_t* m) {
    for (int head = 0; head < c.n_heads; head++) {
        float high = c.sinks ? c.sinks[head] * LOG2E : -INFINITY;
        for (int i = 0; i < m[2]; i++) {
            const float lse = c.lse[int64_t(m[1] + i) * c.n_heads + head];
            high = lse > high ? lse : high;
        }
        float total = c.sinks ? std::exp2(c.sinks[head] * LOG2E - high) : 0.0f;
        alignas(64) float acc[MAX_DIM] = {};
        for (int i = 0; i < m[2]; i++) {
            const int64_t from = int64_t(m[1] + i) * c.n_heads + head;
            const float w = std::exp2(c.lse[from] - high);
            total += w;
            for (int d = 0; d < c.v_dim; d += W) store(acc + d, load(acc + d) + load(c.part + from * c.v_dim + d) * w);
        }
        T* to = static_cast<T*>(c.out) + m[0] * c.s_out + head * c.v_dim;
        for (int d = 0; d < c.v_dim; d += W) store(to + d, load(acc + d) * (1.0f / total));
    }
}

thread_local Scratch scratch;

inline Scratch& own_scratch() {
    Scratch* own = &scratch;
    asm("" : "+r"(own));  // else compilers compute the thread-local address again inside loops
    return *own;
}

template <class T, class P>
void run(const Call& c) {
    // a small item is one task for all heads, a large one is a task per KV head
    const int n_of_large = c.n_large * c.n_kv_heads, group = c.n_heads / c.n_kv_heads;
    const auto each = [&](const auto& of_small, const auto& of_large) {
        ThreadPool::instance().run(c.n_small + n_of_large, c.n_threads, [&](int64_t i) {
            if (i >= n_of_large) of_small(c.small[i - n_of_large], own_scratch());
            else of_large(c.large[i / c.n_kv_heads], i % c.n_kv_heads, own_scratch());
        });
    };
    const auto by_vectors = [&](auto pair) {
        constexpr bool paired = sizeof(pair) == 2;
        each([&](const Item& item, Scratch& own) { attend_few<T, P, paired>(c, item, 0, c.n_kv_heads, own); },
             [&](const Item& item, int head, Scratch& own) {
                 const bool has_few = item.n * group < MANY<decltype(pair)> || (c.is_exact && paired);
                 if (has_few) attend_few<T, P, paired>(c, item, head, head + 1, own);
                 else attend_many<decltype(pair), T, P>(c, item, head, own);
             });
    };
    // pairs of bfloat16 are multiplied directly, everything else as float
    if constexpr (can_pair<T, P>) {
        if (c.dim % (2 * W) || c.v_dim % (2 * W)) by_vectors(float{});
#ifdef BANYAN_TILES
        else if (has_tiles() && c.v_dim == c.dim)
            each([&](const Item& item, Scratch& own) { attend_tiled(c, item, 0, c.n_kv_heads, own); },
                 [&](const Item& item, int head, Scratch& own) {
                     if (item.n * group < MANY_TILED) attend_tiled(c, item, head, head + 1, own);
                     else attend_many_tiled(c, item, head, own);
                 });
#endif
        else by_vectors(bf16{});
    } else by_vectors(float{});
    ThreadPool::instance().run(c.n_merges, c.n_threads, [&](int64_t i) { merge<T>(c, c.merges + i * 4); });
}

}  // namespace
