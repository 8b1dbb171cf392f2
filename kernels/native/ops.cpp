// The C interface of the CPU library, except attention (attention.cpp).

#include "types.h"  // first, as it refuses old compilers

#include "draw.h"
#include "experts.h"
#include "layers.h"
#include "linear.h"
#include "lora.h"
#include "rows.h"

extern "C" {

void banyan_rms_norm(int is_bf16, const void* x, const void* weight, const void* residual, void* out, void* total,
                     int64_t n, int64_t n_heads, int64_t dim, int64_t s_row, int64_t s_head, float eps, int n_threads) {
    by_dtype(is_bf16, [&](auto t) {
        using T = decltype(t);
        norm((const T*)x, (const T*)weight, (const T*)residual, (T*)out, (T*)total, n, n_heads, dim, s_row, s_head, eps,
             n_threads);
    });
}

void banyan_rope_kv(int is_bf16, int kind, const RopeKv* call, int n_threads) {
    by_types(is_bf16, kind, [&](auto t, auto p) { rope_kv<decltype(t), decltype(p)>(*call, n_threads); });
}

int banyan_panel() { return PANEL; }

int banyan_has_tiles() {
#ifdef BANYAN_TILES
    return has_tiles();
#else
    return false;
#endif
}

void banyan_linear(int is_bf16, const void* x, const Weight* weight, void* out, int64_t n, int64_t s_x, int n_threads) {
    by_dtype(is_bf16, [&](auto t) {
        multiply((const decltype(t)*)x, *weight, (decltype(t)*)out, n, s_x, n_threads);
    });
}

// parts: of the first adapter for one linear layer; those of the next one are s_adapter further
void banyan_add_lora(int is_bf16, const LowRank* parts, int64_t s_adapter, const AdaptedRows* adapted, const void* x,
                     int64_t n_in, void* y, int64_t s_y, int64_t product_work, int n_threads) {
    by_dtype(is_bf16, [&](auto t) {
        add_lora<decltype(t)>(parts, s_adapter, *adapted, x, n_in, y, s_y, product_work, n_threads);
    });
}

void banyan_experts(int is_bf16, const Experts* call, int n_threads) {
    by_dtype(is_bf16, [&](auto t) { experts<decltype(t)>(*call, n_threads); });
}

void banyan_mask_logits(float* logits, const uint32_t* masks, const int32_t* which, int64_t n, int64_t n_vocab,
                        int64_t s_row, int64_t n_words, int n_threads) {
    each_row(n, n_threads, [&](int64_t i) {
        if (which[i] >= 0) mask(logits + i * s_row, masks + which[i] * n_words, n_vocab);
    });
}

void banyan_draw(const float* logits, const Draws* rows, int64_t* tokens, int64_t n, int64_t n_vocab, int64_t s_row,
                 int n_threads) {
    ThreadPool::instance().run(n, n_threads, [&](int64_t i) { tokens[i] = draw(logits + i * s_row, n_vocab, *rows, i); });
}

// All layers have one dtype and one kind of pools. calls: of attention; a layer sets q, out and the pools of its call
void banyan_layers(int is_bf16, int kind, const Pass* pass, const Layer* all, int n_layers, Call* calls) {
    by_types(is_bf16, kind, [&](auto t, auto p) {
        layers<decltype(t), decltype(p)>(kind, *pass, all, n_layers, calls);
    });
}

void banyan_silu_mul(int is_bf16, const void* x, void* out, int64_t n, int64_t dim, int64_t s_row, int n_threads) {
    by_dtype(is_bf16, [&](auto t) { gate((const decltype(t)*)x, (decltype(t)*)out, n, dim, s_row, n_threads); });
}

}  // extern "C"
