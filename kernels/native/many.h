// Attention of many rows over the same keys: each lane is a row.
//
// Q of a task is transposed once, into panels of rows. Then each number of a key or value is read from the pages and
// multiplied with vectors of rows: S^T = K Q^T, and O^T += V^T P^T. So blocks are not transposed, and a row's maximum
// and sum need no reduction across lanes. If `can_pair`, the first product multiplies pairs of a key's numbers, and the
// second pairs of keys, with weights rounded to bfloat16, as on a GPU. In float, everything is summed in the order of
// few.h, so results do not depend on the number of rows.
#pragma once

#include <algorithm>

#include "items.h"

namespace {

template <class T>
constexpr int MANY = sizeof(T) == 2 ? 20 : 28;  // rows from which on this is faster than `attend_few`, measured

// c[r] = shrink * c[r] + sum over k of a[r][k] * b[k], for rows of V vectors. at(r, k): address of a[r][k] or its pair
template <class T, int R, int V, class At>
inline void across(int from, int n, float* c, const T* b, int n_k, const At& at, const vf* shrink) {
    for (; n - from >= R; from += R) {
        vf t[R][V];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) t[r][v] = shrink ? load(c + (from + r) * PANEL + v * W) * shrink[v] : vf{};
        panel<T, R, V>(t, [&](int r, int k) { return at(from + r, k); }, b, n_k);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) store(c + (from + r) * PANEL + v * W, t[r][v]);
    }
    constexpr int fewer = R > 8 ? 8 : R > 4 ? 4 : R / 2;
    if constexpr (R > 1) across<T, fewer, V>(from, n, c, b, n_k, at, shrink);
}

typedef uint16_t vp __attribute__((vector_size(W * 4), aligned(2)));

template <int from, int... I>
inline vp interleaved(vp a, vp b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (from + I / 2 + I % 2 * 2 * W)...);
}

// Writes a[0], b[0], a[1], b[1], ..., for 2 W numbers of each.
inline void interleave(bf16* to, const bf16* a, const bf16* b) {
    vp one, other;
    std::memcpy(&one, a, sizeof one);
    std::memcpy(&other, b, sizeof other);
    const vp low = interleaved<0>(one, other, std::make_integer_sequence<int, 2 * W>());
    const vp high = interleaved<W>(one, other, std::make_integer_sequence<int, 2 * W>());
    std::memcpy(to, &low, sizeof low);
    std::memcpy(to + 2 * W, &high, sizeof high);
}

// Writes a[0], b[0], a[1], b[1], ..., rounded to nearest even; NaN is not handled. Only called if `can_pair`.
inline void store_pairs(bf16* to, vf a, vf b) {
#ifdef __AVX512BF16__
    const __m512i in_pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                              23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = _mm512_permutexvar_epi16(in_pairs, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
    std::memcpy(to, &both, sizeof both);
#else
    (void)to, (void)a, (void)b;
    __builtin_trap();
#endif
}

// A block of keys, and which rows attend to it.
struct Block {
    int at, n;      // first key, and number of keys up to the last one that a row attends to
    int all;        // end of the keys that all rows attend to, apart from windows and trees
    bool is_whole;  // every row attends to all n keys
};

// Applies scales and softcap to the scores [key][row] of a block. by: their scale.
template <class P, int V>
inline void scale_scores(const Call& c, Scratch& x, int n, float by) {
    for (int s = 0; s < n; s++)
        for (int v = 0; v < V; v++) {
            vf value = load(x.weight + s * PANEL + v * W) * by;
            if constexpr (is_scaled<P>) value *= x.k_scale[s];
            if (c.softcap > 0) value = capped(c, value);
            store(x.weight + s * PANEL + v * W, value);
        }
}

// Sets the scores of masked keys of a block to -inf.
template <int V>
inline void mask_scores(const Call& c, const Item& item, Scratch& x, const Block block, int p) {
    float* score = x.weight;  // [key][row]
    for (int s = c.window ? 0 : std::max(0, block.all - block.at); s < block.n; s++)
        for (int v = 0; v < V; v++) {
            vf value = load(score + s * PANEL + v * W);
            const float key = float(block.at + s);  // exact below 2^24 tokens
            value = load(x.last + p * PANEL + v * W) < key ? vf{} - INFINITY : value;
            if (c.window) value = load(x.oldest + p * PANEL + v * W) > key ? vf{} - INFINITY : value;
            store(score + s * PANEL + v * W, value);
        }
    const int from = item.tail > block.at ? item.tail - block.at : 0, to = std::min(block.n, item.tail + 64 - block.at);
    for (int r = 0; c.ancestors && from < to && r < V * W; r++)
        for (int s = from; s < to; s++)
            if (!(x.ancestors[p * PANEL + r] >> (block.at + s - item.tail) & 1)) score[s * PANEL + r] = -INFINITY;
}

// Updates the maxima of a panel's rows, `best`, by the scores of n keys, [key][row]. Returns the maxima from which
// weights are computed in `base`, and the factors of older sums in `shrink`. by: factor of the scores.
template <int V>
inline void update_best(const float* score, int n, float by, vf* best, vf* base, vf* shrink) {
    for (int v = 0; v < V; v++) base[v] = vf{} - INFINITY;
    for (int s = 0; s < n; s++)
        for (int v = 0; v < V; v++) base[v] = vmax(base[v], load(score + s * PANEL + v * W));
    for (int v = 0; v < V; v++) {
        const vf old = best[v];
        best[v] = vmax(old, base[v] * by);
        base[v] = best[v] == -INFINITY ? vf{} : best[v];
        shrink[v] = exp2(old - base[v]);
    }
}

// Replaces the scores of a panel's rows, [key][row], by weights; in bfloat16, in pairs of keys. Returns the factors of
// older sums in `shrink`. by: factor of the scores.
template <class T, class P, int V>
inline void weigh_across(float* score, int n, float by, vf* all_best, vf* all_total, const float* v_scale, vf* shrink) {
    vf base[V];
    update_best<V>(score, n, by, all_best, base, shrink);
    const auto weight = [&](int s, int v) { return exp2(load(score + s * PANEL + v * W) * by - base[v]); };
    if constexpr (sizeof(T) == 4) {
        for (int lane = 0; lane < W; lane++)  // as in few.h, which keeps sums in W parts
            for (int v = 0; v < V; v++) {
                vf part = vf{}, &total = all_total[lane * NV + v];
                for (int s = lane; s < n; s += W) {
                    vf w = weight(s, v);
                    part += w;
                    if constexpr (is_scaled<P> && !has_halves<P>) w *= v_scale[s];
                    store(score + s * PANEL + v * W, w);
                }
                total = total * shrink[v] + part;
            }
    } else {
        vf total[V];
        for (int v = 0; v < V; v++) total[v] = all_total[v] * shrink[v];
        for (int v = 0; v < V && n % 2; v++) store(score + n * PANEL + v * W, vf{} - INFINITY);
        for (int s = 0; s < n; s += 2)
            for (int v = 0; v < V; v++) {
                const vf even = weight(s, v), odd = weight(s + 1, v);
                total[v] += even + odd;
                store_pairs(reinterpret_cast<bf16*>(score) + s * PANEL + v * 2 * W, even, odd);
            }
        for (int v = 0; v < V; v++) all_total[v] = total[v];
    }
}

template <class T, class P, int V>
inline void panel_across(const Call& c, const Item& item, Scratch& x, const Block block, int p) {
    constexpr int R = MR * NV / V;
    const int dim = c.dim, v_dim = c.v_dim;
    vf shrink[V];
    const auto* k_row = reinterpret_cast<const T* const*>(x.k_row);
    const auto* v_row = reinterpret_cast<const T* const*>(x.v_row);
    const T* q = x.panels<T>() + p * PANEL * dim;
    across<T, R, V>(0, block.n, x.weight, q, dim, [=](int r, int k) { return k_row[r] + k; }, nullptr);
    float by = sizeof(T) == 2 ? c.scale : 1.0f;
    if (c.softcap > 0 || is_scaled<P>) {
        scale_scores<P, V>(c, x, block.n, by);
        by = 1.0f;
    }
    if (!block.is_whole) mask_scores<V>(c, item, x, block, p);
    weigh_across<T, P, V>(x.weight, block.n, by, x.best + p * NV, x.total + p * PANEL, x.v_scale, shrink);
    const auto* weight = reinterpret_cast<const T*>(x.weight);
    float* acc = x.acc + p * PANEL * v_dim;
    constexpr int pair = 4 / sizeof(T);
    const int n = (block.n + pair - 1) / pair * pair;
    across<T, R, V>(0, v_dim, acc, weight, n, [=](int r, int k) { return v_row[k] + pair * r; }, shrink);
}

// Transposes Q into panels of rows, float32 [dim][PANEL], bfloat16 [dim / 2][PANEL][2]. Missing rows repeat the last.
template <class T, class Q>
inline void transpose_rows(const Call& c, const Item& item, int head, Scratch& x) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group;
    const int32_t* entry = c.rows + int64_t(item.first) * 2;
    auto* to = reinterpret_cast<float*>(x.panels<T>());
    to_panels<PANEL, W * 4 / sizeof(T)>(n, c.dim, to, [&](int r, int d) {
        const int at = r < n ? r : n - 1;
        const Q* row = query<Q>(c, item, entry[at / group * 2]);
        const Q* from = row + (head * group + at % group) * c.dim + d;
        if constexpr (sizeof(T) == 2) return load(reinterpret_cast<const float*>(from));
        else return load(from) * c.scale;
    });
}

// Sets the row pointers of a block's K and V: into the pages or to widened copies. V in bfloat16 is copied, in pairs.
template <class T, class P>
inline void load_block(const Call& c, const Item& item, int at, int n, int head, Scratch& x) {
    locate(c, item, at, n, x);
    load_scales<P>(c, head, x);
    const int dim = c.dim, v_dim = c.v_dim;
    const int64_t first = int64_t(head) * dim;
    const auto from = [&](const void* pool, int s) { return static_cast<const P*>(pool) + x.place[s] + first; };
    for (int s = 0; s < n; s++) {
        x.k_row[s] = from(c.k, s), x.v_row[s] = from(c.v, s);
        if constexpr (sizeof(T) == 2) {
            bf16* to = x.v_pairs + s / 2 * 2 * v_dim;
            x.v_row[s] = to;
            if (s % 2 == 0)  // an odd last key is paired with the entry that `locate` puts past the end
                for (int d = 0; d < v_dim; d += 2 * W) interleave(to + 2 * d, from(c.v, s) + d, from(c.v, s + 1) + d);
        } else if constexpr (sizeof(P) < 4) {
            for (int d = 0; d < dim; d += W) store(x.k + s * dim + d, load(from(c.k, s) + d));
            widen_value<P>(c, x, s, head, x.v + s * v_dim);
            x.k_row[s] = x.k + s * dim, x.v_row[s] = x.v + s * v_dim;
        }
    }
}

// Writes O of all rows to `out`, or as partial results.
template <class Q>
inline void write_results(const Call& c, const Item& item, int head, Scratch& x) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group, dim = c.v_dim;
    const int32_t* entry = c.rows + int64_t(item.first) * 2;
    for (int r = 0; r < n; r += W) {
        const int n_here = n - r < W ? n - r : W;
        float by[W];
        vf* total = x.total + r / PANEL * PANEL + r % PANEL / W;  // and every NV-th after it
        for (int half = W / 2; half; half /= 2)
            for (int i = 0; i < half; i++) total[i * NV] += total[(i + half) * NV];
        for (int i = 0; i < n_here; i++) {
            const int at = (r + i) / group, h = head * group + (r + i) % group, part = entry[at * 2 + 1];
            by[i] = normalizer(c, h, part, total[0][i], x.best[r / W][i]);
        }
        for (int d = 0; d < dim; d += W) {
            vf square[W];
            for (int i = 0; i < W; i++) square[i] = load(x.acc + r / PANEL * PANEL * dim + (d + i) * PANEL + r % PANEL);
            transpose<W / 2>(square);
            for (int i = 0; i < n_here; i++) {
                const int at = (r + i) / group, h = head * group + (r + i) % group, part = entry[at * 2 + 1];
                if (part >= 0) store(c.part + (int64_t(part) * c.n_heads + h) * dim + d, square[i] * by[i]);
                else store(static_cast<Q*>(c.out) + entry[at * 2] * c.s_out + h * dim + d, square[i] * by[i]);
            }
        }
    }
}

// T: the type that is multiplied: bf16 in pairs, or float. Q: the type of rows. read_block(first key, n) prepares keys
// and values of a block for all panels of rows; panel(block, p, n) adds the block to the results of panel p, of which n
// rows are left.
template <class T, class Q, class Read, class PerPanel>
void attend_many(const Call& c, const Item& item, int head, Scratch& x, const Read& read_block, const PerPanel& panel) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group, n_panels = (n + PANEL - 1) / PANEL;
    const int32_t* entry = c.rows + int64_t(item.first) * 2;
    transpose_rows<T, Q>(c, item, head, x);
    int newest = 0;
    for (int r = 0; r < n_panels * PANEL; r++) {
        const int at = (r < n ? r : n - 1) / group, row = entry[at * 2];
        const int oldest = oldest_key(c, item, row);
        x.last[r] = float(item.position + at), x.oldest[r] = float(oldest);
        newest = oldest > newest ? oldest : newest;
        if (c.ancestors) x.ancestors[r] = c.ancestors[row];
    }
    for (int i = 0; i < n_panels * NV; i++) x.best[i] = vf{} - INFINITY;
    for (int i = 0; i < n_panels * PANEL; i++) x.total[i] = vf{};
    std::memset(x.acc, 0, sizeof(float) * n_panels * PANEL * c.v_dim);
    for (int at = item.start; at < item.end; at += BLOCK) {
        const int n_keys = item.end - at < BLOCK ? item.end - at : BLOCK;
        read_block(at, n_keys);
        for (int p = 0; p < n_panels; p++) {
            const int first = item.position + p * PANEL / group + 1;
            const int end = std::min(at + n_keys, int(x.last[p * PANEL + PANEL - 1]) + 1);  // the last row attends to no later key
            if (end <= at) continue;
            const bool is_whole = end <= first && at >= newest && !(c.ancestors && end > item.tail);
            panel(Block{at, end - at, first, is_whole}, p, n - p * PANEL);
        }
    }
    write_results<Q>(c, item, head, x);
}

// One KV head of an item with many rows, without AMX tiles. P: the type of pools.
template <class T, class Q, class P>
void attend_many(const Call& c, const Item& item, int head, Scratch& x) {
    const int n_panels = (item.n * (c.n_heads / c.n_kv_heads) + PANEL - 1) / PANEL;
    NextBlock<P> next(c, head, 1);
    const auto read_block = [&](int at, int n) {
        load_block<T, P>(c, item, at, n, head, x);
        next.set(item, at + BLOCK, n_panels);
    };
    attend_many<T, Q>(c, item, head, x, read_block, [&](const Block& block, int p, int n) {
        next.prefetch();
        // as few vectors as the rows need, but at least NV / 2: below, reading K and V dominates
        if (n > 3 * PANEL / 4) panel_across<T, P, NV>(c, item, x, block, p);
        else if (n > PANEL / 2) panel_across<T, P, (3 * NV + 3) / 4>(c, item, x, block, p);
        else panel_across<T, P, NV / 2>(c, item, x, block, p);
    });
}

}  // namespace
