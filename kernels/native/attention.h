// Attention over work items (see attention/plan.py), in place in the pages.
//
// An item's keys are walked in blocks of 64. A block's K is transposed once, and both products, Q K^T and P V, are then
// the same register tile: rows of A, broadcast, times whole vectors of B. Scores live in base 2, with an online softmax.
// bfloat16 is widened as it is read, except where a block is a panel of `linear.h`: there Q K^T multiplies pairs of it,
// and so does P V of items with many rows, whose weights are rounded for it as a GPU's are. Sums are float32 everywhere.
// Of pools in 8 bits the numbers are multiplied as they are: a key's scale goes to its score, a value's to its weight.
#pragma once

#include <type_traits>

#include "linear.h"
#include "pool.h"
#include "vector.h"

namespace {

constexpr int BLOCK = 64;      // keys
constexpr int AHEAD = 16;      // keys, of what is asked for by instruction
constexpr int MAX_ROWS = 256;  // of a task: tokens times query heads
constexpr int MAX_DIM = 256;

struct Call {  // one call of attention; pointers to elements of one type
    const void *q, *k, *v;
    void* out;
    const float* sinks;      // [n_heads] or null
    const int32_t* table;    // [n_requests, s_table]
    const int32_t* rows;     // as plan.py writes them
    const int32_t* position; // [n_rows], of each row in its text; for windows
    const uint64_t* seen;    // [n_rows], which of the last 64 keys of its request a row sees; or null
    float *part, *lse;       // [n_partials, n_heads, dim], [n_partials, n_heads]
    const float *k_scale, *v_scale;  // [pages, page, n_kv_heads], of pools in 8 bits
    int64_t s_q, s_out, s_page, s_slot;
    int32_t s_table, n_heads, n_kv_heads, dim, page, window, is_exact;  // is_exact: all items are computed in one way
    float scale, softcap;    // scale in base 2
};

struct Item {  // as plan.py writes it
    int32_t first, n, request, start, end, position, tail, unused;
};

struct Scratch {
    float q[MAX_ROWS * MAX_DIM], acc[MAX_ROWS * MAX_DIM], weight[MAX_ROWS * BLOCK];
    bf16 q_half[MAX_ROWS * MAX_DIM], weight_half[MAX_ROWS * BLOCK], v_half[BLOCK * MAX_DIM];  // of pairs
    float kt[MAX_DIM * BLOCK], v[BLOCK * MAX_DIM];
    float k_scale[BLOCK], v_scale[BLOCK];
    int64_t place[BLOCK], slot[BLOCK];  // of a block's keys: where their numbers begin, and which of all slots they have
    float top[MAX_ROWS], shrink[MAX_ROWS];
    vf sum[MAX_ROWS];
};

template <class P>
constexpr bool is_scaled = sizeof(P) == 1;
template <class T, class P>
constexpr bool can_pair = sizeof(T) == 2 && sizeof(P) == 2 && PANEL == BLOCK;

// Find a block's keys. What is past the end repeats the first, and is masked.
inline void find(const Call& c, const Item& item, int at, int n, Scratch& x) {
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

// Read a byte of each line of a block, all heads, in the order in which they lie: the products go by head, and the
// processor does not foresee their jumps. Behind a layer's weights, which empty the caches, this halves the time of a
// decode; with all of KV in cache it costs a tenth or two. The first line of a key some way ahead is asked for by
// instruction, and its page table walked meanwhile: 26 GB/s of pages in random order for 19 (one core, Zen 5). To ask so
// for all lines gains nothing: what finds no room in the queue is dropped.
template <class P>
inline void stream(const Call& c, const Item& item, int at, int n, const Scratch& x) {
    const int32_t* table = c.table + int64_t(item.request) * c.s_table;
    const int n_bytes = c.n_kv_heads * c.dim * sizeof(P);
    const auto touch = [&](const void* pool) {
        for (int s = 0; s < n; s++) {
            if (const int key = at + s + AHEAD; key < item.end)
                __builtin_prefetch(static_cast<const P*>(pool) + table[key / c.page] * c.s_page + key % c.page * c.s_slot);
            const auto* from = reinterpret_cast<const volatile char*>(static_cast<const P*>(pool) + x.place[s]);
            for (int i = 0; i < n_bytes; i += 64) (void)from[i];
        }
    };
    touch(c.k);
    touch(c.v);
}

// K of a block is turned to x.kt, of pairs in bfloat16 as they lie; V is widened to x.v, or read where it lies (`raw`).
template <class P, bool paired>
void gather(const Call& c, int n, int head, Scratch& x, const float** v_row, const P** raw) {
    const P* k_row[BLOCK];
    for (int s = 0; s < BLOCK; s++) {
        const int64_t o = x.place[s] + int64_t(head) * c.dim;
        k_row[s] = static_cast<const P*>(c.k) + o;
        const P* from = static_cast<const P*>(c.v) + o;
        if constexpr (is_scaled<P>) {
            const int64_t slot = x.slot[s] * c.n_kv_heads + head;
            x.k_scale[s] = c.k_scale[slot], x.v_scale[s] = c.v_scale[slot];
        }
        if constexpr (sizeof(P) == 4) {
            v_row[s] = from;
        } else if (raw) {
            raw[s] = from;
        } else if (s < n) {
            v_row[s] = x.v + s * c.dim;
            for (int d = 0; d < c.dim; d += W) store(x.v + s * c.dim + d, load(from + d));
        }
    }
    constexpr int step = paired ? 2 * W : W;  // numbers of K in a lane's width times W
    for (int s = 0; s < (n + W - 1) / W * W; s += W)
        for (int d = 0; d < c.dim; d += step) {
            vf square[W];
            for (int i = 0; i < W; i++) {
                if constexpr (paired) square[i] = load(reinterpret_cast<const float*>(k_row[s + i] + d));
                else square[i] = load(k_row[s + i] + d);
            }
            transpose<W / 2>(square);
            for (int i = 0; i < W; i++) store(x.kt + (d * W / step + i) * BLOCK + s, square[i]);
        }
}

typedef uint16_t vp __attribute__((vector_size(W * 4), aligned(2)));

template <int from, int... I>
inline vp zip(vp a, vp b, std::integer_sequence<int, I...>) {  // a[from], b[from], a[from + 1], b[from + 1], ...
    return __builtin_shufflevector(a, b, (from + I / 2 + I % 2 * 2 * W)...);
}

// V of a block as panels of `linear.h`, of pairs of keys; one that is missing repeats the first.
inline void gather_pairs(const Call& c, int n, int head, Scratch& x) {
    const bf16* v = static_cast<const bf16*>(c.v) + int64_t(head) * c.dim;
    for (int s = 0; s < n; s += 2)
        for (int d = 0; d < c.dim; d += 2 * W) {
            vp even, odd;
            std::memcpy(&even, v + x.place[s] + d, sizeof even);
            std::memcpy(&odd, v + x.place[s + 1] + d, sizeof odd);
            bf16* to = x.v_half + (d / PANEL * BLOCK + s) * PANEL + d % PANEL * 2;
            const auto low = zip<0>(even, odd, std::make_integer_sequence<int, 2 * W>());
            const auto high = zip<W>(even, odd, std::make_integer_sequence<int, 2 * W>());
            std::memcpy(to, &low, sizeof low);
            std::memcpy(to + 2 * W, &high, sizeof high);
        }
}

// Scores of one row against n keys from `at` become weights; returns what older sums must be multiplied with.
//
// The row sees the keys up to `last`; from key `tail` on those whose bit is set in `seen`; none before `oldest`.
template <class P, bool paired, class Weight>
inline float weigh(const Call& c, const Scratch& x, float* score, Weight* weight, int at, int n, int last, int oldest,
                   int tail, uint64_t seen, float& best, vf& total) {
    const int n_vectors = (n + W - 1) / W;
    const bool masked = at + n_vectors * W > last + 1 || n % W || at < oldest;
    const bool is_tree = seen != ~uint64_t(0) && at + n > tail;
    vf lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    vf high = vf{} - INFINITY;
    for (int j = 0; j < n_vectors; j++) {
        vf s = load(score + j * W);
        if constexpr (paired) s *= c.scale;
        if constexpr (is_scaled<P>) s *= load(x.k_scale + j * W);
        if (c.softcap > 0) {  // scale holds 2 / softcap: tanh(x) = 1 - 2 / (exp(2x) + 1)
            vf low = s > 60.0f ? vf{} + 60.0f : s;
            s = (1.0f - 2.0f / (exp2(low) + 1.0f)) * (c.softcap * LOG2E);
        }
        if (masked) {
            vf key = lane + float(at + j * W);  // exact below 2^24 tokens
            s = key > float(last) ? vf{} - INFINITY : s;
            s = key >= float(at + n) ? vf{} - INFINITY : s;
            s = key < float(oldest) ? vf{} - INFINITY : s;
        }
        if (is_tree)
            for (int i = 0; i < W; i++) {
                const int bit = at + j * W + i - tail;
                if (bit >= 0 && bit < 64 && !(seen >> bit & 1)) s[i] = -INFINITY;
            }
        store(score + j * W, s);
        high = vmax(high, s);
    }
    float fresh = top(high), old = best;
    best = fresh > old ? fresh : old;
    float base = best == -INFINITY ? 0.0f : best;
    float shrink = old == best ? 1.0f : std::exp2(old - base);
    vf part = vf{};
    for (int j = 0; j < n_vectors; j++) {
        vf w = exp2(load(score + j * W) - base);
        part += w;
        if constexpr (is_scaled<P>) w *= load(x.v_scale + j * W);
        store_normal(weight + j * W, w);
    }
    total = total * shrink + part;
    return shrink;
}

template <class T, class P, bool paired, bool halved>
void attend(const Call& c, const Item& item, int head_from, int head_to, Scratch& x) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group, dim = c.dim;
    const float* kt_row[MAX_DIM];
    const float* v_row[BLOCK];
    const P* raw[BLOCK];
    const bool is_raw = sizeof(P) == 2 && n <= MR;  // then V is passed over once, and need not be widened before
    const bool is_streamed = head_to - head_from == c.n_kv_heads;
    const int32_t* entry = c.rows + int64_t(item.first) * 2;  // (row of q, its partial result) of each row
    for (int d = 0; d < dim; d++) kt_row[d] = x.kt + d * BLOCK;
    const auto o_acc = [&](int r, int d) { return halved ? (d / PANEL * MAX_ROWS + r) * PANEL + d % PANEL : r * dim + d; };

    for (int h = head_from, r = 0; h < head_to; h++)
        for (int i = 0; i < n; i++, r++) {
            const T* from = static_cast<const T*>(c.q) + entry[i / group * 2] * c.s_q + (h * group + i % group) * dim;
            if constexpr (paired) std::memcpy(x.q_half + r * dim, from, dim * sizeof(T));
            else for (int d = 0; d < dim; d += W) store(x.q + r * dim + d, load(from + d) * c.scale);
            for (int d = 0; d < dim; d += W) store(x.acc + o_acc(r, d), vf{});
            x.top[r] = -INFINITY;
            x.sum[r] = vf{};
        }
    for (int at = item.start; at < item.end; at += BLOCK) {
        const int n_keys = item.end - at < BLOCK ? item.end - at : BLOCK;
        find(c, item, at, n_keys, x);
        if (is_streamed) stream<P>(c, item, at, n_keys, x);
        for (int h = head_from, r = 0; h < head_to; h++, r += n) {
            if constexpr (halved) gather_pairs(c, n_keys, h, x);
            gather<P, paired>(c, n_keys, h, x, v_row, is_raw || halved ? raw : nullptr);
            if constexpr (paired)
                blocks(n, x.weight, x.q_half + r * dim, dim, reinterpret_cast<const bf16*>(x.kt), dim, true);
            else product(n, (n_keys + W - 1) / W * W, x.weight, BLOCK, x.q + r * dim, dim, kt_row, dim, nullptr);
            for (int i = 0; i < n; i++) {
                const int row = entry[i / group * 2];
                const int oldest = c.window ? c.position[row] - c.window + 1 : 0;
                const uint64_t seen = c.seen ? c.seen[row] : ~uint64_t(0);
                const auto to = [&](auto* weight) {
                    return weigh<P, paired>(c, x, x.weight + i * BLOCK, weight + i * BLOCK, at, n_keys,
                                            item.position + i / group, oldest, item.tail, seen, x.top[r + i], x.sum[r + i]);
                };
                if constexpr (halved) x.shrink[i] = to(x.weight_half);
                else x.shrink[i] = to(x.weight);
            }
            if constexpr (halved) {
                for (int p = 0; p < dim / PANEL; p++) {
                    float* acc = x.acc + (p * MAX_ROWS + r) * PANEL;
                    for (int i = 0; i < n; i++)
                        if (x.shrink[i] != 1.0f)
                            for (int d = 0; d < PANEL; d += W) store(acc + i * PANEL + d, load(acc + i * PANEL + d) * x.shrink[i]);
                    blocks(n, acc, x.weight_half, BLOCK, x.v_half + p * BLOCK * PANEL, (n_keys + 1) / 2 * 2, false);
                }
            } else if (is_raw) product(n, dim, x.acc + r * dim, dim, x.weight, BLOCK, raw, n_keys, x.shrink);
            else product(n, dim, x.acc + r * dim, dim, x.weight, BLOCK, v_row, n_keys, x.shrink);
        }
    }
    for (int h = head_from, r = 0; h < head_to; h++)
        for (int i = 0; i < n; i++, r++) {
            const int head = h * group + i % group, row = entry[i / group * 2], part = entry[i / group * 2 + 1];
            float total = sum(x.sum[r]), most = x.top[r];
            if (part >= 0) {
                const int64_t to = int64_t(part) * c.n_heads + head;
                const float by = total > 0 ? 1.0f / total : 0.0f;
                for (int d = 0; d < dim; d += W) store(c.part + to * dim + d, load(x.acc + o_acc(r, d)) * by);
                c.lse[to] = total > 0 ? most + std::log2(total) : -INFINITY;
                continue;
            }
            float by = 1.0f;
            if (c.sinks) {
                const float sink = c.sinks[head] * LOG2E, high = most > sink ? most : sink;
                by = std::exp2(most - high);
                total = total * by + std::exp2(sink - high);
            }
            by /= total;
            T* to = static_cast<T*>(c.out) + row * c.s_out + head * dim;
            for (int d = 0; d < dim; d += W) store(to + d, load(x.acc + o_acc(r, d)) * by);
        }
}

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
            for (int d = 0; d < c.dim; d += W) store(acc + d, load(acc + d) + load(c.part + from * c.dim + d) * w);
        }
        T* to = static_cast<T*>(c.out) + m[0] * c.s_out + head * c.dim;
        for (int d = 0; d < c.dim; d += W) store(to + d, load(acc + d) * (1.0f / total));
    }
}

thread_local Scratch scratch;

template <class T, class P>
void run(const Call& c, const Item* small, int n_small, const Item* large, int n_large, const int32_t* merges,
         int n_merges, int n_threads) {
    // a small item takes all heads of its keys at once, a large one is a task per KV head
    const int n_tasks = n_small + n_large * c.n_kv_heads;
    const auto all = [&](auto paired, auto halved) {
        Pool::instance().run(n_tasks, n_threads, [&](int64_t i) {
            const int64_t j = i - n_large * c.n_kv_heads;
            const int head = i % c.n_kv_heads;
            if (j < 0) attend<T, P, paired, halved>(c, large[i / c.n_kv_heads], head, head + 1, scratch);
            else attend<T, P, paired, false>(c, small[j], 0, c.n_kv_heads, scratch);
        });
    };
    constexpr std::bool_constant<can_pair<T, P>> pairs;
    if (pairs && c.dim % PANEL == 0 && !c.is_exact) all(pairs, pairs);
    else if (pairs && c.dim % (2 * W) == 0) all(pairs, std::false_type());
    else all(std::false_type(), std::false_type());
    Pool::instance().run(n_merges, n_threads, [&](int64_t i) { merge<T>(c, merges + i * 4); });
}

}  // namespace
