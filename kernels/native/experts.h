// Mixture-of-experts layers: each row goes through some of the experts, and the result is the weighted sum of their
// outputs.
//
// The pairs of a row and an expert are sorted by expert, so an expert's weights are read once for all of its rows. One
// product computes the gate and up projections of all pairs, a second one their outputs. A row's outputs are added in
// the order of its experts in `index`.
#pragma once

#include <algorithm>
#include <vector>

#include "linear.h"
#include "rows.h"

namespace {

struct Gate {  // (clamped up + shift) * g * sigmoid(alpha * (g + cubic * g^3)), with g = min(gate, limit)
    float alpha, cubic, limit, shift;
};

struct Experts {  // one call; pointers to elements of one type
    Weight gate_up, down;  // weights of the first expert; those of the others follow, in whole panels
    Gate gate;
    int64_t n_experts, n, n_each;  // n rows, each through n_each experts
    const int64_t* index;          // [n, n_each]; numbers outside of 0 to n_experts - 1 stand for no expert
    const float* weights;          // [n, n_each]
    const void* x;                 // [n, hidden]
    void *rows, *inner, *out;      // buffers [pairs, hidden] and [pairs, 2 * width]; [n, hidden]
    int64_t product_work;          // multiply-adds below which one thread computes a product
};

// One expert's weight for the n_out outputs starting at `from`, a multiple of TASK.
template <class T>
Weight slice(const Weight& all, int64_t expert, int64_t from, int64_t n_out) {
    const int columns = all.n_bits ? COLUMNS : PANEL;
    const int64_t panel = expert * ((all.n_out + columns - 1) / columns) + from / columns;
    const int64_t n_groups = (all.n_in + GROUP - 1) / GROUP;
    const int64_t n_bytes = all.n_bits ? n_groups * GROUP_BYTES(all.n_bits) : padded<T>(all.n_in) * PANEL * sizeof(T);
    const auto at = [](auto p, int64_t n_bytes) { return p ? decltype(p)((const char*)p + n_bytes) : p; };
    Weight w = all;
    w.panels = at(all.panels, panel * n_bytes);
    w.scale = at(all.scale, panel * n_groups * COLUMNS * sizeof(uint16_t));
    w.minimum = at(all.minimum, panel * n_groups * COLUMNS * sizeof(uint16_t));
    w.factor = at(all.factor, panel * COLUMNS * sizeof(float));
    w.bias = at(all.bias, (expert * all.n_out + from) * sizeof(T));
    w.n_out = n_out;
    return w;
}

template <class T>
void gate_row(const Gate& gate, T* row, int64_t width) {  // [2 * width], into its first half
    const auto apply = [&](vf g, vf u) {
        g = g > gate.limit ? vf{} + gate.limit : g;
        u = u > gate.limit ? vf{} + gate.limit : u;
        u = u < -gate.limit ? vf{} - gate.limit : u;
        vf z = gate.alpha * g * (1.0f + gate.cubic * g * g) * -LOG2E;
        z = z > 126.0f ? vf{} + 126.0f : z;
        return g / (1.0f + exp2(z)) * (u + gate.shift);
    };
    int64_t d = 0;
    for (; d + W <= width; d += W) store(row + d, apply(load(row + d), load(row + width + d)));
    for (; d < width; d++) put(row + d, apply(vf{} + get(row[d]), vf{} + get(row[width + d]))[0]);
}

template <class T>
void experts(const Experts& c, int n_threads) {
    const int64_t hidden = c.gate_up.n_in, width = c.down.n_in, n_pairs = c.n * c.n_each;
    T *rows = (T*)c.rows, *inner = (T*)c.inner;
    std::vector<int64_t> starts(c.n_experts + 1), place(n_pairs), used;  // place: a pair's row in `rows`; -1: no expert
    const auto is_expert = [&](int64_t e) { return e >= 0 && e < c.n_experts; };
    for (int64_t i = 0; i < n_pairs; i++)
        if (is_expert(c.index[i])) starts[c.index[i] + 1]++;
    for (int64_t e = 0; e < c.n_experts; e++) {
        if (starts[e + 1]) used.push_back(e);
        starts[e + 1] += starts[e];
    }
    std::vector<int64_t> next(starts);
    for (int64_t i = 0; i < n_pairs; i++) place[i] = is_expert(c.index[i]) ? next[c.index[i]]++ : -1;
    const int64_t n_used = used.size(), n_placed = starts[c.n_experts];
    if (n_placed * hidden * width < c.product_work) n_threads = 1;

    each_row(c.n, n_threads, [&](int64_t i) {
        for (int64_t j = i * c.n_each; j < (i + 1) * c.n_each; j++)
            if (place[j] >= 0) std::memcpy(rows + place[j] * hidden, (const T*)c.x + i * hidden, hidden * sizeof(T));
    });
    // At least four tasks per thread, so that no thread waits long for the expert with the most rows.
    const auto product = [&](const Weight& all, const T* x, int64_t s_x, T* to) {
        const int64_t n_parts = n_threads < 2 ? 1 : (4 * n_threads + n_used - 1) / std::max<int64_t>(n_used, 1);
        const int64_t columns = ((all.n_out + n_parts - 1) / n_parts + TASK - 1) / TASK * TASK;
        const int64_t n_blocks = (all.n_out + columns - 1) / columns;
        ThreadPool::instance().run(n_used * n_blocks, n_threads, [&](int64_t task) {
            const int64_t e = used[task / n_blocks], from = task % n_blocks * columns;
            const Weight w = slice<T>(all, e, from, std::min(columns, all.n_out - from));
            multiply(x + starts[e] * s_x, w, to + starts[e] * all.n_out + from, starts[e + 1] - starts[e], s_x, 1,
                     all.n_out);
        });
    };
    product(c.gate_up, rows, hidden, inner);
    each_row(n_placed, n_threads, [&](int64_t i) { gate_row(c.gate, inner + i * 2 * width, width); });
    product(c.down, inner, 2 * width, rows);
    each_row(c.n, n_threads, [&](int64_t i) {
        T* to = (T*)c.out + i * hidden;
        each_vector(hidden, [&](int64_t d, auto left) {
            vf total = vf{};
            for (int64_t j = i * c.n_each; j < (i + 1) * c.n_each; j++)
                if (place[j] >= 0) total += c.weights[j] * load_some(rows + place[j] * hidden + d, left);
            store_some(to + d, total, left);
        });
    });
}

}  // namespace
