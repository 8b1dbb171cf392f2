// Linear layers over weights packed in panels. Fast also for one row, where the overhead of oneDNN's call dominates.
//
// A panel is PANEL output columns with all k: float32 [k][PANEL], bfloat16 [k / 2][PANEL][2], so that a lane holds a
// pair of k; there, k is padded with 0 to a multiple of GROUP. A register tile is MR rows times a panel; the KC numbers
// k of a panel stay in L2 while all rows use them. Intel's AMX multiplies bfloat16 in tiles, which is faster for any
// number of rows; without AVX-512's instructions for pairs of bfloat16, it is multiplied as float32. Each row is summed
// by itself, in the order of k: its bits do not depend on the batch. Quantised weights are in grouped.h.
#pragma once

#include "grouped.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = NV * W;
constexpr int KC = 1024;
constexpr int MC = 16 * MR;  // rows of a task
constexpr int FLOAT_AHEAD = 2048;  // bytes of a panel that are prefetched (measured)

// t[r] += a[r][0 .. n_k) * b, for the first V vectors of a panel. at(r, k): address of a[r][k]. With each k or pair of
// k, AHEAD vectors at the same place starting at `ahead` are prefetched into the cache of level LEVEL.
template <class T, int R, int V, int AHEAD = 0, int LEVEL = 1, class At>
inline void panel(vf (*t)[V], const At& at, const T* b, int n_k, const T* ahead = nullptr) {
    if constexpr (sizeof(T) == 4) {
#pragma GCC unroll 4  // short loops, as over the dimensions of a head, predict their ends better
        for (int k = 0; k < n_k; k++) {
            vf row[V];
            for (int v = 0; v < AHEAD; v++) __builtin_prefetch(ahead + k * PANEL + v * W, 0, 4 - LEVEL);
            for (int v = 0; v < V; v++) row[v] = load(b + k * PANEL + v * W);
            for (int r = 0; r < R; r++) {
                const float x = *at(r, k);
                for (int v = 0; v < V; v++) t[r][v] += x * row[v];
            }
        }
    }
#ifdef __AVX512BF16__
    else {
        for (int k = 0; k < n_k; k += 2) {
            for (int v = 0; v < AHEAD; v++) __builtin_prefetch(ahead + k * PANEL + v * W * 2, 0, 4 - LEVEL);
            __m512bh row[V];
            for (int v = 0; v < V; v++) row[v] = (__m512bh)_mm512_loadu_si512(b + k * PANEL + v * W * 2);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                std::memcpy(&pair, at(r, k), sizeof pair);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                for (int v = 0; v < V; v++) t[r][v] = (vf)_mm512_dpbf16_ps((__m512)t[r][v], x, row[v]);
            }
        }
    }
#else
    static_assert(sizeof(T) == 4);
#endif
}

template <int R, int AHEAD, int LEVEL, class T>
inline void block(float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh, const T* ahead) {
    vf t[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) t[r][v] = fresh ? vf{} : load(c + r * PANEL + v * W);
    panel<T, R, NV, AHEAD, LEVEL>(t, [&](int r, int k) { return a + r * s_a + k; }, b, n_k, ahead);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(c + r * PANEL + v * W, t[r][v]);
}

// Calls `block` for n rows, at most MR.
template <int AHEAD, int LEVEL, class T>
inline void block_of(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh,
                     const T* ahead) {
    switch (n) {  // not by_count: with it, GCC spills the sums of float32 on AVX-512
        case 1: return block<1, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 2: return block<2, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 3: return block<3, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 4: return block<4, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 5: return block<5, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 6: return block<6, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
    }
}

// Multiplies n rows, in blocks of equal size. PREFETCHES: a single block prefetches what it reads soon, since it waits
// for memory; several blocks share the prefetching into L2 of what follows b, unless b is_last.
template <bool PREFETCHES = false, class T>
inline void blocks(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh, bool is_last = true) {
    const int64_t n_blocks = (n + MR - 1) / MR;
    if (PREFETCHES && n_blocks == 1) return block_of<NV, 1>(n, c, a, s_a, b, n_k, fresh, b + FLOAT_AHEAD / sizeof(T));
    for (int64_t i = 0; i < n_blocks; i++) {
        const int64_t first = i * n / n_blocks, n_here = (i + 1) * n / n_blocks - first;
        const int share = is_last ? 0 : n_blocks < NV ? 2 : 1, at = int(i) * share;  // vectors per k that a block prefetches, and its first
        const T* next = b + n_k * PANEL + at * (W * 4 / sizeof(T));
        const auto run = [&](auto lines) {
            block_of<decltype(lines)::value, 2>(n_here, c + first * PANEL, a + first * s_a, s_a, b, n_k, fresh, next);
        };
        if (!PREFETCHES || !share || at >= NV) run(std::integral_constant<int, 0>());
        else if (share == 1) run(std::integral_constant<int, 1>());
        else run(std::integral_constant<int, 2>());
    }
}

template <class T>
constexpr int64_t padded(int64_t n_in) { return sizeof(T) == 2 ? (n_in + GROUP - 1) / GROUP * GROUP : n_in; }

#ifdef BANYAN_TILES
// x as [tile of 16 rows][group of k][row][GROUP], padded with 0.
inline const bf16* tiled(const bf16* x, int64_t n, int64_t n_in, int64_t s_x, int n_threads) {
    const int64_t s_tile = padded<bf16>(n_in) * TILE;
    bf16* rows = reinterpret_cast<bf16*>(row_memory((n + TILE - 1) / TILE * s_tile * sizeof(bf16)));
    ThreadPool::instance().run(n, n * n_in < (1 << 16) ? 1 : n_threads, [&](int64_t i) {
        bf16* to = rows + i / TILE * s_tile + i % TILE * GROUP;
        const bf16 *from = x + i * s_x, *end = from + n_in;
        for (; end - from >= GROUP; from += GROUP, to += A_TILE) std::memcpy(to, from, GROUP * sizeof *to);
        for (int k = 0; from + k < end || (k && k < GROUP); k++) to[k] = from + k < end ? from[k] : bf16{};
    });
    return rows;
}
#endif

// The first or second number of each pair of bfloat16 at `from`, in float32.
template <int SECOND>
inline vf widened(const bf16* from) {
    vu pair;
    std::memcpy(&pair, from, sizeof pair);
    return reinterpret_cast<vf>(SECOND ? pair & 0xFFFF0000u : pair << 16);
}

// Multiplies R rows of n_k numbers, starting at `first`, with P panels, starting at `column`. Widens panels as it reads
// them.
template <int R, int P, class U>
__attribute__((noinline))  // inlined into one function for all R, it is 5 to 18 % slower for one row
void widened_panels(const float* x, int64_t n_k, const bf16* b, const Output<bf16, U>& to, int64_t first, int64_t column) {
    vf t[R][P * NV] = {};
    x += first * n_k;
    for (int64_t k = 0; k < n_k; k += 2) {
        const bf16* at[P];
        for (int i = 0; i < P; i++) at[i] = b + (i * n_k + k) * PANEL;
        vf row[P * NV];
        for (int v = 0; v < P * NV; v++) __builtin_prefetch(at[v / NV] + v % NV * W * 2 + FLOAT_AHEAD / sizeof(bf16));
        for (int v = 0; v < P * NV; v++) row[v] = widened<0>(at[v / NV] + v % NV * W * 2);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < P * NV; v++) t[r][v] += x[r * n_k + k] * row[v];
        for (int v = 0; v < P * NV; v++) row[v] = widened<1>(at[v / NV] + v % NV * W * 2);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < P * NV; v++) t[r][v] += x[r * n_k + k + 1] * row[v];
    }
    alignas(64) float c[P][R * PANEL];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < P * NV; v++) store(c[v / NV] + r * PANEL + v % NV * W, t[r][v]);
    for (int i = 0; i < P; i++) to.write(c[i], PANEL, first, R, column + i * PANEL);
}

// The product in bfloat16 on CPUs that cannot multiply it: rows are widened first, weights as they are read, and each
// block of rows takes all k. An addition waits for the one before it, so one or two rows take several panels at once.
template <class U>
void widened_linear(const bf16* x, const bf16* weight, const Output<bf16, U>& to, int64_t n, int64_t n_in, int64_t n_out,
                    int64_t s_x, int n_threads) {
    const int64_t n_k = padded<bf16>(n_in), s_panel = n_k * PANEL;
    float* wide = reinterpret_cast<float*>(row_memory(n * n_k * sizeof(float)));
    ThreadPool::instance().run(n, n * n_in < (1 << 16) ? 1 : n_threads, [&](int64_t i) {
        const bf16* from = x + i * s_x;
        float* row = wide + i * n_k;
        for (int64_t k = 0; k < n_k; k += W) store(row + k, k < n_in ? load_some(from + k, n_in - k) : vf{});
    });
    const int64_t n_panels = (n_out + PANEL - 1) / PANEL, n_tasks = (n + MC - 1) / MC;
    each_range(n_panels, n_tasks, n_threads, [&](int64_t p, int64_t end, int64_t task) {
        if (n == 1)
            for (; p + 4 <= end; p += 4) widened_panels<1, 4>(wide, n_k, weight + p * s_panel, to, 0, p * PANEL);
        if (n == 2)
            for (; p + 2 <= end; p += 2) widened_panels<2, 2>(wide, n_k, weight + p * s_panel, to, 0, p * PANEL);
        const int64_t from = task * MC, n_rows = n - from < MC ? n - from : MC, n_blocks = (n_rows + MR - 1) / MR;
        for (; p < end; p++)
            for (int64_t i = 0; i < n_blocks; i++) {
                const int64_t first = i * n_rows / n_blocks, n_here = (i + 1) * n_rows / n_blocks - first;
                by_count<MR>(n_here, [&](auto rows) {
                    constexpr int R = decltype(rows)::value;
                    widened_panels<R, 1>(wide, n_k, weight + p * s_panel, to, from + first, p * PANEL);
                });
            }
    });
}

template <class T, class U>
void linear(const T* x, const Weight& w, U* out, int64_t n, int64_t s_x, int64_t s_out, int n_threads) {
    const T* weight = static_cast<const T*>(w.panels);
    const int64_t n_in = w.n_in, n_out = w.n_out, s_panel = padded<T>(n_in) * PANEL;
    const Output<T, U> to{out, s_out, n_out, nullptr, static_cast<const T*>(w.bias)};
#ifdef BANYAN_TILES
    if constexpr (sizeof(T) == 2)
        if (has_tiles()) {
            const int64_t n_groups = padded<T>(n_in) / GROUP;
            const auto at = [&](int64_t column, int64_t g) { return weight + column / PANEL * s_panel + g * GROUP * PANEL; };
            const auto read = [&](int64_t column, int64_t g, int64_t) {
                return Columns{at(column, g), 2 * PANEL, GROUP * PANEL, 2 * COLUMNS};
            };
            return tiled_product(tiled(x, n, n_in, s_x, n_threads), n, n_groups, n_threads, to, read, at);
        }
#endif
    if constexpr (sizeof(T) == 2 && !HAS_PAIRS) {
        widened_linear(x, weight, to, n, n_in, n_out, s_x, n_threads);
    } else {
        const int64_t n_panels = (n_out + PANEL - 1) / PANEL, n_blocks = (n + MC - 1) / MC;
        each_range(n_panels, n_blocks, n_threads, [&](int64_t start, int64_t end, int64_t block) {
            const int64_t first = block * MC, n_rows = n - first < MC ? n - first : MC;
            alignas(64) float c[MC * PANEL];
            for (int64_t p = start; p < end; p++) {
                for (int64_t k = 0; k < n_in; k += KC)
                    blocks<true>(n_rows, c, x + first * s_x + k, s_x, weight + p * s_panel + k * PANEL,
                                 int(n_in - k < KC ? n_in - k : KC), k == 0, p + 1 == end && k + KC >= n_in);
                to.write(c, PANEL, first, n_rows, p * PANEL);
            }
        });
    }
}

// out: T, or float, which is rounded to T; s_out: from one row of it to the next; 0: n_out
template <class T, class U>
void multiply(const T* x, const Weight& w, U* out, int64_t n, int64_t s_x, int n_threads,
              int64_t s_out = 0) {
    if (!s_out) s_out = w.n_out;
    if (w.n_bits) grouped_linear(x, w, out, n, s_x, s_out, n_threads);
    else linear(x, w, out, n, s_x, s_out, n_threads);
}

}  // namespace
