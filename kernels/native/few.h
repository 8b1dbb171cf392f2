// Attention of few rows over the same keys: each lane is a key.
//
// K of a block is transposed once. Then both products, Q K^T and P V, use the same register tile: broadcast numbers of
// A times whole vectors of B. bfloat16 is widened on load, except in Q K^T if `can_pair`.
#pragma once

#include "items.h"

namespace {

// Transposes K of a block into x.k (in pairs, for bfloat16). Widens V into x.v, or gives pointers to it (`raw`).
template <class P, bool paired>
void gather(const Call& c, int n, int head, Scratch& x, const float** v_row, const P** raw) {
    const P* k_row[BLOCK];
    for (int s = 0; s < BLOCK; s++) {
        const int64_t o = x.place[s] + int64_t(head) * c.dim;
        k_row[s] = static_cast<const P*>(c.k) + o;
        const P* from = static_cast<const P*>(c.v) + o;
        if constexpr (sizeof(P) == 4) {
            v_row[s] = from;
        } else if (raw) {
            raw[s] = from;
        } else if (s < n) {
            v_row[s] = x.v + s * c.v_dim;
            widen_value<P>(c, x, s, head, x.v + s * c.v_dim);
        }
    }
    load_scales<P>(c, head, x);
    to_panels<BLOCK, paired ? 2 * W : W>(n, c.dim, x.k, [&](int s, int d) {
        if constexpr (paired) return load(reinterpret_cast<const float*>(k_row[s] + d));
        else return load(k_row[s] + d);
    });
}

// Replaces by weights the scores of one row against n keys starting at `at`. Returns the factor for the row's older
// sums.
//
// The row attends to keys from `oldest` to `last`; starting at key `tail`, only to those whose bit is set in
// `ancestors`.
template <class P, bool paired>
inline float weigh(const Call& c, const Scratch& x, float* score, int at, int n, int last, int oldest, int tail,
                   uint64_t ancestors, float& best, vf& total) {
    const int n_vectors = (n + W - 1) / W;
    const bool masked = at + n_vectors * W > last + 1 || n % W || at < oldest;
    const bool is_tree = ancestors != ~uint64_t(0) && at + n > tail;
    vf lane;
    for (int i = 0; i < W; i++) lane[i] = i;
    const bool is_capped = c.softcap > 0;
    const float by = paired && !is_capped ? c.scale : 1.0f;  // a cap needs scores that are scaled before
    vf high = vf{} - INFINITY;
    for (int j = 0; j < n_vectors; j++) {
        vf s = load(score + j * W);
        if (paired && is_capped) s *= c.scale;
        if constexpr (is_scaled<P>) s *= load(x.k_scale + j * W);
        if (is_capped) s = capped(c, s);
        if (masked) {
            vf key = lane + float(at + j * W);  // exact below 2^24 tokens
            s = key > float(last) ? vf{} - INFINITY : s;
            s = key >= float(at + n) ? vf{} - INFINITY : s;
            s = key < float(oldest) ? vf{} - INFINITY : s;
        }
        if (is_tree)
            for (int i = 0; i < W; i++) {
                const int bit = at + j * W + i - tail;
                if (bit >= 0 && bit < 64 && !(ancestors >> bit & 1)) s[i] = -INFINITY;
            }
        store(score + j * W, s);
        high = vmax(high, s);
    }
    float fresh = top(high) * by, old = best;
    best = fresh > old ? fresh : old;
    float base = best == -INFINITY ? 0.0f : best;
    float shrink = old == best ? 1.0f : exp2(vf{} + (old - base))[0];
    vf part = vf{};
    for (int j = 0; j < n_vectors; j++) {
        vf w = exp2(load(score + j * W) * by - base);
        part += w;
        if constexpr (is_scaled<P> && !has_halves<P>) w *= load(x.v_scale + j * W);
        store(score + j * W, w);
    }
    total = total * shrink + part;
    return shrink;
}

template <class T, class P, bool paired>
void attend_few(const Call& c, const Item& item, int head_from, int head_to, Scratch& x) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group, dim = c.dim, v_dim = c.v_dim;
    const float* kt_row[MAX_DIM];
    const float* v_row[BLOCK];
    const P* raw[BLOCK];
    const bool is_raw = sizeof(P) == 2 && n <= MR;  // then V is read only once, so widening it first does not pay
    const bool is_streamed = head_to - head_from == c.n_kv_heads;
    const int32_t* entry = c.rows + int64_t(item.first) * 2;  // (row of q, its partial result) of each row
    for (int d = 0; d < dim; d++) kt_row[d] = x.k + d * BLOCK;

    for (int h = head_from, r = 0; h < head_to; h++)
        for (int i = 0; i < n; i++, r++) {
            const T* from = query<T>(c, item, entry[i / group * 2]) + (h * group + i % group) * dim;
            if constexpr (paired) std::memcpy(x.q_half + r * dim, from, dim * sizeof(T));
            else for (int d = 0; d < dim; d += W) store(x.q + r * dim + d, load(from + d) * c.scale);
            for (int d = 0; d < v_dim; d += W) store(x.acc + r * v_dim + d, vf{});
            x.top[r] = -INFINITY;
            x.total[r] = vf{};
        }
    for (int at = item.start; at < item.end; at += BLOCK) {
        const int n_keys = item.end - at < BLOCK ? item.end - at : BLOCK;
        locate(c, item, at, n_keys, x);
        if (is_streamed) touch_lines<P>(c, n_keys, x);
        for (int h = head_from, r = 0; h < head_to; h++, r += n) {
            gather<P, paired>(c, n_keys, h, x, v_row, is_raw ? raw : nullptr);
            if constexpr (paired)
                blocks(n, x.weight, x.q_half + r * dim, dim, reinterpret_cast<const bf16*>(x.k), dim, true);
            else product(n, (n_keys + W - 1) / W * W, x.weight, BLOCK, x.q + r * dim, dim, kt_row, dim, nullptr);
            for (int i = 0; i < n; i++) {
                const int row = entry[i / group * 2];
                const int oldest = oldest_key(c, item, row);
                const uint64_t ancestors = c.ancestors ? c.ancestors[row] : ~uint64_t(0);
                x.shrink[i] = weigh<P, paired>(c, x, x.weight + i * BLOCK, at, n_keys, item.position + i / group, oldest,
                                               item.tail, ancestors, x.top[r + i], x.total[r + i]);
            }
            if (is_raw) product(n, v_dim, x.acc + r * v_dim, v_dim, x.weight, BLOCK, raw, n_keys, x.shrink);
            else product(n, v_dim, x.acc + r * v_dim, v_dim, x.weight, BLOCK, v_row, n_keys, x.shrink);
        }
    }
    for (int h = head_from, r = 0; h < head_to; h++)
        for (int i = 0; i < n; i++, r++) {
            const int head = h * group + i % group, row = entry[i / group * 2], part = entry[i / group * 2 + 1];
            const float by = normalizer(c, head, part, sum(x.total[r]), x.top[r]);
            float* part_to = c.part + (int64_t(part) * c.n_heads + head) * v_dim;
            T* to = static_cast<T*>(c.out) + row * c.s_out + head * v_dim;
            for (int d = 0; d < v_dim; d += W) {
                if (part >= 0) store(part_to + d, load(x.acc + r * v_dim + d) * by);
                else store(to + d, load(x.acc + r * v_dim + d) * by);
            }
        }
}

}  // namespace
