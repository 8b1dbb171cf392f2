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

// 1 / sqrt(mean of squares + eps)
template <class T>
inline float inverse_rms(const T* x, int64_t dim, float eps) {
    vf squares = vf{};
    each_vector(dim, [&](int64_t d, auto m) { squares += load(x + d, m) * load(x + d, m); });
    return 1.0f / std::sqrt(sum(squares) / float(dim) + eps);
}

template <class T>
void norm(const T* x, const T* weight, const T* residual, T* out, T* total, int64_t n, int64_t n_heads, int64_t dim,
          int64_t s_row, int64_t s_head, float eps, int n_threads) {
    each_row(n, n_threads, [&](int64_t i) {
        const T* from = x + i / n_heads * s_row + i % n_heads * s_head;
        T* to = out + i * dim;
        if (residual) {
            T* all = total + i * dim;
            each_vector(dim, [&](int64_t d, auto m) {
                store(all + d, load(from + d, m) + load(residual + i * dim + d, m), m);
            });
            from = all;  // the norm uses the rounded sum, as the next layers do
        }
        const float by = inverse_rms(from, dim, eps);
        each_vector(dim, [&](int64_t d, auto m) { store(to + d, load(from + d, m) * by * load(weight + d, m), m); });
    });
}

// One head: the norm if there is a weight, then the rotation of the first 2 * half dimensions.
template <class T, class U>
inline void rotate(const T* from, U* to, const T* weight, const float* cos, const float* sin, int64_t dim, int64_t half,
                 float eps) {
    float x[MAX_HEAD];
    each_vector(dim, [&](int64_t d, auto m) { store(x + d, load(from + d, m), m); });
    if (weight) {
        const float by = inverse_rms(x, dim, eps);
        each_vector(dim, [&](int64_t d, auto m) { store(x + d, load(x + d, m) * by * load(weight + d, m), m); });
    }
    each_vector(half, [&](int64_t d, auto m) {
        const vf a = load(x + d, m), b = load(x + half + d, m), c = load(cos + d, m), s = load(sin + d, m);
        store(to + d, a * c - b * s, m);
        store(to + half + d, b * c + a * s, m);
    });
    const int64_t o = 2 * half;
    each_vector(dim - o, [&](int64_t d, auto m) { store(to + o + d, load(x + o + d, m), m); });
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
inline float limit(e4m3) { return 448.0f; }

// Quantises a head to 8 bits and returns the scale, which is NaN if a number is NaN.
template <class P>
inline float quantize(const float* x, P* to, int64_t dim) {
    vf high = vf{}, nan = vf{};
    each_vector(dim, [&](int64_t d, auto m) {
        const vf y = load(x + d, m);
        high = vmax(high, y < 0 ? -y : y);
        nan += y * 0.0f;
    });
    const float scale = top(high) / limit(P{}), by = scale > 0 ? 1.0f / scale : 0.0f;
    each_vector(dim, [&](int64_t d, auto m) {
        vf y = load(x + d, m) * by;
        y = y > limit(P{}) ? vf{} + limit(P{}) : y;
        store(to + d, y < -limit(P{}) ? vf{} - limit(P{}) : y, m);
    });
    return scale + sum(nan);
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
                each_vector(c.dim, [&](int64_t d, auto m) { store(x + d, load(value + d, m), m); });
                c.v_scale[scale] = quantize(x, v + h * c.dim, c.dim);
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
        each_vector(dim, [&](int64_t d, auto m) {
            const vf y = load(g + d, m), z = y * -LOG2E;
            store(out + i * dim + d, y / (1.0f + exp2(z > 126.0f ? vf{} + 126.0f : z)) * load(u + d, m), m);
        });
    });
}

// Sets the logits of tokens whose bit is 0 to -inf.
void mask(float* row, const uint32_t* words, int64_t n_vocab) {
    for (int64_t at = 0; at < n_vocab; at += 32) {
        uint32_t bits = words[at / 32];
        int64_t n = n_vocab - at < 32 ? n_vocab - at : 32;
        if (bits == 0xFFFFFFFF) continue;
        for (int64_t t = 0; t < n; t++) row[at + t] = (bits >> t) & 1 ? row[at + t] : -INFINITY;
    }
}

}  // namespace
