// Linear layers over weights packed in panels. Fast also for one row, where the overhead of oneDNN's call dominates.
//
// A panel is PANEL output columns with all k: float32 [k][PANEL], bfloat16 [k / 2][PANEL][2], so that a lane holds a pair
// of k; there, k is padded with 0 to a multiple of GROUP. A register tile is MR rows times a panel; the KC numbers k of a
// panel stay in L2 while all rows use them. Intel's AMX multiplies bfloat16 in tiles, which is faster for any number of
// rows. Each row is summed by itself, in the order of k: its bits do not depend on the batch. Quantised weights are in
// grouped.h.
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

// t[r] += a[r][0 .. n_k) * b, for the first V vectors of a panel. at(r, k): address of a[r][k]. With each k or pair of k,
// AHEAD vectors at the same place from `ahead` on are prefetched into the cache of level LEVEL.
template <class T, int R, int V, int AHEAD = 0, int LEVEL = 1, class At>
inline void panel(vf (*t)[V], const At& at, const T* b, int n_k, const T* ahead = nullptr) {
    if constexpr (sizeof(T) == 4) {
        for (int k = 0; k < n_k; k++) {
            vf row[V];
            for (int v = 0; v < AHEAD; v++) __builtin_prefetch(ahead + k * PANEL + v * W, 0, 4 - LEVEL);
            for (int v = 0; v < V; v++) row[v] = load(b + k * PANEL + v * W);
            for (int r = 0; r < R; r++) {
                const float x = *at(r, k);
                for (int v = 0; v < V; v++) t[r][v] += x * row[v];
            }
        }
    } else {
        for (int k = 0; k < n_k; k += 2) {
            for (int v = 0; v < AHEAD; v++) __builtin_prefetch(ahead + k * PANEL + v * W * 2, 0, 4 - LEVEL);
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

template <int R, int AHEAD, int LEVEL, class T>
inline void block(float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh, const T* ahead) {
    vf t[R][NV];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) t[r][v] = fresh ? vf{} : load(c + r * PANEL + v * W);
    panel<T, R, NV, AHEAD, LEVEL>(t, [&](int r, int k) { return a + r * s_a + k; }, b, n_k, ahead);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < NV; v++) store(c + r * PANEL + v * W, t[r][v]);
}

// The n rows of one block, at most MR.
template <int AHEAD, int LEVEL, class T>
inline void block_of(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh,
                     const T* ahead) {
    switch (n) {
        case 1: return block<1, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 2: return block<2, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 3: return block<3, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 4: return block<4, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 5: return block<5, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
        case 6: return block<6, AHEAD, LEVEL>(c, a, s_a, b, n_k, fresh, ahead);
    }
}

// n rows, in blocks of equal size. PREFETCHES: a single block, which waits for memory, prefetches what it needs soon;
// several share the prefetching of what follows b, unless b is_last, so that the blocks after them find it in L2.
template <bool PREFETCHES = false, class T>
inline void blocks(int64_t n, float* c, const T* a, int64_t s_a, const T* b, int n_k, bool fresh, bool is_last = true) {
    const int64_t n_blocks = (n + MR - 1) / MR;
    if (PREFETCHES && n_blocks == 1) return block_of<NV, 1>(n, c, a, s_a, b, n_k, fresh, b + FLOAT_AHEAD / sizeof(T));
    for (int64_t i = 0; i < n_blocks; i++) {
        const int64_t first = i * n / n_blocks, n_here = (i + 1) * n / n_blocks - first;
        const int share = is_last ? 0 : n_blocks < NV ? 2 : 1, at = int(i) * share;  // vectors of each k
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

// Calls make(panel, first row, n, c, is_last) for each panel and ROWS rows, and writes the sums c[n][PANEL] to `out`,
// rounded to T. is_last: the thread does not go on with the next panel.
template <int ROWS, class T, class U, class F>
void each_panel(const T* bias, U* out, int64_t n, int64_t n_out, int64_t s_out, int n_threads, const F& make) {
    const int64_t n_panels = (n_out + PANEL - 1) / PANEL, n_blocks = (n + ROWS - 1) / ROWS;
    const auto compute = [&](int64_t p, int64_t first, bool is_last) {
        const int64_t n_rows = n - first < ROWS ? n - first : ROWS;
        alignas(64) float c[ROWS * PANEL];
        make(p, first, n_rows, c, is_last);
        const int64_t width = n_out - p * PANEL < PANEL ? n_out - p * PANEL : PANEL;
        const T* add = bias ? bias + p * PANEL : nullptr;
        for (int64_t r = 0; r < n_rows; r++) {
            U* to = out + (first + r) * s_out + p * PANEL;
            float* sums = c + r * PANEL;
            int64_t j = 0;
            for (; add && j + W <= width; j += W) store(sums + j, load(sums + j) + load(add + j));
            for (; add && j < width; j++) sums[j] += get(add[j]);
            for (j = 0; j + 2 * W <= width; j += 2 * W)
                store(to + j, rounded<T, U>(load(sums + j)), rounded<T, U>(load(sums + j + W)));
            for (; j < width; j++) put(to + j, get(near<T>(sums[j])));
        }
    };
    each_range(n_panels, n_blocks, n_threads, [&](int64_t from, int64_t to, int64_t block) {
        for (int64_t p = from; p < to; p++) compute(p, block * ROWS, p + 1 == to);
    });
}

#ifdef BANYAN_TILES
constexpr int BLOCK_ROWS = 512;   // of a task: they use a panel while it is in L2
constexpr int64_t L1_GROUPS = 8;  // groups of k of a panel that stay in L1 while the rows of a task use them
constexpr int GROUP_LINES = GROUP * PANEL * sizeof(bf16) / 64;  // cache lines of a group of a panel

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

// c[n][PANEL] of one panel b. rows: of `tiled`, from the first one on. Prefetches the next panel, unless b is_last.
inline void tiled_panel(float* c, const bf16* rows, const bf16* b, int64_t n, int64_t n_groups, bool is_last) {
    const Tiles shapes;
    const int64_t n_pairs = (n + 2 * TILE - 1) / (2 * TILE), s_a = n_groups * A_TILE;
    const int64_t step = n_pairs > 2 ? L1_GROUPS : n_groups, n_ahead = is_last ? 0 : GROUP_LINES / (2 * n_pairs);
    for (int64_t g = 0; g < n_groups; g += step) {
        const int64_t n_here = n_groups - g < step ? n_groups - g : step;
        for (int64_t i = 0; i < 2 * n_pairs; i++) {  // halves of the panel for each pair of row tiles
            const int64_t r = i / 2 * 2 * TILE, half = i % 2 * 2 * COLUMNS;
            const bf16* a = rows + r / TILE * s_a + g * A_TILE;
            const bf16* next = b + n_groups * GROUP * PANEL;  // the next panel comes into L2, a share with each group
            const char* ahead = reinterpret_cast<const char*>(next) + (i * n_groups + g) * n_ahead * 64;
            const Columns columns{b + g * GROUP * PANEL + 2 * half, 2 * PANEL, GROUP * PANEL, 2 * COLUMNS};
            float* to = c + r * PANEL + half;
            if (n - r > TILE) add_tiles<2>(to, PANEL, a, s_a, columns, n_here, g == 0, ahead, n_ahead);
            else add_tiles<1>(to, PANEL, a, s_a, columns, n_here, g == 0, ahead, n_ahead);
        }
    }
}
#endif

template <class T, class U>
void linear(const T* x, const T* weight, const T* bias, U* out, int64_t n, int64_t n_in, int64_t n_out, int64_t s_x,
            int64_t s_out, int n_threads) {
    const int64_t s_panel = padded<T>(n_in) * PANEL;
#ifdef BANYAN_TILES
    if constexpr (sizeof(T) == 2)
        if (has_tiles()) {
            const bf16* rows = tiled(x, n, n_in, s_x, n_threads);
            const int64_t n_groups = padded<T>(n_in) / GROUP;
            const auto make = [&](int64_t p, int64_t first, int64_t n_rows, float* c, bool is_last) {
                tiled_panel(c, rows + first * n_groups * GROUP, weight + p * s_panel, n_rows, n_groups, is_last);
            };
            return each_panel<BLOCK_ROWS>(bias, out, n, n_out, s_out, n_threads, make);
        }
#endif
    const auto make = [&](int64_t p, int64_t first, int64_t n_rows, float* c, bool is_last) {
        for (int64_t k = 0; k < n_in; k += KC)
            blocks<true>(n_rows, c, x + first * s_x + k, s_x, weight + p * s_panel + k * PANEL,
                         int(n_in - k < KC ? n_in - k : KC), k == 0, is_last && k + KC >= n_in);
    };
    each_panel<MC>(bias, out, n, n_out, s_out, n_threads, make);
}

struct Weight {  // the weight of a linear layer, in panels
    const void *panels, *scale, *minimum, *factor, *bias;  // scale, minimum, factor: of a quantised weight
    int64_t n_in, n_out, n_bits, deterministic;  // n_bits 0: in the rows' type, and always deterministic; or FLOAT4
};

// out: T, or float, which is rounded to T; s_out: from one row of it to the next; 0: n_out
template <class T, class U>
void multiply(const T* x, const Weight& w, U* out, int64_t n, int64_t s_x, int n_threads,
              int64_t s_out = 0) {
    const T* bias = (const T*)w.bias;
    if (!s_out) s_out = w.n_out;
    if (!w.n_bits) return linear(x, (const T*)w.panels, bias, out, n, w.n_in, w.n_out, s_x, s_out, n_threads);
    const GroupedWeight grouped{(const uint8_t*)w.panels, (const uint16_t*)w.scale, (const uint16_t*)w.minimum,
                                (const float*)w.factor, w.n_in, w.n_out, w.deterministic != 0};
    grouped_linear(x, int(w.n_bits), grouped, bias, out, n, s_x, s_out, n_threads);
}

}  // namespace
