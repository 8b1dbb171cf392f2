// Adapters (LoRA): y[row] += (x[row] down^T) up, for the rows of a step that use an adapter.
//
// In a decode step most adapters have one or two rows, so most of the time is spent on reading their weights. These are
// read once, in the layout of checkpoints, and the numbers between the two products stay in float32. Each row is summed
// by itself in a fixed order, so its bits do not depend on the other rows.
#pragma once

#include "thread_pool.h"
#include "vector.h"

namespace {

constexpr int MAX_RANK = 512, RANK_STEP = 4, MAX_PARTS = 3, N_LINEARS = 4;
constexpr int LORA_ROWS = 16, LORA_COLUMNS = 256, USUAL_RANK = 16;

struct LowRank {  // an adapter's weights for some columns of a linear layer; rank 0: it does not change them
    const void *down, *up;  // [rank, n_in], [rank, n_out]
    int64_t rank, n_out, column;
};

struct AdaptedRows {  // task i: the rows `rows[starts[i]]` to `rows[starts[i + 1]]`, at most LORA_ROWS, of one adapter
    const int64_t *adapters, *starts, *rows;
    int64_t n_tasks;
};

// out[r][q] = x[r] . w[q], for R rows of x and RANK_STEP rows of w. Two rows share what is read of w, and their sums do
// not wait for each other.
template <int R, class T>
inline void dots(const T* const* x, const T* w, int64_t n, float* out, int s_out) {
    vf t[R][RANK_STEP] = {};
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        vf b[RANK_STEP];
        for (int q = 0; q < RANK_STEP; q++) b[q] = load(w + q * n + i);
        for (int r = 0; r < R; r++) {
            const vf a = load(x[r] + i);
            for (int q = 0; q < RANK_STEP; q++) t[r][q] += a * b[q];
        }
    }
    for (int r = 0; r < R; r++)
        for (int q = 0; q < RANK_STEP; q++) {
            float& total = out[r * s_out + q];
            total = sum(t[r][q]);
            for (int64_t j = i; j < n; j++) total += get(x[r][j]) * get(w[q * n + j]);
        }
}

template <class T>
void add_low_rank(const LowRank& w, const int64_t* rows, int n, const T* x, int64_t n_in, T* y, int64_t s_y) {
    alignas(64) float low[LORA_ROWS * MAX_RANK], c[LORA_ROWS * LORA_COLUMNS];
    const T *down = (const T*)w.down, *up = (const T*)w.up, *b[MAX_RANK];
    const int rank = int(w.rank);
    for (int k = 0; k < rank; k += RANK_STEP)
        for (int r = 0; r < n; r += 2) {
            const T* pair[] = {x + rows[r] * n_in, r + 1 < n ? x + rows[r + 1] * n_in : nullptr};
            const auto run = r + 1 < n ? dots<2, T> : dots<1, T>;
            run(pair, down + k * n_in, n_in, low + r * rank + k, rank);
        }
    for (int64_t at = 0; at < w.n_out; at += LORA_COLUMNS) {
        const int width = int(w.n_out - at < LORA_COLUMNS ? w.n_out - at : LORA_COLUMNS), whole = width / W * W;
        for (int k = 0; k < rank; k++) b[k] = up + k * w.n_out + at;
        product(n, whole, c, LORA_COLUMNS, low, rank, b, rank, nullptr);
        for (int r = 0; r < n; r++) {
            T* to = y + rows[r] * s_y + w.column + at;
            for (int j = 0; j < whole; j += W) store(to + j, load(to + j) + load(c + r * LORA_COLUMNS + j));
            for (int j = whole; j < width; j++) {
                float total = 0;
                for (int k = 0; k < rank; k++) total += low[r * rank + k] * get(b[k][j]);
                put(to + j, get(to[j]) + total);
            }
        }
    }
}

// all: the parts of each adapter for one linear layer; those of the next adapter are s_adapter further
template <class T>
void add_lora(const LowRank* all, int64_t s_adapter, const AdaptedRows& a, const void* x, int64_t n_in, void* y,
              int64_t s_y, int64_t product_work, int n_threads) {
    const int64_t n_rows = a.n_tasks ? a.starts[a.n_tasks] : 0;
    if (n_rows * USUAL_RANK * (n_in + s_y) < product_work) n_threads = 1;
    ThreadPool::instance().run(a.n_tasks * MAX_PARTS, n_threads, [&](int64_t i) {
        const int64_t task = i / MAX_PARTS, start = a.starts[task];
        const LowRank& w = all[a.adapters[task] * s_adapter + i % MAX_PARTS];
        if (w.rank) add_low_rank(w, a.rows + start, int(a.starts[task + 1] - start), (const T*)x, n_in, (T*)y, s_y);
    });
}

}  // namespace
