// Linear layers over weights packed in panels. Fast also for one row, where the overhead of oneDNN's call dominates.
//
// A panel is PANEL output columns with all k: float32 [k][PANEL], bfloat16 [k / 2][PANEL][2], so that a lane holds a pair
// of k. A register tile is MR rows times a panel; the KC numbers k of a panel stay in L2 while all rows use them. Weights
// in few bits are in grouped.h.
#pragma once

#include "grouped.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = NV * W;
constexpr int KC = 1024;
constexpr int MC = 16 * MR;  // rows of a task

// t[r] += a[r][0 .. n_k) * b, for the first V vectors of a panel. at(r, k): address of a[r][k]
template <class T, int R, int V, class At>
inline void panel(vf (*t)[V], const At& at, const T* b, int n_k) {
    if constexpr (sizeof(T) == 4) {
        for (int k = 0; k < n_k; k++) {
            vf row[V];
            for (int v = 0; v < V; v++) row[v] = load(b + k * PANEL + v * W);
            for (int r = 0; r < R; r++) {
                const float x = *at(r, k);
                for (int v = 0; v < V; v++) t[r][v] += x * row[v];
            }
        }
    } else {
        for (int k = 0; k < n_k; k += 2) {
#ifdef __AVX512BF16__
            __m512bh row[V];
            for (int v = 0; v < V; v++) row[v] = (__m512bh)_mm512_loadu_si512(b + k * PANEL + v * W * 2);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                std::memcpy(&pair, at(r, k), sizeof pair);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < V; v++) t[r][v] = (vf)_mm512_dpbf16_ps((__m512)t[r][v], x, row[v]);
            }
#else
            vf even[V], odd[V];
            for (int v = 0; v < V; v++) {
                vu pair;
                std::memcpy(&pair, b + k * PANEL + v * W * 2, sizeof pair);
                even[v] = reinterpret_cast<vf>(pair << 16);
                odd[v] = reinterpret_cast<vf>(pair & 0xFFFF0000u);
            }
            for (int r = 0; r < R; r++) {
                const float x = get(at(r, k)[0]), y = get(at(r, k)[1]);
                for (int v = 0; v < V; v++) t[r][v] += x * even[v] + y * odd[v];
            }
#endif
        }
    }
}

template <int R, class T>
inline void block(float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh) {
    vf t[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) t[r][v] = fresh ? vf{} : load(c + r * PANEL + v * W);
    panel<T, R, NV>(t, [&](int r, int k) { return a + r * s_a + k; }, b, n_k);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(c + r * PANEL + v * W, t[r][v]);
}

template <class T>
inline void blocks(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh) {
    for (; n >= MR; n -= MR, c += MR * PANEL, a += MR * s_a) block<MR>(c, a, s_a, b, n_k, fresh);
    switch (n) {
        case 1: return block<1>(c, a, s_a, b, n_k, fresh);
        case 2: return block<2>(c, a, s_a, b, n_k, fresh);
        case 3: return block<3>(c, a, s_a, b, n_k, fresh);
        case 4: return block<4>(c, a, s_a, b, n_k, fresh);
        case 5: return block<5>(c, a, s_a, b, n_k, fresh);
    }
}

template <class T>
void linear(const T* x, const T* weight, const T* bias, T* out, int64_t n, int64_t n_in, int64_t n_out, int64_t s_x,
            int n_threads) {
    const int64_t n_panels = (n_out + PANEL - 1) / PANEL, n_blocks = (n + MC - 1) / MC;
    ThreadPool::instance().run(n_panels * n_blocks, n_threads, [&](int64_t task) {
        const int64_t p = task / n_blocks, m = task % n_blocks;
        alignas(64) float c[MC * PANEL];
        const T* a = x + m * MC * s_x;
        const T* b = weight + p * n_in * PANEL;
        const int64_t n_rows = n - m * MC < MC ? n - m * MC : MC;
        for (int64_t k = 0; k < n_in; k += KC)
            blocks(n_rows, c, a + k, s_x, b + k * PANEL, int(n_in - k < KC ? n_in - k : KC), k == 0);
        const int64_t width = n_out - p * PANEL < PANEL ? n_out - p * PANEL : PANEL;
        for (int64_t r = 0; r < n_rows; r++) {
            T* to = out + (m * MC + r) * n_out + p * PANEL;
            const T* add = bias ? bias + p * PANEL : nullptr;
            int64_t j = 0;
            for (; j + W <= width; j += W)
                store(to + j, add ? load(c + r * PANEL + j) + load(add + j) : load(c + r * PANEL + j));
            for (; j < width; j++) put(to + j, add ? c[r * PANEL + j] + get(add[j]) : c[r * PANEL + j]);
        }
    });
}

struct Weight {  // of a linear layer, in panels
    const void *panels, *scale, *minimum, *factor, *bias;  // scale to factor: of a weight in few bits
    int64_t n_in, n_out, n_bits, deterministic;  // n_bits 0: in the rows' type, and always deterministic
};

template <class T>
void multiply(const T* x, const Weight& w, T* out, int64_t n, int64_t s_x, int n_threads) {
    const T* bias = (const T*)w.bias;
    if (!w.n_bits) return linear(x, (const T*)w.panels, bias, out, n, w.n_in, w.n_out, s_x, n_threads);
    const GroupedWeight grouped{(const uint8_t*)w.panels, (const uint16_t*)w.scale, (const uint16_t*)w.minimum,
                                (const float*)w.factor, w.n_in, w.n_out, w.deterministic != 0};
    grouped_linear(x, int(w.n_bits), grouped, bias, out, n, s_x, n_threads);
}

}  // namespace
