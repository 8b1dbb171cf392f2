// The CPU path of attention and its companions: plain C ABI, vector extensions of GCC 12+ and Clang, OpenMP.
//
// Attention walks a request's keys in blocks of 64, in place in their pages. A block's K is transposed once, and both
// products, Q K^T and P V, are then the same register tile: rows of A, broadcast, times whole vectors of B. Scores live
// in base 2, with an online softmax. bfloat16 is widened as it is read; sums are float32 everywhere.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, NV = 4;  // lanes of a vector, vectors of a register tile
#elif defined(__AVX2__)
constexpr int W = 8, NV = 2;
#else
constexpr int W = 4, NV = 2;
#endif
constexpr int MR = 6;            // rows of a register tile
constexpr int BLOCK = 64;        // keys
constexpr int MAX_ROWS = 256;    // of a task: tokens times query heads
constexpr int MAX_DIM = 256;
constexpr float LOG2E = 1.4426950408889634f;

typedef float vf __attribute__((vector_size(W * 4), aligned(4)));
typedef int32_t vi __attribute__((vector_size(W * 4), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(W * 4), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(W * 2), aligned(2)));

struct bf16 { uint16_t bits; };

inline vf load(const float* p) { return *reinterpret_cast<const vf*>(p); }
inline vf load(const bf16* p) {
    vh half;
    std::memcpy(&half, p, sizeof half);
    return reinterpret_cast<vf>(__builtin_convertvector(half, vu) << 16);
}
inline void store(float* p, vf x) { *reinterpret_cast<vf*>(p) = x; }
inline void store(bf16* p, vf x) {  // to nearest even; NaN stays NaN
    vu bits = reinterpret_cast<vu>(x);
    vu near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    near = (x != x) ? (vu{} + 0x7FC0) : near;
    vh half = __builtin_convertvector(near, vh);
    std::memcpy(p, &half, sizeof half);
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

inline vf vmax(vf a, vf b) { return a > b ? a : b; }

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

template <int M, int... I>
inline vf flipped(vf a, std::integer_sequence<int, I...>) { return __builtin_shufflevector(a, a, (I ^ M)...); }
template <int M = W / 2>
inline float top(vf a) {
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

// 2^x to 2e-7; 0 below the smallest normal number, -inf included; x <= 127.
inline vf exp2(vf x) {
    vf clipped = vmax(x, vf{} - 126.0f);
    vi whole = __builtin_convertvector(clipped + (clipped < 0 ? vf{} - 0.5f : vf{} + 0.5f), vi);
    vf f = clipped - __builtin_convertvector(whole, vf);  // within 0.5 of 0
    vf y = f * 1.5403530e-4f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    y = reinterpret_cast<vf>(reinterpret_cast<vi>(y) + (whole << 23));
    return x < -126.0f ? vf{} : y;
}

// c[r][0 .. V * W) = shrink[r] * c[r][...] + sum over k of a[r][k] * b[k][...], for R rows; `fresh`: c starts at 0
template <int R, int V>
inline void tile(float* c, int s_c, const float* a, int s_a, const float* const* b, int o_b, int n_k,
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

template <int V>
inline void rows(int n, float* c, int s_c, const float* a, int s_a, const float* const* b, int o_b, int n_k,
                 const float* shrink) {
    for (; n >= MR; n -= MR, c += MR * s_c, a += MR * s_a, shrink += shrink ? MR : 0)
        tile<MR, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
    switch (n) {
        case 1: return tile<1, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
        case 2: return tile<2, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
        case 3: return tile<3, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
        case 4: return tile<4, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
        case 5: return tile<5, V>(c, s_c, a, s_a, b, o_b, n_k, shrink);
    }
}

// The whole product: n rows, n_columns (a multiple of W)
inline void product(int n, int n_columns, float* c, int s_c, const float* a, int s_a, const float* const* b, int n_k,
                    const float* shrink) {
    int at = 0;
    for (; at + NV * W <= n_columns; at += NV * W) rows<NV>(n, c + at, s_c, a, s_a, b, at, n_k, shrink);
    for (; at < n_columns; at += W) rows<1>(n, c + at, s_c, a, s_a, b, at, n_k, shrink);
}

struct Call {  // one call of attention; pointers to elements of one type
    const void *q, *k, *v;
    void* out;
    const float* sinks;      // [n_heads] or null
    const int32_t* table;    // [n_requests, s_table]
    float *part, *lse;       // [n_partials, n_heads, dim], [n_partials, n_heads]
    int64_t s_q, s_out, s_page, s_slot;
    int32_t s_table, n_heads, n_kv_heads, dim, page, window;
    float scale, softcap;    // scale in base 2
};

struct Item {  // as plan.py writes it
    int32_t row, n, position, request, start, end, part, unused;
};

struct Scratch {
    float q[MAX_ROWS * MAX_DIM], acc[MAX_ROWS * MAX_DIM], weight[MAX_ROWS * BLOCK];
    float kt[MAX_DIM * BLOCK], v[BLOCK * MAX_DIM];
    float top[MAX_ROWS], shrink[MAX_ROWS];
    vf sum[MAX_ROWS];
};

template <class T>
void gather(const Call& c, const Item& item, int at, int n, int head, Scratch& x, const float** v_row) {
    const T* k_row[BLOCK];
    const int32_t* table = c.table + int64_t(item.request) * c.s_table;
    for (int s = 0; s < BLOCK; s++) {
        int t = at + (s < n ? s : 0);  // what is past the end repeats the first key, and is masked
        int64_t o = table[t / c.page] * c.s_page + (t % c.page) * c.s_slot + int64_t(head) * c.dim;
        k_row[s] = static_cast<const T*>(c.k) + o;
        const T* from = static_cast<const T*>(c.v) + o;
        if constexpr (sizeof(T) == 4) {
            v_row[s] = from;
        } else if (s < n) {
            v_row[s] = x.v + s * c.dim;
            for (int d = 0; d < c.dim; d += W) store(x.v + s * c.dim + d, load(from + d));
        }
    }
    for (int s = 0; s < (n + W - 1) / W * W; s += W)
        for (int d = 0; d < c.dim; d += W) {
            vf square[W];
            for (int i = 0; i < W; i++) square[i] = load(k_row[s + i] + d);
            transpose<W / 2>(square);
            for (int i = 0; i < W; i++) store(x.kt + (d + i) * BLOCK + s, square[i]);
        }
}

// Scores of one row against n keys from `at` become weights; returns what older sums must be multiplied with.
inline float weigh(const Call& c, float* score, int at, int n, int position, float& best, vf& total) {
    const int n_vectors = (n + W - 1) / W;
    const bool masked = at + n_vectors * W > position + 1 || n % W || (c.window && at <= position - c.window);
    vf lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    vf high = vf{} - INFINITY;
    for (int j = 0; j < n_vectors; j++) {
        vf s = load(score + j * W);
        if (c.softcap > 0) {  // scale holds 2 / softcap: tanh(x) = 1 - 2 / (exp(2x) + 1)
            vf low = s > 60.0f ? vf{} + 60.0f : s;
            s = (1.0f - 2.0f / (exp2(low) + 1.0f)) * (c.softcap * LOG2E);
        }
        if (masked) {
            vf key = lane + float(at + j * W);  // exact below 2^24 tokens
            s = key > float(position) ? vf{} - INFINITY : s;
            s = key >= float(at + n) ? vf{} - INFINITY : s;
            if (c.window) s = key <= float(position - c.window) ? vf{} - INFINITY : s;
        }
        store(score + j * W, s);
        high = vmax(high, s);
    }
    float fresh = top(high), old = best;
    best = fresh > old ? fresh : old;
    float base = best == -INFINITY ? 0.0f : best;
    float shrink = old == best ? 1.0f : std::exp2(old - base);
    vf part = vf{};
    for (int j = 0; j < n_vectors; j++) {
        vf w = exp2(load(score + j * W) - base);
        store(score + j * W, w);
        part += w;
    }
    total = total * shrink + part;
    return shrink;
}

template <class T>
void attend(const Call& c, const Item& item, int head_from, int head_to, Scratch& x) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group, dim = c.dim;
    const float* kt_row[MAX_DIM];
    const float* v_row[BLOCK];
    for (int d = 0; d < dim; d++) kt_row[d] = x.kt + d * BLOCK;

    for (int h = head_from, r = 0; h < head_to; h++)
        for (int i = 0; i < n; i++, r++) {
            const T* from = static_cast<const T*>(c.q) + (item.row + i / group) * c.s_q + (h * group + i % group) * dim;
            for (int d = 0; d < dim; d += W) store(x.q + r * dim + d, load(from + d) * c.scale);
            for (int d = 0; d < dim; d += W) store(x.acc + r * dim + d, vf{});
            x.top[r] = -INFINITY;
            x.sum[r] = vf{};
        }
    for (int at = item.start; at < item.end; at += BLOCK) {
        const int n_keys = item.end - at < BLOCK ? item.end - at : BLOCK;
        for (int h = head_from, r = 0; h < head_to; h++, r += n) {
            gather<T>(c, item, at, n_keys, h, x, v_row);
            product(n, (n_keys + W - 1) / W * W, x.weight, BLOCK, x.q + r * dim, dim, kt_row, dim, nullptr);
            for (int i = 0; i < n; i++)
                x.shrink[i] = weigh(c, x.weight + i * BLOCK, at, n_keys, item.position + i / group, x.top[r + i],
                                    x.sum[r + i]);
            product(n, dim, x.acc + r * dim, dim, x.weight, BLOCK, v_row, n_keys, x.shrink);
        }
    }
    for (int h = head_from, r = 0; h < head_to; h++)
        for (int i = 0; i < n; i++, r++) {
            const int head = h * group + i % group, row = i / group;
            float total = sum(x.sum[r]), most = x.top[r];
            const float* acc = x.acc + r * dim;
            if (item.part >= 0) {
                const int64_t to = int64_t(item.part + row) * c.n_heads + head;
                const float by = total > 0 ? 1.0f / total : 0.0f;
                for (int d = 0; d < dim; d += W) store(c.part + to * dim + d, load(acc + d) * by);
                c.lse[to] = total > 0 ? most + std::log2(total) : -INFINITY;
                continue;
            }
            float by = 1.0f;
            if (c.sinks) {
                const float sink = c.sinks[head] * LOG2E, high = most > sink ? most : sink;
                by = std::exp2(most - high);
                total = total * by + std::exp2(sink - high);
            }
            by /= total;
            T* to = static_cast<T*>(c.out) + (item.row + row) * c.s_out + head * dim;
            for (int d = 0; d < dim; d += W) store(to + d, load(acc + d) * by);
        }
}

template <class T>
void merge(const Call& c, const int32_t* m) {
    for (int head = 0; head < c.n_heads; head++) {
        float high = c.sinks ? c.sinks[head] * LOG2E : -INFINITY;
        for (int i = 0; i < m[3]; i++) {
            const float lse = c.lse[int64_t(m[1] + i * m[2]) * c.n_heads + head];
            high = lse > high ? lse : high;
        }
        float total = c.sinks ? std::exp2(c.sinks[head] * LOG2E - high) : 0.0f;
        alignas(64) float acc[MAX_DIM] = {};
        for (int i = 0; i < m[3]; i++) {
            const int64_t from = int64_t(m[1] + i * m[2]) * c.n_heads + head;
            const float w = std::exp2(c.lse[from] - high);
            total += w;
            for (int d = 0; d < c.dim; d += W) store(acc + d, load(acc + d) + load(c.part + from * c.dim + d) * w);
        }
        T* to = static_cast<T*>(c.out) + m[0] * c.s_out + head * c.dim;
        for (int d = 0; d < c.dim; d += W) store(to + d, load(acc + d) * (1.0f / total));
    }
}

thread_local Scratch scratch;

template <class T>
void run(const Call& c, const Item* small, int n_small, const Item* large, int n_large, const int32_t* merges,
         int n_merges, int n_threads) {
    // a small item takes all heads of its keys at once, a large one is a task per KV head
    const int n_tasks = n_small + n_large * c.n_kv_heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads) if (n_threads > 1)
    for (int i = 0; i < n_tasks; i++) {
        const int j = i - n_large * c.n_kv_heads;
        if (j < 0) attend<T>(c, large[i / c.n_kv_heads], i % c.n_kv_heads, i % c.n_kv_heads + 1, scratch);
        else attend<T>(c, small[j], 0, c.n_kv_heads, scratch);
    }
    for (int i = 0; i < n_merges; i++) merge<T>(c, merges + i * 4);
}

template <class T>
void norm(const T* x, const T* weight, const T* residual, T* out, T* total, int64_t n, int64_t n_heads, int64_t dim,
          int64_t s_row, int64_t s_head, float eps, int n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n; i++) {
        const T* from = x + i / n_heads * s_row + i % n_heads * s_head;
        T* to = out + i * dim;
        vf squares = vf{};
        float rest = 0;
        if (residual) {
            int64_t d = 0;
            for (; d + W <= dim; d += W) store(total + i * dim + d, load(from + d) + load(residual + i * dim + d));
            for (; d < dim; d++) put(total + i * dim + d, get(from[d]) + get(residual[i * dim + d]));
            from = total + i * dim;  // the norm sees what the next layers will: the rounded sum
        }
        int64_t d = 0;
        for (; d + W <= dim; d += W) squares += load(from + d) * load(from + d);
        for (; d < dim; d++) rest += get(from[d]) * get(from[d]);
        const float by = 1.0f / std::sqrt((sum(squares) + rest) / float(dim) + eps);
        for (d = 0; d + W <= dim; d += W) store(to + d, load(from + d) * by * load(weight + d));
        for (; d < dim; d++) put(to + d, get(from[d]) * by * get(weight[d]));
    }
}

template <class T>
void turn(const T* x, T* out, const float* cos, const float* sin, int64_t n, int64_t n_heads, int64_t dim, int64_t half,
          int64_t s_row, int n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n; i++) {
        const float *co = cos + i * half, *si = sin + i * half;
        for (int64_t h = 0; h < n_heads; h++) {
            const T* from = x + i * s_row + h * dim;
            T* to = out + (i * n_heads + h) * dim;
            int64_t d = 0;
            for (; d + W <= half; d += W) {
                vf a = load(from + d), b = load(from + half + d);
                store(to + d, a * load(co + d) - b * load(si + d));
                store(to + half + d, b * load(co + d) + a * load(si + d));
            }
            for (; d < half; d++) {
                float a = get(from[d]), b = get(from[half + d]);
                put(to + d, a * co[d] - b * si[d]);
                put(to + half + d, b * co[d] + a * si[d]);
            }
            std::memcpy(to + 2 * half, from + 2 * half, (dim - 2 * half) * sizeof(T));
        }
    }
}

template <class T>
void gate(const T* x, T* out, int64_t n, int64_t dim, int64_t s_row, int n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n; i++) {
        const T *g = x + i * s_row, *u = g + dim;
        int64_t d = 0;
        for (; d + W <= dim; d += W) {
            vf y = load(g + d), z = y * -LOG2E;
            z = z > 126.0f ? vf{} + 126.0f : z;
            store(out + i * dim + d, y / (1.0f + exp2(z)) * load(u + d));
        }
        for (; d < dim; d++) put(out + i * dim + d, get(g[d]) / (1.0f + std::exp2(get(g[d]) * -LOG2E)) * get(u[d]));
    }
}

// -inf for each token whose bit is 0.
void forbid(float* row, const uint32_t* words, int64_t n_vocab) {
    for (int64_t at = 0; at < n_vocab; at += 32) {
        uint32_t bits = words[at / 32];
        int64_t n = n_vocab - at < 32 ? n_vocab - at : 32;
        if (bits == 0xFFFFFFFF) continue;
        for (int64_t t = 0; t < n; t++) row[at + t] = (bits >> t) & 1 ? row[at + t] : -INFINITY;
    }
}

}  // namespace

extern "C" {

void banyan_attention(int is_bf16, const Call* c, const Item* small, int n_small, const Item* large, int n_large,
                      const int32_t* merges, int n_merges, int n_threads) {
    if (is_bf16) run<bf16>(*c, small, n_small, large, n_large, merges, n_merges, n_threads);
    else run<float>(*c, small, n_small, large, n_large, merges, n_merges, n_threads);
}

void banyan_rms_norm(int is_bf16, const void* x, const void* weight, const void* residual, void* out, void* total,
                     int64_t n, int64_t n_heads, int64_t dim, int64_t s_row, int64_t s_head, float eps, int n_threads) {
    if (is_bf16) norm((const bf16*)x, (const bf16*)weight, (const bf16*)residual, (bf16*)out, (bf16*)total, n, n_heads,
                      dim, s_row, s_head, eps, n_threads);
    else norm((const float*)x, (const float*)weight, (const float*)residual, (float*)out, (float*)total, n, n_heads,
              dim, s_row, s_head, eps, n_threads);
}

void banyan_rope(int is_bf16, const void* x, void* out, const float* cos, const float* sin, int64_t n, int64_t n_heads,
                 int64_t dim, int64_t half, int64_t s_row, int n_threads) {
    if (is_bf16) turn((const bf16*)x, (bf16*)out, cos, sin, n, n_heads, dim, half, s_row, n_threads);
    else turn((const float*)x, (float*)out, cos, sin, n, n_heads, dim, half, s_row, n_threads);
}

void banyan_mask_logits(float* logits, const uint32_t* masks, const int32_t* which, int64_t n, int64_t n_vocab,
                        int64_t s_row, int64_t n_words, int n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n; i++)
        if (which[i] >= 0) forbid(logits + i * s_row, masks + which[i] * n_words, n_vocab);
}

void banyan_silu_mul(int is_bf16, const void* x, void* out, int64_t n, int64_t dim, int64_t s_row, int n_threads) {
    if (is_bf16) gate((const bf16*)x, (bf16*)out, n, dim, s_row, n_threads);
    else gate((const float*)x, (float*)out, n, dim, s_row, n_threads);
}

}  // extern "C"
