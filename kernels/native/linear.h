// Linear layers over weights packed in panels. Fast also for one row, where the overhead of oneDNN's call dominates.
//
// A panel is PANEL output columns with all k: float32 [k][PANEL], bfloat16 [k / 2][PANEL][2], so that a lane holds a pair
// of k. A register tile is MR rows times a panel; the KC numbers k of a panel stay in L2 while all rows use them. Weights
// in few bits are in grouped.h.
#pragma once

#include <algorithm>

#include "grouped.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = NV * W;
constexpr int KC = 1024;
constexpr int MC = 16 * MR;  // rows of a task
constexpr int FLOAT_AHEAD = 2048;  // bytes of a panel that are prefetched (measured)

// t[r] += a[r][0 .. n_k) * b, for the first V vectors of a panel. at(r, k): address of a[r][k]. AHEAD: prefetches b
template <class T, int R, int V, bool AHEAD = false, class At>
inline void panel(vf (*t)[V], const At& at, const T* b, int n_k) {
    if constexpr (sizeof(T) == 4) {
        for (int k = 0; k < n_k; k++) {
            vf row[V];
            for (int v = 0; AHEAD && v < V; v++) __builtin_prefetch(b + k * PANEL + v * W + FLOAT_AHEAD / sizeof(T));
            for (int v = 0; v < V; v++) row[v] = load(b + k * PANEL + v * W);
            for (int r = 0; r < R; r++) {
                const float x = *at(r, k);
                for (int v = 0; v < V; v++) t[r][v] += x * row[v];
            }
        }
    } else {
        for (int k = 0; k < n_k; k += 2) {
            for (int v = 0; AHEAD && v < V; v++) __builtin_prefetch(b + k * PANEL + v * W * 2 + FLOAT_AHEAD / sizeof(T));
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

template <int R, bool AHEAD, class T>
inline void block(float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh) {
    vf t[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) t[r][v] = fresh ? vf{} : load(c + r * PANEL + v * W);
    panel<T, R, NV, AHEAD>(t, [&](int r, int k) { return a + r * s_a + k; }, b, n_k);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(c + r * PANEL + v * W, t[r][v]);
}

template <bool AHEAD = false, class T>
inline void blocks(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh) {
    for (; n >= MR; n -= MR, c += MR * PANEL, a += MR * s_a) block<MR, AHEAD>(c, a, s_a, b, n_k, fresh);
    switch (n) {
        case 1: return block<1, AHEAD>(c, a, s_a, b, n_k, fresh);
        case 2: return block<2, AHEAD>(c, a, s_a, b, n_k, fresh);
        case 3: return block<3, AHEAD>(c, a, s_a, b, n_k, fresh);
        case 4: return block<4, AHEAD>(c, a, s_a, b, n_k, fresh);
        case 5: return block<5, AHEAD>(c, a, s_a, b, n_k, fresh);
    }
}

#ifdef BANYAN_TILES
// As `blocks` over all k, in Intel's AMX: tiles of 16 rows or columns times 32 k. n_k: a multiple of 32. If there are more
// than 16 rows, the last 16 are a tile, whose first rows may be computed twice.
inline void tiled_blocks(int64_t n, float* c, const bf16* a, int64_t s_a, const bf16* b, int64_t n_k) {
    constexpr int row = PANEL * sizeof(float);
    const int64_t last = std::max<int64_t>(n - TILE, 0);
    const Tiles shapes(int(n - last));
    for (int64_t r = 0; r < n; r += 2 * TILE) {
        const int64_t one = std::min(r, last), other = std::min(r + TILE, last);
        for (int p = 0; p < PANEL; p += 2 * COLUMNS) {
            _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
            for (int64_t k = 0; k < n_k; k += GROUP) {
                _tile_loadd(4, a + one * s_a + k, s_a * sizeof(bf16));
                _tile_loadd(6, b + k * PANEL + 2 * p, row);
                _tile_loadd(7, b + k * PANEL + 2 * (p + COLUMNS), row);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (other == one) continue;
                _tile_loadd(5, a + other * s_a + k, s_a * sizeof(bf16));
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, c + one * PANEL + p, row);
            _tile_stored(1, c + one * PANEL + p + COLUMNS, row);
            if (other == one) continue;
            _tile_stored(2, c + other * PANEL + p, row);
            _tile_stored(3, c + other * PANEL + p + COLUMNS, row);
        }
    }
}
#endif

// c[r][0 .. PANEL) of n rows. deterministic: the bits of a row do not depend on n
template <class T>
void panel_rows(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int64_t n_in, bool deterministic) {
#ifdef BANYAN_TILES
    if constexpr (sizeof(T) == 2)
        if (n > MR && n_in % GROUP == 0 && !deterministic && has_tiles()) return tiled_blocks(n, c, a, s_a, b, n_in);
#endif
    for (int64_t k = 0; k < n_in; k += KC)
        blocks<true>(n, c, a + k, s_a, b + k * PANEL, int(n_in - k < KC ? n_in - k : KC), k == 0);
}

template <class T>
void linear(const T* x, const T* weight, const T* bias, T* out, int64_t n, int64_t n_in, int64_t n_out, int64_t s_x,
            int64_t s_out, bool deterministic, int n_threads) {
    const int64_t n_panels = (n_out + PANEL - 1) / PANEL, n_blocks = (n + MC - 1) / MC;
    ThreadPool::instance().run(n_panels * n_blocks, n_threads, [&](int64_t task) {
        const int64_t p = task / n_blocks, m = task % n_blocks;
        alignas(64) float c[MC * PANEL];
        const T* a = x + m * MC * s_x;
        const T* b = weight + p * n_in * PANEL;
        const int64_t n_rows = n - m * MC < MC ? n - m * MC : MC;
        panel_rows(n_rows, c, a, s_x, b, n_in, deterministic);
        const int64_t width = n_out - p * PANEL < PANEL ? n_out - p * PANEL : PANEL;
        for (int64_t r = 0; r < n_rows; r++) {
            T* to = out + (m * MC + r) * s_out + p * PANEL;
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
    int64_t n_in, n_out, n_bits, deterministic;  // n_bits 0: in the rows' type; or FLOAT4
};

// s_out: from one row of out to the next; 0: n_out
template <class T>
void multiply(const T* x, const Weight& w, T* out, int64_t n, int64_t s_x, int n_threads, int64_t s_out = 0) {
    const T* bias = (const T*)w.bias;
    if (!s_out) s_out = w.n_out;
    const bool exact = w.deterministic != 0;
    if (!w.n_bits) return linear(x, (const T*)w.panels, bias, out, n, w.n_in, w.n_out, s_x, s_out, exact, n_threads);
    const GroupedWeight grouped{(const uint8_t*)w.panels, (const uint16_t*)w.scale, (const uint16_t*)w.minimum,
                                (const float*)w.factor, w.n_in, w.n_out, exact};
    grouped_linear(x, int(w.n_bits), grouped, bias, out, n, s_x, s_out, n_threads);
}

}  // namespace
