// The data of attention: calls, the items of a plan, a thread's scratch memory, and the keys of a block.
#pragma once

#include <type_traits>

#include "linear.h"
#include "thread_pool.h"
#include "vector.h"

namespace {

constexpr int BLOCK = 64;      // keys
constexpr int STREAMS = 8;     // streams of keys, and as many of values, that are read in turns
constexpr int MAX_ROWS = 256;  // per task: tokens times query heads
constexpr int MAX_DIM = 576;  // DeepSeek's latent of 512 numbers, and 64 that are rotated

struct Item {  // see AttentionPlan in plan.py
    int32_t first, n, request, start, end, position, tail, reads_first;
};

struct Call {  // one call of attention; pointers to elements of one type
    const void *q, *first_q, *k, *v;  // first_q: as q, for the first keys of texts; or null
    void* out;
    const float* sinks;      // [n_heads] or null
    const int32_t* table;    // [n_requests, s_table]
    const int32_t *rows, *merges;  // see AttentionPlan in plan.py
    const Item *small, *large;
    const int32_t* position; // [n_rows], position of each row in its text; for windows
    const uint64_t* ancestors;  // [n_rows], bit b: the row attends to key kv_len - 64 + b; or null
    const int64_t* slots;    // where the rows' keys and values are written; for layers.h
    float *part, *lse;       // [n_partials, n_heads, v_dim], [n_partials, n_heads]
    const float *k_scale, *v_scale;  // [pages, page, n_kv_heads], of 8-bit pools; of values in 4 bits see vector.h
    int64_t s_q, s_out, s_page, s_slot;
    int32_t s_table, n_heads, n_kv_heads, dim, v_dim, page, window, is_exact;  // is_exact: results must not depend on the
                             // number of rows. v_dim < dim: values are the first v_dim numbers of keys, and v is k
    int32_t n_small, n_large, n_merges, n_threads;
    float scale, softcap;    // scale in base 2
};

// A row of q, or of first_q if the item reads that.
template <class T>
inline const T* query(const Call& c, const Item& item, int row) {
    return static_cast<const T*>(item.reads_first ? c.first_q : c.q) + row * c.s_q;
}
// The oldest key that the row attends to.
inline int oldest_key(const Call& c, const Item& item, int row) {
    return c.window && !item.reads_first ? c.position[row] - c.window + 1 : 0;
}

struct alignas(64) Scratch {
    float q[MAX_ROWS * MAX_DIM], weight[MAX_ROWS * BLOCK];  // weight: first scores, then weights
    float acc[2 * MAX_ROWS * MAX_DIM];  // tiled.h fills each head's rows up to whole tiles
    bf16 q_half[2 * MAX_ROWS * MAX_DIM], v_pairs[BLOCK * MAX_DIM];
    float k[MAX_DIM * BLOCK], v[BLOCK * MAX_DIM];  // of a block, transposed or widened
    float k_scale[BLOCK], v_scale[BLOCK];
    int64_t place[BLOCK], slot[BLOCK];  // of a block's keys: offset of their numbers, and slot
    vf best[MAX_ROWS / W], total[2 * MAX_ROWS];  // maxima; sums of weights, in W parts per row: lanes are keys, or rows
    float top[2 * MAX_ROWS], shrink[MAX_ROWS];
    const void *k_row[BLOCK], *v_row[BLOCK];
    float last[MAX_ROWS], oldest[MAX_ROWS];  // the last and the first key that a row attends to
    uint64_t ancestors[MAX_ROWS];

    template <class T>
    T* panels() {
        if constexpr (sizeof(T) == 2) return q_half;
        else return q;
    }
};

template <class P>
constexpr bool is_scaled = sizeof(P) == 1;
template <class P>
constexpr bool has_halves = std::is_same_v<P, k8v4>;  // values have 4 bits
template <class T, class P>
constexpr bool can_pair = HAS_PAIRS && sizeof(T) == 2 && sizeof(P) == 2 && PANEL == BLOCK;

// Locates a block's keys. Entries past the end repeat the first key, and are masked later.
inline void locate(const Call& c, const Item& item, int at, int n, Scratch& x) {
    const int32_t* table = c.table + int64_t(item.request) * c.s_table;
    for (int s = 0; s < n;) {
        const int first = (at + s) % c.page;
        const int64_t page = table[(at + s) / c.page];
        for (int i = first; i < c.page && s < n; i++, s++) {
            x.place[s] = page * c.s_page + i * c.s_slot;
            x.slot[s] = page * c.page + i;
        }
    }
    for (int s = n; s < BLOCK; s++) x.place[s] = x.place[0], x.slot[s] = x.slot[0];
}

// Reads one byte of each cache line of a block, for all heads. The products go head by head, in jumps that the
// processor's prefetcher does not predict. Keys of several pages, and values, are read in turns, so that the cache and
// TLB misses at the beginning of pages overlap. If pages are read one after the other, these misses come in sequence: 8
// instead of 20 GB/s for pages in random order (one thread, Zen 4). Prefetch instructions gain less, since the
// processor drops those beyond its queue.
template <class P>
inline void touch_lines(const Call& c, int n, const Scratch& x) {
    constexpr int apart = BLOCK / STREAMS;
    const int n_bytes = c.n_kv_heads * c.dim * sizeof(P);
    const auto touch = [](const void* pool, int64_t at) { (void)*(static_cast<const volatile char*>(pool) + at); };
    for (int first = 0; first < apart; first++)
        for (int i = 0; i < n_bytes; i += 64)
            for (int s = first; s < n; s += apart) {
                touch(c.k, x.place[s] * int64_t(sizeof(P)) + i);
                if (c.v == c.k) continue;
                if (!has_halves<P>) touch(c.v, x.place[s] * int64_t(sizeof(P)) + i);
                else if (i % 128 == 0) touch(c.v, (x.place[s] + i) / 2);
            }
}

// Prefetches the keys and values of the next block for some heads, a few lines with each call, in the order of memory.
// The processor waits for its fill buffers if it is asked for more at a time.
template <class P>
class NextBlock {
    const Call& c;
    const int64_t offset, width;  // numbers
    int64_t place[BLOCK];
    int n = 0, at = 0, n_each = 0;  // keys: of the block, prefetched already, per call

    static void fetch(const void* pool, int64_t first, int64_t n_bytes) {
        const char* from = static_cast<const char*>(pool) + first;
        for (int64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
    }

  public:
    NextBlock(const Call& call, int head, int n_heads)
        : c(call), offset(int64_t(head) * call.dim), width(int64_t(n_heads) * call.dim) {}

    // Makes the keys starting at `key` the next block, to be prefetched in n_calls calls.
    void set(const Item& item, int key, int n_calls) {
        const int32_t* table = c.table + int64_t(item.request) * c.s_table;
        at = 0, n = item.end - key < BLOCK ? item.end - key : BLOCK;
        for (int s = 0; s < n; s++, key++) place[s] = table[key / c.page] * c.s_page + key % c.page * c.s_slot + offset;
        n_each = (n + n_calls - 1) / n_calls;
    }

    void prefetch() {
        const int end = n - at < n_each ? n : at + n_each;
        for (; at < end; at++) {
            fetch(c.k, place[at] * int64_t(sizeof(P)), width * sizeof(P));
            if (c.v == c.k) continue;
            if constexpr (has_halves<P>) fetch(c.v, place[at] / 2, width / 2);
            else fetch(c.v, place[at] * int64_t(sizeof(P)), width * sizeof(P));
        }
    }
};

// Converts the value of key s of a block to float32, for one head. In 4 bits, it is number * scale + minimum per group.
template <class P>
inline void widen_value(const Call& c, const Scratch& x, int s, int head, float* to) {
    const int64_t from = x.place[s] + int64_t(head) * c.dim;
    if constexpr (has_halves<P>) {
        const auto* numbers = static_cast<const uint8_t*>(c.v) + from / 2;
        const int group = group_of(c.dim);
        const bf16* by = reinterpret_cast<const bf16*>(c.v_scale) + (x.slot[s] * c.n_kv_heads + head) * (c.dim / group * 2);
        for (int d = 0; d < c.dim; d += group, by += 2)
            widen_halves(numbers + d / 2, to + d, group, get(by[0]), get(by[1]));
    } else {
        for (int d = 0; d < c.v_dim; d += W) store(to + d, load(static_cast<const P*>(c.v) + from + d));
    }
}

// Transposes rows of `dim` numbers into panels of `width` rows, so that a row is a lane. row(r, d): W floats of row r
// starting at number d; a float may hold a pair. step: the numbers in W floats.
template <int width, int step, class Row>
inline void to_panels(int n, int dim, float* to, const Row& row) {
    for (int r = 0; r < (n + W - 1) / W * W; r += W)
        for (int d = 0; d < dim; d += step) {
            vf square[W];
            for (int i = 0; i < W; i++) square[i] = row(r + i, d);
            transpose<W / 2>(square);
            float* at = to + (r / width * dim + d) * W / step * width + r % width;
            for (int i = 0; i < W; i++) store(at + i * width, square[i]);
        }
}

// Loads the scales of a block's keys and values, for 8-bit pools.
template <class P>
inline void load_scales(const Call& c, int head, Scratch& x) {
    if constexpr (is_scaled<P>)
        for (int s = 0; s < BLOCK; s++) {
            const int64_t slot = x.slot[s] * c.n_kv_heads + head;
            x.k_scale[s] = c.k_scale[slot];
            if constexpr (!has_halves<P>) x.v_scale[s] = c.v_scale[slot];
        }
}

// Applies the softcap to scores in base 2: c.scale includes 2 / softcap, and tanh(x) = 1 - 2 / (exp(2x) + 1).
inline vf capped(const Call& c, vf s) {
    const vf low = s > 60.0f ? vf{} + 60.0f : s;
    return (1.0f - 2.0f / (exp2(low) + 1.0f)) * (c.softcap * LOG2E);
}

// The factor that normalises a row's sum of values. total: the sum of its weights relative to the score `base`. Stores
// the log-sum-exp of a partial result. A final result includes the head's sink.
inline float normalizer(const Call& c, int head, int part, float total, float base) {
    if (part >= 0) {
        c.lse[int64_t(part) * c.n_heads + head] = total > 0 ? base + std::log2(total) : -INFINITY;
        return total > 0 ? 1.0f / total : 0.0f;
    }
    if (!c.sinks) return 1.0f / total;
    const float sink = c.sinks[head] * LOG2E, high = base > sink ? base : sink;
    const float by = std::exp2(base - high);
    return by / (total * by + std::exp2(sink - high));
}

}  // namespace
