// All layers of a dense decoder and its head in one call: the same functions, order and thread counts as separate ops.
//
// With few rows, calling the nine ops of each layer from Python takes a tenth to a third of the step.
#pragma once

#include "items.h"
#include "linear.h"
#include "lora.h"
#include "rows.h"

extern "C" void banyan_attention(int is_bf16, int kind, const Call* c);  // attention.cpp

namespace {

struct Layer {
    const void *attention_norm, *mlp_norm, *q_norm, *k_norm;
    Weight qkv, out, gate_up, down;
    void *k, *v;
    float *k_scale, *v_scale;
    int64_t call;  // index of the call of attention, which layers with the same window and first keys share
};

struct Pass {  // one pass over all layers; pointers to elements of one type
    void *x, *h;                             // [n, hidden]: the residual stream, and the output to add to it next
    void *qkv, *q, *attended, *gate_up, *gated; // [n, ...], buffers
    const float *cos, *sin;
    void* first_q;                           // [n, ...], buffer: queries for the first keys of texts; or null
    const float *turn_cos, *turn_sin;        // of the angles from q to first_q
    const int64_t* last;                     // rows, ascending, that the last layer computes; or null
    int64_t n, n_last, last_call, n_heads, n_kv_heads, dim, half;
    int64_t row_numbers, product_work;  // below these, one thread computes a pass over rows, or a product
    float eps;
    int32_t n_threads;
    const LowRank* low_rank;  // [adapters, layers, N_LINEARS, MAX_PARTS]
    AdaptedRows adapted, last_adapted;  // rows with an adapter among all, and among `last`
    float* logits;                      // [n_wanted, head.n_out]; null: no logits
    const void* norm;                   // before the head
    void *wanted_x, *wanted_h;          // [n_wanted, hidden], buffers
    const int64_t* wanted;              // the rows with logits; null: all that the last layer computes
    int64_t n_wanted;
    Weight head;
};

template <class T, class U>
void multiply(const Pass& p, const Weight& w, const void* x, U* out) {
    const int n_threads = p.n * w.n_in * w.n_out < p.product_work ? 1 : p.n_threads;
    multiply((const T*)x, w, out, p.n, w.n_in, n_threads);
}

// Moves the given rows, of w numbers each, to the front, in place.
template <class T>
void keep_rows(void* all, const int64_t* rows, int64_t n, int64_t w) {
    T* at = (T*)all;
    for (int64_t i = 0; i < n; i++)
        if (rows[i] != i) std::memcpy(at + i * w, at + rows[i] * w, w * sizeof(T));
}

template <class T, class P>
void layers(int kind, Pass p, const Layer* all, int n_layers, Call* calls) {
    const auto threads = [&](int64_t n_numbers) { return n_numbers < p.row_numbers ? 1 : p.n_threads; };
    for (const Layer* l = all; l < all + n_layers; l++) {
        const int64_t hidden = l->qkv.n_in, intermediate = l->down.n_in;
        const auto add_and_norm = [&](const void* weight) {
            norm((const T*)p.h, (const T*)weight, (const T*)p.x, (T*)p.h, (T*)p.x, p.n, 1, hidden, hidden, hidden, p.eps,
                 threads(p.n * hidden));
        };
        const auto linear = [&](int which, const Weight& w, const void* x, void* out) {
            multiply<T>(p, w, x, (T*)out);
            if (!p.adapted.n_tasks) return;
            const LowRank* parts = p.low_rank + ((l - all) * N_LINEARS + which) * MAX_PARTS;
            add_lora<T>(parts, n_layers * N_LINEARS * MAX_PARTS, p.adapted, x, w.n_in, out, w.n_out, p.product_work,
                        p.n_threads);
        };
        add_and_norm(l->attention_norm);
        linear(0, l->qkv, p.h, p.qkv);
        const RopeKv rope{p.qkv, l->q_norm, l->k_norm, p.cos, p.sin, calls[l->call].slots, p.q,
                          l->k, l->v, l->k_scale, l->v_scale,
                          p.n, p.n_heads, p.n_kv_heads, p.dim, p.half, l->qkv.n_out, p.eps};
        rope_kv<T, P>(rope, threads(p.n * l->qkv.n_out));
        if (p.first_q)
            each_row(p.n, threads(p.n * p.n_heads * p.dim), [&](int64_t i) {
                for (int64_t h = i * p.n_heads; h < (i + 1) * p.n_heads; h++)
                    rotate((const T*)p.q + h * p.dim, (T*)p.first_q + h * p.dim, (const T*)nullptr, p.turn_cos + i * p.half,
                           p.turn_sin + i * p.half, p.dim, p.half, p.eps);
            });
        const bool is_last = l + 1 == all + n_layers;
        if (is_last && p.n_last < p.n) {
            keep_rows<T>(p.q, p.last, p.n_last, p.n_heads * p.dim);
            if (p.first_q) keep_rows<T>(p.first_q, p.last, p.n_last, p.n_heads * p.dim);
            keep_rows<T>(p.x, p.last, p.n_last, hidden);
            p.n = p.n_last;
            p.adapted = p.last_adapted;
        }
        if (!p.n) return;
        Call& c = calls[is_last ? p.last_call : l->call];
        c.q = p.q, c.first_q = p.first_q, c.out = p.attended, c.k = l->k, c.v = l->v, c.k_scale = l->k_scale, c.v_scale = l->v_scale;
        banyan_attention(sizeof(T) == 2, kind, &c);
        linear(1, l->out, p.attended, p.h);
        add_and_norm(l->mlp_norm);
        linear(2, l->gate_up, p.h, p.gate_up);
        gate((const T*)p.gate_up, (T*)p.gated, p.n, intermediate, 2 * intermediate,
             threads(p.n * 2 * intermediate));
        linear(3, l->down, p.gated, p.h);
    }
    if (!p.logits) return;
    const int64_t hidden = p.head.n_in;
    norm((const T*)p.h, (const T*)p.norm, (const T*)p.x, (T*)p.wanted_h, (T*)p.wanted_x, p.n_wanted, 1, hidden, hidden,
         hidden, p.eps, threads(p.n_wanted * hidden), p.wanted);
    p.n = p.n_wanted;
    multiply<T>(p, p.head, p.wanted_h, p.logits);
}

}  // namespace
