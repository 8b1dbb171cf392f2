// Ops on single rows: norms, rotary embedding and the write to the pools, gates, masks.
#pragma once

#include "thread_pool.h"
#include "vector.h"

namespace {

constexpr int64_t MAX_HEAD = 512;  // dimensions of a head
constexpr int64_t ROWS = 8;        // per task

template <class F>
void each_row(int64_t n, int n_threads, const F& row) {
    ThreadPool::instance().run((n + ROWS - 1) / ROWS, n_threads, [&](int64_t task) {
        const int64_t end = (task + 1) * ROWS < n ? (task + 1) * ROWS : n;
        for (int64_t i = task * ROWS; i < end; i++) row(i);
    });
}

// rows: which rows of x and of the residual are normalised; null: all
template <class T>
void norm(const T* x, const T* weight, const T* residual, T* out, T* total, int64_t n, int64_t n_heads, int64_t dim,
          int64_t s_row, int64_t s_head, float eps, int n_threads, const int64_t* rows = nullptr) {
    each_row(n, n_threads, [&](int64_t i) {
        const int64_t at = rows ? rows[i] : i;
        const T* from = x + at / n_heads * s_row + at % n_heads * s_head;
        T* to = out + i * dim;
        if (residual) {
            const T* added = residual + at * dim;
            T* sums = total + i * dim;
            each_vector(dim, [&](int64_t d, auto left) {
                store_some(sums + d, load_some(from + d, left) + load_some(added + d, left), left);
            });
            from = sums;  // the norm uses the rounded sum, as the next layers do
        }
        vf squares = vf{};
        each_vector(dim, [&](int64_t d, auto left) {
            const vf y = load_some(from + d, left);
            squares += y * y;
        });
        const float by = 1.0f / std::sqrt(sum(squares) / float(dim) + eps);
        each_vector(dim, [&](int64_t d, auto left) {
            store_some(to + d, load_some(from + d, left) * by * load_some(weight + d, left), left);
        });
    });
}

// One head: the norm if there is a weight, then the rotation of the first 2 * half dimensions.
template <class T, class U>
inline void rotate(const T* from, U* to, const T* weight, const float* cos, const float* sin, int64_t dim, int64_t half,
                 float eps) {
    float x[MAX_HEAD + W];  // up to W numbers after the head are 0, or not used
    each_vector(dim, [&](int64_t d, auto left) { store(x + d, load_some(from + d, left)); });
    if (weight) {
        vf squares = vf{};
        for (int64_t d = 0; d < dim; d += W) squares += load(x + d) * load(x + d);
        const float by = 1.0f / std::sqrt(sum(squares) / float(dim) + eps);
        each_vector(dim, [&](int64_t d, auto left) { store(x + d, load(x + d) * by * load_some(weight + d, left)); });
    }
    each_vector(half, [&](int64_t d, auto left) {
        const vf a = load(x + d), b = load(x + half + d), c = load_some(cos + d, left), s = load_some(sin + d, left);
        store_some(to + d, a * c - b * s, left);
        store_some(to + half + d, b * c + a * s, left);
    });
    each_vector(dim - 2 * half, [&](int64_t d, auto left) {
        store_some(to + 2 * half + d, load(x + 2 * half + d), left);
    });
}

struct RopeKv {  // one call; pointers to elements of one type
    const void *qkv, *q_norm, *k_norm;  // norms [dim] or null
    const float *cos, *sin;             // [n, half]
    const int64_t* slots;               // [n]
    void *q, *k_pool, *v_pool;
    float *k_scale, *v_scale;           // of 8-bit pools
    int64_t n, n_heads, n_kv_heads, dim, half, s_row;
    float eps;
};

inline float limit(int8_t) { return 127.0f; }
inline float limit(k8v4) { return 127.0f; }
inline float limit(e4m3) { return 448.0f; }

// Quantises a head to 8 bits and returns the scale, which is NaN if a number is NaN.
template <class P>
inline float quantize(const float* x, P* to, int64_t dim) {
    vf high = vf{}, nan = vf{};
    each_vector(dim, [&](int64_t d, auto left) {
        const vf y = load_some(x + d, left);
        high = vmax(high, y < 0 ? -y : y);
        nan += y * 0.0f;
    });
    const float scale = top(high) / limit(P{}), by = scale > 0 ? 1.0f / scale : 0.0f;
    each_vector(dim, [&](int64_t d, auto left) {
        vf y = load_some(x + d, left) * by;
        y = y > limit(P{}) ? vf{} + limit(P{}) : y;
        store_some(to + d, y < -limit(P{}) ? vf{} - limit(P{}) : y, left);
    });
    return scale + sum(nan);
}

// Quantises a head to 4 bits: bytes of two numbers, and (scale, minimum) per group; the scale is NaN if a number is.
inline void quantize_halves(const float* x, uint8_t* to, bf16* by, int64_t dim) {
    const int group = group_of(dim);
    for (int64_t d = 0; d < dim; d += group, x += group, to += group / 2, by += 2) {
        float low = x[0], high = x[0], nan = 0;
        for (int i = 0; i < group; i++) low = std::fmin(low, x[i]), high = std::fmax(high, x[i]), nan += x[i] * 0.0f;
        put(by, (high - low) / 15 + nan);
        put(by + 1, low);
        const float scale = get(by[0]), minimum = get(by[1]), per = scale > 0 ? 1.0f / scale : 0.0f;
        uint8_t n[32];
        for (int i = 0; i < group; i++) n[i] = uint8_t(std::fmin(std::fmax((x[i] - minimum) * per, 0.0f), 15.0f) + 0.5f);
        for (int i = 0; i < group / 2; i++) to[i] = n[2 * i] | n[2 * i + 1] << 4;
    }
}

template <class T, class P>
void rope_kv(const RopeKv& c, int n_threads) {
    each_row(c.n, n_threads, [&](int64_t i) {
        const T* from = static_cast<const T*>(c.qkv) + i * c.s_row;
        const float *cos = c.cos + i * c.half, *sin = c.sin + i * c.half;
        for (int64_t h = 0; h < c.n_heads; h++, from += c.dim)
            rotate(from, static_cast<T*>(c.q) + (i * c.n_heads + h) * c.dim, static_cast<const T*>(c.q_norm), cos, sin,
                 c.dim, c.half, c.eps);
        const int64_t at = c.slots[i] * c.n_kv_heads * c.dim;
        P *k = static_cast<P*>(c.k_pool) + at, *v = static_cast<P*>(c.v_pool) + at;
        if constexpr (sizeof(P) == 1) {
            float x[MAX_HEAD];
            const T* value = from + c.n_kv_heads * c.dim;
            for (int64_t h = 0; h < c.n_kv_heads; h++, from += c.dim, value += c.dim) {
                const int64_t scale = c.slots[i] * c.n_kv_heads + h;
                rotate(from, x, static_cast<const T*>(c.k_norm), cos, sin, c.dim, c.half, c.eps);
                c.k_scale[scale] = quantize(x, k + h * c.dim, c.dim);
                for (int64_t d = 0; d < c.dim; d++) x[d] = get(value[d]);
                if constexpr (std::is_same_v<P, k8v4>) {
                    bf16* by = reinterpret_cast<bf16*>(c.v_scale) + scale * (c.dim / group_of(c.dim) * 2);
                    quantize_halves(x, static_cast<uint8_t*>(c.v_pool) + (at + h * c.dim) / 2, by, c.dim);
                } else {
                    c.v_scale[scale] = quantize(x, v + h * c.dim, c.dim);
                }
            }
        } else {
            for (int64_t h = 0; h < c.n_kv_heads; h++, from += c.dim)
                rotate(from, k + h * c.dim, static_cast<const T*>(c.k_norm), cos, sin, c.dim, c.half, c.eps);
            std::memcpy(v, from, c.n_kv_heads * c.dim * sizeof(T));
        }
    });
}

template <class T>
void gate(const T* x, T* out, int64_t n, int64_t dim, int64_t s_row, int n_threads) {
    each_row(n, n_threads, [&](int64_t i) {
        const T *g = x + i * s_row, *u = g + dim;
        int64_t d = 0;
        for (; d + W <= dim; d += W) {
            vf y = load(g + d), z = y * -LOG2E;
            z = z > 126.0f ? vf{} + 126.0f : z;
            store(out + i * dim + d, y / (1.0f + exp2(z)) * load(u + d));
        }
        for (; d < dim; d++) put(out + i * dim + d, get(g[d]) / (1.0f + std::exp2(get(g[d]) * -LOG2E)) * get(u[d]));
    });
}

// Sets a logit to -inf if its token's bit is 0.
void mask(float* row, const uint32_t* words, int64_t n_vocab) {
    for (int64_t at = 0; at < n_vocab; at += 32) {
        uint32_t bits = words[at / 32];
        int64_t n = n_vocab - at < 32 ? n_vocab - at : 32;
        if (bits == 0xFFFFFFFF) continue;
        for (int64_t t = 0; t < n; t++) row[at + t] = (bits >> t) & 1 ? row[at + t] : -INFINITY;
    }
}

}  // namespace
