// Products in bfloat16 by Intel's AMX, in tiles of 16 rows and 32 k times 32 k and 16 columns.
//
// Two tiles of rows times two of columns fill the registers. Their sums stay there for 2,048 k, so only the rows of a
// task are read many times, from L2. All sums are in the order of k.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <new>

#include "thread_pool.h"
#include "vector.h"
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__AMX_BF16__) && defined(__AVX512FP16__) && defined(__linux__)
#define BANYAN_TILES
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int GROUP = 32, COLUMNS = 16;
constexpr int TILE = 16;  // rows that lie together

// Returns n_bytes of memory of the calling thread, with some bytes after them that may be read. It grows as needed, and
// is in huge pages where the system has them: with small ones, products of many rows take a tenth longer.
template <int USE>
char* thread_memory(int64_t n_bytes) {
    constexpr int64_t HUGE_PAGE = 2 << 20;
    thread_local struct Memory {
        char* at = nullptr;
        int64_t size = 0;
        ~Memory() { std::free(at); }
    } memory;
    if (memory.size < n_bytes + 2048) {
        std::free(memory.at);
        memory.size = (n_bytes + 2048 + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        memory.at = static_cast<char*>(std::aligned_alloc(HUGE_PAGE, memory.size));
        if (!memory.at) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        madvise(memory.at, memory.size, MADV_HUGEPAGE);
#endif
    }
    return memory.at;
}
inline char* row_memory(int64_t n_bytes) { return thread_memory<0>(n_bytes); }
inline char* sum_memory(int64_t n_bytes) { return thread_memory<1>(n_bytes); }
inline char* wide_memory(int64_t n_bytes) { return thread_memory<2>(n_bytes); }

// Writes a product's sums to out[row][column], times a factor and plus a bias per column (null: none), rounded to T.
template <class T, class U>
struct Output {
    U* out;
    int64_t s_out, n_out;
    const float* factor;
    const T* bias;

    // Prefetches the lines of n rows that are written soon. Their distance is often a power of two, and hardware
    // prefetchers do not follow it.
    void expect(int64_t row, int64_t n, int64_t column) const {
        const char* at = reinterpret_cast<const char*>(out + row * s_out + column);
        for (; n > 0; n--, at += s_out * sizeof(U)) __builtin_prefetch(at, 1);
    }

    // sums: [n][width], of columns starting at `column`; those from n_out on are not written.
    void write(const float* sums, int width, int64_t row, int64_t n, int64_t column) const {
        const auto some = [&](auto has_factor, auto has_bias) {
            constexpr bool F = decltype(has_factor)::value, B = decltype(has_bias)::value;
            const int n_here = int(std::min<int64_t>(width, n_out - column));
            const float* from = sums;
            U* to = out + row * s_out + column;
            const auto at = [&](int j) {
                vf y = load(from + j);
                if (F) y = y * load(factor + column + j);
                if (B) y = y + load(bias + column + j);
                return rounded<T, U>(y);
            };
            for (int64_t r = 0; r < n; r++, from += width, to += s_out) {
                int j = 0;
                for (; j + 2 * W <= n_here; j += 2 * W) store(to + j, at(j), at(j + W));
                for (; j + W <= n_here; j += W) store(to + j, at(j));
                for (; j < n_here; j++)
                    put(to + j, get(near<T>(from[j] * (F ? factor[column + j] : 1.0f) + (B ? get(bias[column + j]) : 0.0f))));
            }
        };
        const auto with_factor = [&](auto has_factor) {
            if (bias) some(has_factor, std::true_type());
            else some(has_factor, std::false_type());
        };
        if (factor) with_factor(std::true_type());
        else with_factor(std::false_type());
    }
};

#ifdef BANYAN_TILES
constexpr int A_TILE = TILE * GROUP;  // numbers
constexpr int WIDE = 4 * COLUMNS;     // columns that are multiplied at a time
constexpr int GROUP_LINES = GROUP * WIDE * sizeof(bf16) / 64;  // cache lines of a group of them
constexpr int64_t PART = 64;          // groups of k that are multiplied at a time
constexpr int64_t TASK_TILES = 1024;  // of rows: 1 MB, half of L2
constexpr int64_t TOGETHER = 16;      // blocks of WIDE columns, whose sums are kept for the next part of k

// Whether the system lets this process use tiles.
inline bool has_tiles() {
    static const bool is_allowed = !syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */);
    return is_allowed;
}

// Sets the shapes of the tiles, rows of 64 bytes, and restores the earlier ones at the end: torch uses tiles in this
// thread. All have 16 rows, except tiles 2, 3 and 5, which have n.
class Tiles {
    struct alignas(64) Shapes {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
    } before;

  public:
    explicit Tiles(int n = TILE) {
        // GCC assumes that the intrinsics access 8 bytes, and would drop stores to the other 56.
        Shapes ours;
        ours.rows[2] = ours.rows[3] = ours.rows[5] = uint8_t(n);
        _tile_storeconfig(&before);
        asm volatile("" : : "r"(&before), "r"(&ours) : "memory");
        _tile_loadconfig(&ours);
    }
    ~Tiles() {
        if (before.palette) _tile_loadconfig(&before);
        else _tile_release();
    }
};

// Columns of a weight, as pairs of k: [16 columns][2]. s_*: the distance to the next pair, group of k, or 16 columns.
struct Columns {
    const bf16* at;
    int64_t s_pair, s_group, s_columns;
};

// Adds n groups of k to the sums c[16 * N rows][32 columns], which start at 0 if `fresh`. N: row tiles, 1 or 2. a: the
// first one; s_a: distance to the second. With each group, n_ahead cache lines starting at `ahead` are prefetched into
// L2.
template <int N>
inline void add_tiles(float* c, const bf16* a, int64_t s_a, Columns b, int64_t n, bool fresh, const bf16* ahead,
                      int64_t n_ahead) {
    constexpr int64_t row = 2 * COLUMNS, pitch = row * sizeof(float);
    const int64_t pair = b.s_pair * sizeof(bf16);
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, pitch);
        _tile_loadd(1, c + COLUMNS, pitch);
        if (N > 1) { _tile_loadd(2, c + TILE * row, pitch); _tile_loadd(3, c + TILE * row + COLUMNS, pitch); }
    }
    for (int64_t g = 0; g < n; g++, a += A_TILE, b.at += b.s_group) {
        for (int64_t i = 0; i < n_ahead; i++, ahead += 64 / sizeof(bf16)) __builtin_prefetch(ahead, 0, 2);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b.at, pair);
        _tile_loadd(7, b.at + b.s_columns, pair);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (N > 1) { _tile_loadd(5, a + s_a, 64); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); }
    }
    _tile_stored(0, c, pitch);
    _tile_stored(1, c + COLUMNS, pitch);
    if (N > 1) { _tile_stored(2, c + TILE * row, pitch); _tile_stored(3, c + TILE * row + COLUMNS, pitch); }
}

// The product of n rows, as [tile of 16 rows][group of k][row][GROUP], with all columns of `out`. read(column, group,
// n): WIDE columns starting at `column`, and n groups. ahead(column, group): where they lie, to be prefetched into L2
// before; or null.
template <class Out, class Read, class Ahead>
void tiled_product(const bf16* rows, int64_t n, int64_t n_groups, int n_threads, const Out& out, const Read& read,
                   const Ahead& ahead) {
    constexpr int64_t height = 2 * TILE, width = 2 * COLUMNS;  // of the sums in registers
    const int64_t n_pairs = (n + height - 1) / height, part = std::min(n_groups, PART);
    const int64_t n_blocks = (2 * n_pairs * part + TASK_TILES - 1) / TASK_TILES;
    const bool is_whole = part == n_groups;
    each_range((out.n_out + WIDE - 1) / WIDE, n_blocks, n_threads, [&](int64_t start, int64_t end, int64_t block) {
        const Tiles shapes;
        const int64_t first = block * n_pairs / n_blocks, n_here = (block + 1) * n_pairs / n_blocks - first;
        const int64_t n_sums = 2 * n_here * height * width, n_ahead = GROUP_LINES / (2 * n_here);
        alignas(64) float own[height * width];  // the sums of all k, if they are one part
        float* sums = is_whole ? own : reinterpret_cast<float*>(sum_memory(TOGETHER * n_sums * sizeof(float)));
        // The sums of one part and WIDE columns; `lines` are prefetched meanwhile.
        const auto multiply = [&](int64_t column, int64_t g, float* c, const bf16* lines) {
            const int64_t n_part = std::min(part, n_groups - g);
            const bool is_last = g + n_part == n_groups;
            const Columns b = read(column, g, n_part);
            for (int64_t i = 0; i < 2 * n_here; i++, c += is_whole ? 0 : height * width) {
                const int64_t row = (first + i / 2) * height, n_rows = std::min(height, n - row);
                const int64_t at = column + i % 2 * width;
                const bf16* a = rows + row * n_groups * GROUP + g * A_TILE;
                const Columns half{b.at + i % 2 * 2 * b.s_columns, b.s_pair, b.s_group, b.s_columns};
                const auto add = [&](auto n_tiles) {
                    add_tiles<decltype(n_tiles)::value>(c, a, n_groups * A_TILE, half, n_part, g == 0, lines,
                                                        lines ? n_ahead : 0);
                };
                if (is_last) out.expect(row, n_rows, at);
                if (n_rows > TILE) add(std::integral_constant<int, 2>());
                else add(std::integral_constant<int, 1>());
                if (is_last) out.write(c, int(width), row, n_rows, at);
                if (lines) lines += n_part * n_ahead * (64 / sizeof(bf16));
            }
        };
        for (int64_t from = start, to; from < end; from = to) {
            to = is_whole ? end : std::min(from + TOGETHER, end);
            for (int64_t g = 0; g < n_groups; g += part)
                for (int64_t p = from; p < to; p++) {
                    const bf16* next = nullptr;
                    if (p + 1 < to) next = ahead((p + 1) * WIDE, g);
                    else if (g + part < n_groups) next = ahead(from * WIDE, g + part);
                    else if (to < end) next = ahead(to * WIDE, 0);
                    multiply(p * WIDE, g, sums + (is_whole ? 0 : (p - from) * n_sums), next);
                }
        }
    });
}
#endif

}  // namespace
