// Vectors of the machine's widest kind, by the vector extensions of GCC 12+ and Clang, and operations on them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, NV = 4;  // lanes of a vector, vectors per row of a register tile
#elif defined(__AVX2__)
constexpr int W = 8, NV = 2;
#else
constexpr int W = 4, NV = 2;
#endif
#ifdef __AVX512BF16__
constexpr bool HAS_PAIRS = true;  // an instruction multiplies pairs of bfloat16
#else
constexpr bool HAS_PAIRS = false;
#endif
constexpr int MR = 6;  // rows of a register tile
constexpr float LOG2E = 1.4426950408889634f;

typedef float vf __attribute__((vector_size(W * 4), aligned(4)));
typedef int32_t vi __attribute__((vector_size(W * 4), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(W * 4), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(W * 2), aligned(2)));
typedef int8_t vb __attribute__((vector_size(W), aligned(1)));
typedef uint8_t vub __attribute__((vector_size(W), aligned(1)));

struct bf16 { uint16_t bits; };
struct k8v4 { int8_t bits; };  // a key's number in 8 bits; in the same pools, values have 4 bits, two in a byte
// Numbers of a head that share a scale and a minimum in 4 bits: two bfloat16, [pages, page, n_kv_heads, groups, 2].
inline int group_of(int64_t dim) { return dim % 32 ? 16 : 32; }
struct e4m3 { uint8_t bits; };  // sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity

inline vf load(const float* p) { return *reinterpret_cast<const vf*>(p); }
inline vf load(const bf16* p) {  // two instructions on x86; GCC 12 compiles the last form to five or more
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
#else
    vh half;
    std::memcpy(&half, p, sizeof half);
    return reinterpret_cast<vf>(__builtin_convertvector(half, vu) << 16);
#endif
}
inline vf load(const int8_t* p) {  // likewise
#if defined(__AVX512F__)
    return __builtin_convertvector((vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), vf);
#elif defined(__AVX2__)
    return __builtin_convertvector((vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), vf);
#else
    vb small;
    std::memcpy(&small, p, sizeof small);
    return __builtin_convertvector(__builtin_convertvector(small, vi), vf);
#endif
}
inline vf load(const k8v4* p) { return load(&p->bits); }
// number * scale + minimum for a group of 4-bit numbers; of a byte, the low half is the first.
inline void widen_halves(const uint8_t* from, float* to, int group, float scale, float minimum) {
#ifdef __AVX2__
    const auto sixteen = [&](int d) {  // in the low 4 bits of bytes; AVX-512 ignores the other bits
        const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + d / 2));
        return _mm_unpacklo_epi8(both, _mm_srli_epi16(both, 4));
    };
#endif
#if defined(__AVX512F__)
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 table = _mm512_fmadd_ps(numbers, _mm512_set1_ps(scale), _mm512_set1_ps(minimum));
    for (int d = 0; d < group; d += 16)
        _mm512_storeu_ps(to + d, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(sixteen(d)), table));
#elif defined(__AVX2__)
    for (int d = 0; d < group; d += 16) {
        const __m128i numbers = _mm_and_si128(sixteen(d), _mm_set1_epi8(15));
        const auto widened = [&](__m128i eight) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)); };
        *reinterpret_cast<vf*>(to + d) = (vf)widened(numbers) * scale + minimum;
        *reinterpret_cast<vf*>(to + d + 8) = (vf)widened(_mm_srli_si128(numbers, 8)) * scale + minimum;
    }
#else
    for (int d = 0; d < group; d++) to[d] = (from[d / 2] >> d % 2 * 4 & 15) * scale + minimum;
#endif
}
inline vf load(const e4m3* p) {  // its bits, shifted into a float's, are the number times 2^-120, also if subnormal
#if defined(__AVX512F__)
    vu wide = (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
    vu wide = (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
    vub small;
    std::memcpy(&small, p, sizeof small);
    vu wide = __builtin_convertvector(small, vu);
#endif
    return reinterpret_cast<vf>((wide & 0x80) << 24 | (wide & 0x7F) << 20) * 0x1p120f;
}
inline void store(float* p, vf x) { *reinterpret_cast<vf*>(p) = x; }
inline void store(bf16* p, vf x) {  // to nearest even; NaN stays NaN
#ifdef __AVX512BF16__
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    vu bits = reinterpret_cast<vu>(x);
    vu near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    near = (x != x) ? (vu{} + 0x7FC0) : near;
#ifdef __AVX512F__
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)near));
#else
    vh half = __builtin_convertvector(near, vh);
    std::memcpy(p, &half, sizeof half);
#endif
#endif
}
template <class T>
inline void store(T* p, vf a, vf b) {  // a whole cache line in bfloat16, which then need not be read before
#ifdef __AVX512BF16__
    if constexpr (sizeof(T) == 2) {
        _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
        return;
    }
#endif
    store(p, a), store(p + W, b);
}
template <class T, class U>
inline vf rounded(vf x) {  // rounds to T; if storing it as U does so too, returns it unchanged
    if constexpr (sizeof(U) == sizeof(T)) return x;
    T near[W];
    store(near, x);
    return load(near);
}
// Stores the lowest byte of each lane.
inline void store_bytes(void* p, vi x) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // GCC 12 compiles the last form to 30 instructions there
    const __m256i fours = _mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi32(0x0C080400));
    const __m256i eight = _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm256_castsi256_si128(eight));
#else
    const vb small = __builtin_convertvector(x, vb);
    std::memcpy(p, &small, sizeof small);
#endif
}
inline void store(int8_t* p, vf x) {  // for numbers within 127; rounds to nearest even
    store_bytes(p, __builtin_convertvector((x + 0x1.8p23f) - 0x1.8p23f, vi));
}
inline void store(k8v4* p, vf x) { store(&p->bits, x); }
inline void store(e4m3* p, vf x) {  // for numbers within 448; rounds to nearest even
    vu bits = reinterpret_cast<vu>(x * 0x1p-120f);
    vu near = (bits & 0x7FFFFFFFu) + 0x7FFFF + ((bits >> 20) & 1);
    store_bytes(p, reinterpret_cast<vi>((bits >> 24 & 0x80) | (near >> 20 & 0x7F)));
}
inline float get(float x) { return x; }
inline float get(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    p->bits = x != x ? 0x7FC0 : uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
template <class T>
inline T near(float x) {
    T y;
    put(&y, x);
    return y;
}

inline float get(int8_t x) { return x; }
inline float get(e4m3 x) {
    uint32_t bits = uint32_t(x.bits & 0x80) << 24 | uint32_t(x.bits & 0x7F) << 20;
    float y;
    std::memcpy(&y, &bits, 4);
    return y * 0x1p120f;
}
inline void put(int8_t* p, float x) { *p = int8_t((x + 0x1.8p23f) - 0x1.8p23f); }
inline void put(k8v4* p, float x) { put(&p->bits, x); }
inline void put(e4m3* p, float x) {
    uint32_t bits;
    x *= 0x1p-120f;
    std::memcpy(&bits, &x, 4);
    const uint32_t near = (bits & 0x7FFFFFFFu) + 0x7FFFF + (bits >> 20 & 1);
    p->bits = uint8_t((bits >> 24 & 0x80) | (near >> 20 & 0x7F));
}

// Loads or stores a vector of a row of which `left` numbers remain. If these are fewer than W, only they are read or
// written, and the other lanes of a loaded vector are `rest`.
template <class T>
inline vf load_some(const T* p, int64_t left, float rest = 0.0f) {
    if (left >= W) return load(p);
    T some[W];
    for (T& x : some) put(&x, rest);
    std::memcpy(some, p, left * sizeof(T));
    return load(some);
}
template <class T>
inline void store_some(T* p, vf x, int64_t left) {
    if (left >= W) return store(p, x);
    T some[W];
    store(some, x);
    std::memcpy(p, some, left * sizeof(T));
}

// Calls f(d, left) for each vector of a row of n numbers: it begins at d, and `left` numbers belong to the row. For
// whole vectors, `left` is a constant, so that load_some and store_some need no test.
template <class F>
inline void each_vector(int64_t n, const F& f) {
    int64_t d = 0;
    for (; d + W <= n; d += W) f(d, std::integral_constant<int64_t, W>());
    if (d < n) f(d, n - d);
}

template <class V>
inline V vmax(V a, V b) { return a > b ? a : b; }

template <int M, int... I>
inline void swap_blocks(vf& a, vf& b, std::integer_sequence<int, I...>) {
    vf low = __builtin_shufflevector(a, b, ((I & M) ? W + I - M : I)...);
    b = __builtin_shufflevector(a, b, ((I & M) ? W + I : I + M)...);
    a = low;
}
template <int M>
inline void transpose(vf* x) {  // W x W, in place
    for (int i = 0; i < W; i++)
        if (!(i & M)) swap_blocks<M>(x[i], x[i + M], std::make_integer_sequence<int, W>());
    if constexpr (M > 1) transpose<M / 2>(x);
}

template <int M, class V, int... I>
inline V flipped(V a, std::integer_sequence<int, I...>) { return __builtin_shufflevector(a, a, (I ^ M)...); }
template <int M = W / 2, class V>
inline auto top(V a) {
    a = vmax(a, flipped<M>(a, std::make_integer_sequence<int, W>()));
    if constexpr (M > 1) return top<M / 2>(a);
    return a[0];
}
template <int M = W / 2>
inline float sum(vf a) {
    a += flipped<M>(a, std::make_integer_sequence<int, W>());
    if constexpr (M > 1) return sum<M / 2>(a);
    return a[0];
}

// 2^x with an error of 2e-7, for x <= 127. Returns 0 far below the smallest normal number, and for -inf; NaN for NaN.
inline vf exp2(vf x) {
#ifdef __AVX512DQ__
    const vf f = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // within 0 and 1
    vf y = f * 1.867130104e-3f + 9.017030227e-3f;
    y = y * f + 5.579991320e-2f;
    y = y * f + 2.401644501e-1f;
    y = y * f + 6.931513118e-1f;
    y = y * f + 1.0f;  // so that 2^0 is exactly 1
    return (vf)_mm512_scalef_ps((__m512)y, (__m512)x);
#else
    // Adding MAGIC rounds to an integer, whose low bits, moved up, are 2 to its power, and 0 for -127. NaN stays NaN.
    constexpr float MAGIC = 0x1.8p23f + 127;
    const vf clipped = vmax(vf{} - 127.0f, x), shifted = clipped + MAGIC;
    const vf f = clipped - (shifted - MAGIC);  // within 0.5 of 0
    vf y = f * 1.5403530e-4f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    return y * reinterpret_cast<vf>(reinterpret_cast<vi>(shifted) << 23);
#endif
}

// Calls f with n, from 1 to MOST, as a constant of its type.
template <int MOST, class F>
inline void by_count(int64_t n, const F& f) {
    if (n == MOST) f(std::integral_constant<int, MOST>());
    else if constexpr (MOST > 1) by_count<MOST - 1>(n, f);
}

// c[r][0 .. V * W) = shrink[r] * c[r][...] + sum over k of a[r][k] * b[k][...], for R rows; no shrink: c starts at 0
template <int R, int V, class B>
inline void tile(float* c, int s_c, const float* a, int s_a, const B* const* b, int o_b, int n_k,
                 const float* shrink) {
    vf t[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) t[r][v] = shrink ? load(c + r * s_c + v * W) * shrink[r] : vf{};
    for (int k = 0; k < n_k; k++) {
        vf row[V];
        for (int v = 0; v < V; v++) row[v] = load(b[k] + o_b + v * W);
        for (int r = 0; r < R; r++) {
            float x = a[r * s_a + k];
            for (int v = 0; v < V; v++) t[r][v] += x * row[v];
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(c + r * s_c + v * W, t[r][v]);
}

template <int R, int V, class B>
inline void rows(int n, float* c, int s_c, const float* a, int s_a, const B* const* b, int o_b, int n_k,
                 const float* shrink) {
    for (; n >= R; n -= R, c += R * s_c, a += R * s_a, shrink += shrink ? R : 0)
        tile<R, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
    if constexpr (R > 1) {
        if (n) rows<R - 1, V>(n, c, s_c, a, s_a, b, o_b, n_k, shrink);
    }
}

// The product of `tile` for n rows and n_columns, a multiple of W.
template <class B>
inline void product(int n, int n_columns, float* c, int s_c, const float* a, int s_a, const B* const* b, int n_k,
                    const float* shrink) {
    int at = 0;
    for (; at + NV * W <= n_columns; at += NV * W) rows<MR, NV>(n, c + at, s_c, a, s_a, b, at, n_k, shrink);
    for (; at < n_columns; at += W) rows<MR, 1>(n, c + at, s_c, a, s_a, b, at, n_k, shrink);
}

}  // namespace
