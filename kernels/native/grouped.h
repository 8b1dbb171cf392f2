// Linear layers over weights of 4 or 8 bits with a scale, and perhaps a minimum, per group of 32 inputs.
//
// The rows are quantised to 8 bits in the same groups. So the sum over a group is exact in integers, and the groups of
// a row are added in order: the bits of a row's result do not depend on the batch. Many rows are computed in another
// way where that is faster, except in deterministic mode.
//
// A panel is 16 columns: [group][8 quads][16 columns][4 k], as bytes (8 bits), or with quads 2i and 2i + 1 in the low
// and high halves of bytes (4 bits). Numbers are stored without a sign, as number + `zero`; the dot product with `zero`
// is subtracted. Floats of 4 bits (E2M1) are stored as they are; a table gives twice their value, which is an integer.
// Scales and minimums are float16 [group][16], divided by a factor per column.
#pragma once

#include "thread_pool.h"
#include "tiles.h"
#include "vector.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int FLOAT4 = 5;               // in place of a number of bits: E2M1
constexpr int GROUP_BYTES(int bits) { return GROUP * COLUMNS / (bits == 8 ? 1 : 2); }  // of a group of a panel
constexpr int PARTS = COLUMNS / W;      // vectors that hold a number per column
constexpr int TASK = 64, TASK_ROWS = 64;  // columns and rows of a task
constexpr int AHEAD_BYTES = 4096;       // bytes of a panel that are prefetched

struct Weight {  // of a linear layer, in panels, with its bias
    const void* panels;
    const uint16_t *scale, *minimum;  // of a quantised weight; minimum: may be null
    const float* factor;              // per column, padded to whole panels
    const void* bias;                 // in the rows' type, or null
    int64_t n_in, n_out;
    int64_t n_bits;                   // 0: in the rows' type; or FLOAT4
    int64_t deterministic;            // a row has the same bits in any batch, as it always has if n_bits is 0
};

// Rows in 8 bits: [tile of rows][group][row][32] numbers, and their sums and scales per [tile][group][row].
struct SmallRows {
    int8_t* numbers;
    float *scale, *total;  // total: the sum of the numbers, times their scale
    int32_t* offset;       // minus the contribution of the weight's zero to the dot product; see OFFSET_BITS
    int64_t n_groups, tile;
    int64_t at(int64_t row, int64_t group) const { return ((row / tile * n_groups) + group) * tile + row % tile; }
};

inline vf load_half(const uint16_t* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__) && defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    vh half;
    std::memcpy(&half, p, sizeof half);
    const vu wide = __builtin_convertvector(half, vu);
    return reinterpret_cast<vf>((wide & 0x8000) << 16 | (wide & 0x7FFF) << 13) * 0x1p112f;  // also if subnormal
#endif
}

// Whether `quad` returns signed numbers. AVX2 multiplies only unsigned bytes by signed ones, so `Dot` multiplies the
// absolute number of the weight by the number of the row, to which it first applies the sign of the weight.
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define BANYAN_AVX2
template <int BITS> constexpr bool SIGNED = BITS != 4;
#else
template <int BITS> constexpr bool SIGNED = false;
#endif
// The number that is added to those of a weight to make them unsigned, unless SIGNED.
constexpr int ZERO(int bits, bool has_min) { return bits == 8 ? 128 : bits == FLOAT4 ? 12 : has_min ? 0 : 8; }

constexpr int32_t OFFSET_BITS = SIGNED<8> ? 0xFFFF : -1;  // the bits of an offset that are kept: see the `Dot` of AVX2

// Sums the products of 4 bytes of a weight and 4 of a row in each lane. Without an instruction for this, sums of pairs
// are kept in 16 bits over a group, which is enough for 4 bits: 8 * 2 * 15 * 127, and 8 * 2 * 12 * 127 with a sign.
#if (defined(__AVX512VNNI__) && defined(__AVX512F__)) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
template <int BITS>
struct Dot {
    vi sums;
    void start(int32_t offset) { sums = vi{} + offset; }
    void add(vi w, vi x) {
#ifdef __AVX512F__
        sums = (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)x);
#else
        sums = (vi)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, (__m256i)x);
#endif
    }
    vi get() const { return sums; }
};
#elif defined(__AVX512BW__)
typedef int16_t v16 __attribute__((vector_size(W * 4), aligned(4)));
template <int BITS>
struct Dot {  // a number of more than 4 bits is split into two
    v16 low, high;
    int32_t offset;
    static v16 pairs(vi w, vi x) { return (v16)_mm512_maddubs_epi16((__m512i)w, (__m512i)x); }
    static vi quads(v16 x) { return (vi)_mm512_madd_epi16((__m512i)x, _mm512_set1_epi16(1)); }
    void start(int32_t from) { low = high = v16{}, offset = from; }
    void add(vi w, vi x) {
        if constexpr (BITS == 4) low += pairs(w, x);
        else low += pairs(w & 0x0F0F0F0F, x), high += pairs(w >> 4 & 0x0F0F0F0F, x);
    }
    vi get() const { return quads(low) + offset + (BITS == 4 ? vi{} : quads(high) << 4); }
};
#elif defined(BANYAN_AVX2)
typedef int16_t v16 __attribute__((vector_size(W * 4), aligned(4)));
template <int BITS>
struct Dot {
    vi sums;  // 8 bits: sums of four; else of pairs, in 16 bits
    static v16 pairs(vi w, vi x) { return (v16)_mm256_maddubs_epi16((__m256i)w, (__m256i)x); }
    static vi quads(vi x) { return (vi)_mm256_madd_epi16((__m256i)x, _mm256_set1_epi16(1)); }
    // In 16 bits a sum may overflow on the way, but not at the end: the 16 numbers of a lane with their part of the
    // offset, and the part of the other 16, are each at most 16 * 8 * 127. The offset is in the lower lane of a pair.
    void start(int32_t offset) { sums = BITS == 4 ? vi{} + offset : vi{}; }
    void add(vi w, vi x) {
        if constexpr (BITS != 4) x = (vi)_mm256_sign_epi8((__m256i)x, (__m256i)w), w = (vi)_mm256_abs_epi8((__m256i)w);
        if constexpr (BITS == 8) sums += quads((vi)pairs(w, x));
        else sums = (vi)((v16)sums + pairs(w, x));
    }
    vi get() const { return BITS == 8 ? sums : quads(sums); }
};
#else
template <int BITS>
struct Dot {
    vi sums;
    void start(int32_t offset) { sums = vi{} + offset; }
    void add(vi w, vi x) {
        for (int i = 0; i < 32; i += 8) sums += (w >> i & 0xFF) * (x << (24 - i) >> 24);
    }
    vi get() const { return sums; }
};
#endif
// GCC 12 keeps the sums of inlined calls in memory.
#define NOT_INLINED __attribute__((noinline))
constexpr int DOT_ROWS = W == 16 ? 8 : 4;  // rows whose sums fit into registers

// Twice the E2M1 numbers in the lowest 4 bits of the bytes of `codes`, plus ZERO unless SIGNED.
inline vi doubles(vi codes) {
    constexpr int z = SIGNED<FLOAT4> ? 0 : ZERO(FLOAT4, false);
    alignas(16) static constexpr int8_t table[] = {z, z + 1, z + 2, z + 3, z + 4, z + 6, z + 8, z + 12,
                                                   z, z - 1, z - 2, z - 3, z - 4, z - 6, z - 8, z - 12};
#if defined(__AVX512BW__)
    return (vi)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), (__m512i)codes);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table)), (__m256i)codes);
#else
    uint8_t bytes[sizeof codes];
    std::memcpy(bytes, &codes, sizeof codes);
    for (uint8_t& x : bytes) x = uint8_t(table[x]);
    std::memcpy(&codes, bytes, sizeof codes);
    return codes;
#endif
}

// The 4 k of W columns in quad i + half. i is even, and `half` a constant once the loop over it is unrolled.
template <int BITS>
inline vi quad(const uint8_t* group, int i, int half, int part) {
    vi w;
    std::memcpy(&w, group + (BITS == 8 ? i + half : i / 2) * 64 + part * W * 4, sizeof w);
    if constexpr (BITS == 8) return SIGNED<BITS> ? w ^ int32_t(0x80808080) : w;
    w = (half ? w >> 4 : w) & 0x0F0F0F0F;
    return BITS == FLOAT4 ? doubles(w) : w;
}

// Adds a group to the sums t of R rows. dots: the products over the group; scale, minimum: those of the columns; at: the
// place of the first row's group in x.
template <int R, bool HAS_MIN, class D>
inline void add_group(vf (*t)[PARTS], const D (*dots)[PARTS], const vf* scale, const vf* minimum, const SmallRows& x,
                      int64_t at) {
    for (int p = 0; p < PARTS; p++) {
        const vf s = scale[p], m = HAS_MIN ? minimum[p] : vf{};
        for (int r = 0; r < R; r++) {
            t[r][p] += (s * x.scale[at + r]) * __builtin_convertvector(dots[r][p].get(), vf);
            if (HAS_MIN) t[r][p] += m * x.total[at + r];
        }
    }
}

// Calls f(number of rows, first row) for blocks of n rows, as large as registers hold.
template <class F>
inline void in_blocks(int n, const F& f) {
    int r = 0;
    const auto some = [&](auto rows) {
        for (; n - r >= rows.value; r += rows.value) f(rows, r);
    };
    if constexpr (DOT_ROWS >= 8) some(std::integral_constant<int, 8>());
    if constexpr (DOT_ROWS >= 4) some(std::integral_constant<int, 4>());
    some(std::integral_constant<int, 2>());
    some(std::integral_constant<int, 1>());
}

// Computes c[r][0 .. 16), the products of a panel with R rows of one tile, starting at row `first`.
template <int BITS, int R, bool HAS_MIN>
NOT_INLINED void few_rows(const Weight& w, int64_t panel, const SmallRows& x, int64_t first, float* c) {
    constexpr int n_bytes = GROUP_BYTES(BITS);
    const uint8_t* q = static_cast<const uint8_t*>(w.panels) + panel * x.n_groups * n_bytes;
    const int64_t o_scale = panel * x.n_groups * COLUMNS;
    int64_t at = x.at(first, 0);
    vf t[R][PARTS] = {};
    for (int64_t g = 0; g < x.n_groups; g++, q += n_bytes, at += x.tile) {
        for (int i = 0; i < n_bytes; i += 64) __builtin_prefetch(q + AHEAD_BYTES + i);
        const uint16_t* scale = w.scale + o_scale + g * COLUMNS;
        const uint16_t* minimum = HAS_MIN ? w.minimum + o_scale + g * COLUMNS : scale;
        __builtin_prefetch(scale + AHEAD_BYTES / n_bytes * COLUMNS);
        if (HAS_MIN) __builtin_prefetch(minimum + AHEAD_BYTES / n_bytes * COLUMNS);
        Dot<BITS> dots[R][PARTS];
        for (int r = 0; r < R; r++)
            for (int p = 0; p < PARTS; p++) dots[r][p].start(x.offset[at + r]);
        const int8_t* numbers = x.numbers + at * GROUP;
        const auto two_quads = [&](int i) {
            for (int half = 0; half < 2; half++) {
                vi quads[PARTS];
                for (int p = 0; p < PARTS; p++) quads[p] = quad<BITS>(q, i, half, p);
                for (int r = 0; r < R; r++) {
                    int32_t four;
                    std::memcpy(&four, numbers + r * GROUP + 4 * (i + half), sizeof four);
                    for (int p = 0; p < PARTS; p++) dots[r][p].add(quads[p], vi{} + four);
                }
            }
        };
        if constexpr (R == 1) two_quads(0), two_quads(2), two_quads(4), two_quads(6);
        else
#pragma GCC unroll 1  // otherwise GCC holds the numbers of all rows at once, which do not fit into registers
            for (int i = 0; i < GROUP / 4; i += 2) two_quads(i);
        vf s[PARTS], m[PARTS] = {};
        for (int p = 0; p < PARTS; p++) {
            s[p] = load_half(scale + p * W);
            if (HAS_MIN) m[p] = load_half(minimum + p * W);
        }
        add_group<R, HAS_MIN>(t, dots, s, m, x, at);
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) store(c + r * COLUMNS + p * W, t[r][p]);
}

#ifdef BANYAN_TILES
// Many rows on Intel's AMX: panels are dequantised to bfloat16, the rows are converted to it, and both are multiplied
// in tiles. (Tiles of int8 would have to be stored after each group, which takes longer than multiplying them.)
constexpr int MIN_TILED = 17;  // rows from which this is faster (measured)

// A vector has 32 words: a pair of k for each column. Each 8 k are in the order of PAIRS, as they come out of bytes.
constexpr int PAIRS[8] = {0, 2, 4, 6, 1, 3, 5, 7};

inline __m512i to_bf16(__m512h x) {  // numbers below 2^-14 become 0
    const __m512i near = _mm512_srai_epi16(_mm512_add_epi16((__m512i)x, _mm512_set1_epi16(4)), 3);
    const __m512i cut = _mm512_and_si512(near, _mm512_set1_epi16(int16_t(0x8FFF)));
    const __mmask32 is_normal = _mm512_test_epi16_mask((__m512i)x, _mm512_set1_epi16(0x7C00));
    return _mm512_maskz_add_epi16(is_normal, cut, _mm512_set1_epi16((127 - 15) << 7));
}

inline __m512h both(const uint16_t* p) {  // 16 float16, each twice
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return (__m512h)_mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
}

// Dequantises a group of a panel to [16 pairs of k][16 columns][2].
template <int BITS, bool HAS_MIN>
inline void dequantise(bf16* to, const uint8_t* q, const uint16_t* scale, const uint16_t* minimum) {
    const __m512h s = both(scale), least = HAS_MIN ? both(minimum) : _mm512_setzero_ph();
    const auto put = [&](__m512h x) {
        x = HAS_MIN ? _mm512_fmadd_ph(x, s, least) : _mm512_mul_ph(x, s);
        _mm512_store_si512(to, to_bf16(x));
        to += 2 * COLUMNS;
    };
    if constexpr (BITS != 8) {
        alignas(64) static constexpr int16_t whole[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                                        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        alignas(64) static constexpr int16_t floats[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,
                                                         0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        const __m512i zero = _mm512_set1_epi16(BITS == 4 && !HAS_MIN ? 8 : 0);
        const __m512i from = _mm512_sub_epi16(_mm512_load_si512(BITS == 4 ? whole : floats), zero);
        const __m512i numbers = (__m512i)_mm512_cvtepi16_ph(from);
        for (int i = 0; i < 4; i++) {  // uses 5 bits of each word; the table repeats, so the fifth is ignored
            const __m512i w = _mm512_loadu_si512(q + 64 * i);
            put((__m512h)_mm512_permutexvar_epi16(w, numbers));
            put((__m512h)_mm512_permutexvar_epi16(_mm512_srli_epi16(w, 4), numbers));
            put((__m512h)_mm512_permutexvar_epi16(_mm512_srli_epi16(w, 8), numbers));
            put((__m512h)_mm512_permutexvar_epi16(_mm512_srli_epi16(w, 12), numbers));
        }
    } else {
        for (int i = 0; i < 8; i += 2) {
            const __m512i flip = _mm512_set1_epi8(int8_t(0x80));
            const __m512i w = _mm512_xor_si512(_mm512_loadu_si512(q + 64 * i), flip);
            const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(q + 64 * i + 64), flip);
            put(_mm512_cvtepi16_ph(_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8)));
            put(_mm512_cvtepi16_ph(_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8)));
            put(_mm512_cvtepi16_ph(_mm512_srai_epi16(w, 8)));
            put(_mm512_cvtepi16_ph(_mm512_srai_epi16(x, 8)));
        }
    }
}

template <class T>
void order_pairs(bf16* to, int64_t s_to, const T* from, int64_t n_in) {  // one row; s_to: from one group to the next
    static const __m512i index = [] {
        alignas(64) int16_t i[32];
        for (int k = 0; k < 32; k++) i[k] = int16_t(k / 8 * 8 + PAIRS[k % 8]);
        return _mm512_load_si512(i);
    }();
    for (int64_t k = 0; k < n_in; k += GROUP, to += s_to) {
        alignas(64) bf16 group[GROUP];
        for (int i = 0; i < GROUP; i += W)
            store(group + i, k + i < n_in ? load_some(from + k + i, n_in - k - i) : vf{});
        _mm512_store_si512(to, _mm512_permutexvar_epi16(index, _mm512_load_si512(group)));
    }
}

// Dequantises n groups of WIDE columns starting at group g to [WIDE / 16][n][GROUP / 2][16][2]. Columns beyond the last
// panel repeat it.
template <int BITS, bool HAS_MIN>
Columns wide_columns(const Weight& w, int64_t column, int64_t g, int64_t n, int64_t n_groups, bf16* to) {
    constexpr int n_bytes = GROUP_BYTES(BITS);
    const int64_t last = (w.n_out - 1) / COLUMNS;
    for (int64_t i = 0; i < WIDE / COLUMNS; i++) {
        const int64_t panel = column / COLUMNS + i < last ? column / COLUMNS + i : last;
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = panel * n_groups + g + j, o = at * COLUMNS;
            const uint8_t* q = static_cast<const uint8_t*>(w.panels) + at * n_bytes;
            for (int k = 0; k < n_bytes; k += 64) __builtin_prefetch(q + AHEAD_BYTES + k);
            dequantise<BITS, HAS_MIN>(to + (i * n + j) * GROUP * COLUMNS, q, w.scale + o, HAS_MIN ? w.minimum + o : nullptr);
        }
    }
    return {to, 2 * COLUMNS, GROUP * COLUMNS, n * GROUP * COLUMNS};
}
#endif

#ifdef BANYAN_AVX2
// Many rows on AVX2: the numbers of a panel are unpacked once for all of them, some groups at a time.
constexpr int MIN_UNPACKED = 8;  // rows from which this is faster (measured)
constexpr int PART_GROUPS = 16;  // groups that are unpacked at a time (measured: 8 take 1.03 of the time, 32 as long)

// Keeps GCC from computing the next sums before these, or reading a number again at each use: it would hold more than
// there are registers. With it, 4 bits take 0.8 of the time.
inline void pin(vi& x) { asm volatile("" : "+x"(x)); }

// c[r][0 .. 16) += the products of n_groups groups of R rows of one tile, starting at place `at` of SmallRows, and of
// 16 columns, [group][8 quads][16].
template <int BITS, int R, bool HAS_MIN>
NOT_INLINED void unpacked_rows(const vi* w, const vf* scale, const vf* minimum, const SmallRows& x, int64_t at,
                               int n_groups, float* c) {
    vf t[R][PARTS];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) t[r][p] = load(c + r * COLUMNS + p * W);
    for (int g = 0; g < n_groups; g++, at += x.tile, scale += PARTS, minimum += PARTS) {
        Dot<BITS> dots[R][PARTS];
        for (int r = 0; r < R; r++)
            for (int p = 0; p < PARTS; p++) dots[r][p].start(x.offset[at + r]);
#pragma GCC unroll 8
        for (int i = 0; i < GROUP / 4; i++, w += PARTS) {
            vi quads[PARTS];
            for (int p = 0; p < PARTS; p++) pin(quads[p] = w[p]);
            for (int r = 0; r < R; r++) {
                int32_t four;
                std::memcpy(&four, x.numbers + (at + r) * GROUP + 4 * i, sizeof four);
                for (int p = 0; p < PARTS; p++) dots[r][p].add(quads[p], vi{} + four);
            }
            for (int r = 0; r < R; r++)
                for (int p = 0; p < PARTS; p++) pin(dots[r][p].sums);
        }
        add_group<R, HAS_MIN>(t, dots, scale, minimum, x, at);
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) store(c + r * COLUMNS + p * W, t[r][p]);
}

// Computes c[r][0 .. 16), the products of a panel with n rows, starting at row `first`, in the order of few_rows.
template <int BITS, bool HAS_MIN>
void unpacked_panel(const Weight& w, int64_t panel, const SmallRows& x, int64_t first, int n, float* c) {
    vi numbers[PART_GROUPS * GROUP / 4 * PARTS];
    vf scale[PART_GROUPS * PARTS], minimum[PART_GROUPS * PARTS] = {};
    std::memset(c, 0, n * COLUMNS * sizeof(float));
    for (int64_t g = 0; g < x.n_groups; g += PART_GROUPS) {
        const int n_groups = int(std::min<int64_t>(PART_GROUPS, x.n_groups - g));
        const int64_t at = panel * x.n_groups + g;
        const uint8_t* q = static_cast<const uint8_t*>(w.panels) + at * GROUP_BYTES(BITS);
        for (int i = 0; i < n_groups * PARTS; i++) {
            scale[i] = load_half(w.scale + at * COLUMNS + i * W);
            if (HAS_MIN) minimum[i] = load_half(w.minimum + at * COLUMNS + i * W);
        }
        vi* to = numbers;
        for (int i = 0; i < n_groups; i++, q += GROUP_BYTES(BITS)) {
            for (int b = 0; b < GROUP_BYTES(BITS); b += 64) __builtin_prefetch(q + AHEAD_BYTES + b);
            for (int k = 0; k < GROUP / 4; k++)
                for (int p = 0; p < PARTS; p++) *to++ = quad<BITS>(q, k & ~1, k & 1, p);
        }
        in_blocks(n, [&](auto rows, int r) {
            constexpr int R = decltype(rows)::value;
            unpacked_rows<BITS, R, HAS_MIN>(numbers, scale, minimum, x, x.at(first + r, g), n_groups, c + r * COLUMNS);
        });
    }
}
#endif

template <int BITS, bool HAS_MIN>
void panel_rows(const Weight& w, int64_t panel, const SmallRows& x, int64_t first, int n, float* c) {
#ifdef BANYAN_AVX2
    if (n >= MIN_UNPACKED) return unpacked_panel<BITS, HAS_MIN>(w, panel, x, first, n, c);
#endif
    in_blocks(n, [&](auto rows, int r) {
        few_rows<BITS, decltype(rows)::value, HAS_MIN>(w, panel, x, first + r, c + r * COLUMNS);
    });
}

// Quantises one row: each group's largest number becomes 127.
template <class T>
void quantise_row(const T* from, const SmallRows& x, int64_t row, int64_t n_in, int zero) {
    for (int64_t g = 0; g < x.n_groups; g++) {
        vf numbers[GROUP / W];
        vu most{};
        for (int i = 0; i < GROUP / W; i++) {
            const int64_t left = n_in - g * GROUP - i * W;
            numbers[i] = left > 0 ? load_some(from + g * GROUP + i * W, left) : vf{};
            most = vmax(most, reinterpret_cast<vu>(numbers[i]) & 0x7FFFFFFFu);  // as integers NaN is the largest
        }
        const uint32_t bits = top(most);
        float largest;
        std::memcpy(&largest, &bits, sizeof largest);
        const float inverse = largest > 0x1p-120f ? 127.0f / largest : 0.0f;
        const int64_t at = x.at(row, g);
        vf sums{};
        for (int i = 0; i < GROUP / W; i++) {
            const vf scaled = (numbers[i] * inverse + 0x1.8p23f) - 0x1.8p23f;
            sums += scaled;
            store(x.numbers + at * GROUP + i * W, scaled);
        }
        const float total = sum(sums);
        x.scale[at] = largest / 127.0f;
        x.total[at] = total * x.scale[at];
        x.offset[at] = -zero * int32_t(total) & OFFSET_BITS;
    }
}

// Calls make(panel, first row, n, c) for each panel and block of rows, and writes the sums c[n][16].
template <int ROWS, class Out, class F>
void each_block(int64_t n, int64_t n_out, int n_threads, const Out& out, const F& make) {
    const int64_t n_blocks = (n + ROWS - 1) / ROWS;
    each_range((n_out + TASK - 1) / TASK, n_blocks, n_threads, [&](int64_t start, int64_t end, int64_t block) {
        const int64_t first = block * ROWS;
        const int n_rows = int(n - first < ROWS ? n - first : ROWS);
        alignas(64) float c[ROWS * COLUMNS];
        for (int64_t from = start * TASK; from < end * TASK && from < n_out; from += COLUMNS) {
            make(from / COLUMNS, first, n_rows, c);
            out.write(c, COLUMNS, first, n_rows, from);
        }
    });
}

template <int BITS, bool HAS_MIN, class T, class U>
void grouped_linear(const T* x, const Weight& w, U* out, int64_t n, int64_t s_x, int64_t s_out, int n_threads) {
    const int64_t n_groups = (w.n_in + GROUP - 1) / GROUP, n_tiles = (n + TILE - 1) / TILE;
    const int n_row_threads = n * w.n_in < (1 << 16) ? 1 : n_threads;
    const Output<T, U> to{out, s_out, w.n_out, w.factor, static_cast<const T*>(w.bias)};
#ifdef BANYAN_TILES
    if (n >= MIN_TILED && !w.deterministic && has_tiles()) {
        bf16* rows = reinterpret_cast<bf16*>(row_memory(n_tiles * n_groups * A_TILE * sizeof(bf16)));
        ThreadPool::instance().run(n, n_row_threads, [&](int64_t i) {
            order_pairs(rows + i / TILE * n_groups * A_TILE + i % TILE * GROUP, A_TILE, x + i * s_x, w.n_in);
        });
        return tiled_product(rows, n, n_groups, n_threads, to, [&](int64_t column, int64_t g, int64_t n_part) {
            bf16* wide = reinterpret_cast<bf16*>(wide_memory(n_part * GROUP * WIDE * sizeof(bf16)));
            return wide_columns<BITS, HAS_MIN>(w, column, g, n_part, n_groups, wide);
        }, [](int64_t, int64_t) -> const bf16* { return nullptr; });
    }
#endif
    constexpr int zero = SIGNED<BITS> ? 0 : ZERO(BITS, HAS_MIN);
    const int64_t tile = n < TILE ? n : TILE, n_all = n_tiles * tile * n_groups;
    int8_t* numbers = reinterpret_cast<int8_t*>(row_memory(n_all * (GROUP + 12)));
    float* scale = reinterpret_cast<float*>(numbers + n_all * GROUP);
    int32_t* offset = reinterpret_cast<int32_t*>(scale + 2 * n_all);
    const SmallRows rows{numbers, scale, scale + n_all, offset, n_groups, tile};
    ThreadPool::instance().run(n, n_row_threads, [&](int64_t i) { quantise_row(x + i * s_x, rows, i, w.n_in, zero); });
    each_block<TASK_ROWS>(n, w.n_out, n_threads, to, [&](int64_t p, int64_t first, int n_rows, float* c) {
        panel_rows<BITS, HAS_MIN>(w, p, rows, first, n_rows, c);
    });
}

template <class T, class U>
void grouped_linear(const T* x, const Weight& w, U* out, int64_t n, int64_t s_x, int64_t s_out, int n_threads) {
    const auto run = [&](auto bits, auto has_min) {
        grouped_linear<decltype(bits)::value, decltype(has_min)::value>(x, w, out, n, s_x, s_out, n_threads);
    };
    const std::integral_constant<int, 4> four;
    const std::integral_constant<int, 8> eight;
    if (w.n_bits == FLOAT4) run(std::integral_constant<int, FLOAT4>(), std::false_type());
    else if (w.n_bits == 4) w.minimum ? run(four, std::true_type()) : run(four, std::false_type());
    else w.minimum ? run(eight, std::true_type()) : run(eight, std::false_type());
}

}  // namespace
