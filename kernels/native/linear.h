// Linear layers over weights packed in panels. Fast also for one row, where the overhead of oneDNN's call dominates.
//
// A panel is PANEL output columns with all k: float32 [k][PANEL], bfloat16 [k / 2][PANEL][2], so that a lane holds a pair
// of k. A register tile is MR rows times a panel; the KC numbers k of a panel stay in L2 while all rows use them. An int8
// weight has the layout of the rows' type, which represents its numbers exactly. It is widened in registers for few rows,
// and part by part for many. A column's scale is applied to the sum.
#pragma once

#include "thread_pool.h"
#include "vector.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = NV * W;
constexpr int KC = 1024;
constexpr int MC = 16 * MR;  // rows of a task

#ifdef __AVX512BF16__
constexpr bool widens_pairs = true;
inline __m512i pairs(const bf16* b) { return _mm512_loadu_si512(b); }
inline __m512i pairs(const int8_t* b) {  // the upper half of a float represents int8 exactly
    const __m512i both = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)));
    const __m512 even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(both, 16));
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32((__m512i)even, 16), (__m512i)odd);
}
#else
constexpr bool widens_pairs = false;
#endif

// t[r] += a[r][0 .. n_k) * b, for the first V vectors of a panel. at(r, k): address of a[r][k]
template <class T, int R, int V, class B, class At>
inline void panel(vf (*t)[V], const At& at, const B* b, int n_k) {
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
            for (int v = 0; v < V; v++) row[v] = (__m512bh)pairs(b + k * PANEL + v * W * 2);
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

template <int R, class T, class B>
inline void block(float* c, const T* a, int64_t s_a, const B* b, int n_k, bool fresh) {
    vf t[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) t[r][v] = fresh ? vf{} : load(c + r * PANEL + v * W);
    panel<T, R, NV>(t, [&](int r, int k) { return a + r * s_a + k; }, b, n_k);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(c + r * PANEL + v * W, t[r][v]);
}

template <class T, class B>
inline void blocks(int64_t n, float* c, const T* a, int64_t s_a, const B* b, int n_k, bool fresh) {
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
inline void widen(T* to, const int8_t* from, int n) {
#ifdef __AVX512BF16__
    if constexpr (sizeof(T) == 2) {
        for (int i = 0; i < n; i += 2 * W) _mm512_store_si512(to + i, pairs(from + i));
        return;
    }
#endif
    for (int i = 0; i < n; i += W) store(to + i, load(from + i));
}

// weight: of T, or of int8 with `scale`, a number for each column of the result, whole panels of them
template <class T, class Q>
void linear(const T* x, const Q* weight, const float* scale, const T* bias, T* out, int64_t n, int64_t n_in,
            int64_t n_out, int64_t s_x, int n_threads) {
    constexpr int part = sizeof(Q) == 1 ? KC / 4 : KC;
    constexpr bool is_direct = sizeof(Q) > 1 || sizeof(T) > 2 || widens_pairs;
    const int64_t n_panels = (n_out + PANEL - 1) / PANEL, n_blocks = (n + MC - 1) / MC;
    ThreadPool::instance().run(n_panels * n_blocks, n_threads, [&](int64_t task) {
        const int64_t p = task / n_blocks, m = task % n_blocks;
        alignas(64) float c[MC * PANEL];
        const T* a = x + m * MC * s_x;
        const Q* b = weight + p * n_in * PANEL;
        const int64_t n_rows = n - m * MC < MC ? n - m * MC : MC;
        for (int64_t k = 0; k < n_in; k += part) {
            const int n_k = int(n_in - k < part ? n_in - k : part);
            if constexpr (sizeof(Q) == 1) {
                if (n_rows > 3 * MR || !is_direct) {  // measured: with fewer rows, widening each time is faster
                    alignas(64) T wide[part * PANEL];
                    widen(wide, b + k * PANEL, n_k * PANEL);
                    blocks(n_rows, c, a + k, s_x, wide, n_k, k == 0);
                    continue;
                }
            }
            if constexpr (is_direct) blocks(n_rows, c, a + k, s_x, b + k * PANEL, n_k, k == 0);
        }
        if constexpr (sizeof(Q) == 1)
            for (int64_t r = 0; r < n_rows; r++)
                for (int j = 0; j < PANEL; j += W)
                    store(c + r * PANEL + j, load(c + r * PANEL + j) * load(scale + p * PANEL + j));
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

// The same for a weight of either type: with a scale, it is int8.
template <class T>
void multiply(const T* x, const void* weight, const float* scale, const T* bias, T* out, int64_t n, int64_t n_in,
              int64_t n_out, int64_t s_x, int n_threads) {
    if (scale) linear(x, (const int8_t*)weight, scale, bias, out, n, n_in, n_out, s_x, n_threads);
    else linear(x, (const T*)weight, scale, bias, out, n, n_in, n_out, s_x, n_threads);
}

}  // namespace
