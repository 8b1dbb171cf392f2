// Attention in bfloat16 by Intel's AMX: tiles of 16 rows over blocks of 64 keys.
//
// S^T = K Q^T takes keys from the pages as they are. S is transposed back, so that the softmax is that of few.h. In
// O += P V, weights are rounded to bfloat16, as on a GPU, and values are multiplied in pairs of keys. Each row is
// computed by itself: its bits do not depend on the number of rows.
#pragma once

#include "few.h"
#include "many.h"

#ifdef BANYAN_TILES
namespace {

constexpr int N_CALLS = 12;  // of NextBlock::prefetch, for each head of a whole block

// Transposes up to 4 columns of 16 numbers. from: [16][TILE]; to: [4][BLOCK]
inline void four_columns(float* to, const float* from, int n) {
    __m512 x[4];
    for (int i = 0; i < 4; i++) {  // its lane j: row i + 4 j, so that 4 x 4 transposes keep the order
        const auto row = [&](int r) { return _mm_loadu_ps(from + (i + r) * TILE); };
        x[i] = _mm512_insertf32x4(_mm512_castps128_ps512(row(0)), row(4), 1);
        x[i] = _mm512_insertf32x4(_mm512_insertf32x4(x[i], row(8), 2), row(12), 3);
    }
    const __m512 low = _mm512_unpacklo_ps(x[0], x[1]), high = _mm512_unpackhi_ps(x[0], x[1]);
    const __m512 low2 = _mm512_unpacklo_ps(x[2], x[3]), high2 = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = _mm512_shuffle_ps(low, low2, 0x44), x[1] = _mm512_shuffle_ps(low, low2, 0xEE);
    x[2] = _mm512_shuffle_ps(high, high2, 0x44), x[3] = _mm512_shuffle_ps(high, high2, 0xEE);
    for (int i = 0; i < n; i++) _mm512_storeu_ps(to + i * BLOCK, x[i]);
}

// Computes the scores [row][BLOCK] of up to 16 rows. keys: the first of each 16 keys; s_key: from one key to the next;
// q: [dim / 2][n][2]
inline void tile_scores(float* scores, const bf16* const* keys, int64_t s_key, int n_keys, const bf16* q, int n, int dim,
                        NextBlock<bf16>& next) {
    alignas(64) float across[2][TILE * TILE];
    for (int s = 0; s < n_keys; s += 2 * TILE) {
        const bf16* const* key = keys + s / TILE;
        const bool both = n_keys - s > TILE;
        next.prefetch();
        _tile_zero(0);
        _tile_zero(1);
        for (int d = 0; d < dim; d += GROUP) {
            _tile_loadd(6, q + d * n, n * 2 * sizeof(bf16));  // columns from n on are not used
            _tile_loadd(4, key[0] + d, s_key * sizeof(bf16));
            _tile_dpbf16ps(0, 4, 6);
            if (both) { _tile_loadd(7, key[1] + d, s_key * sizeof(bf16)); _tile_dpbf16ps(1, 7, 6); }
        }
        next.prefetch();
        _tile_stored(0, across[0], sizeof(float) * TILE);
        _tile_stored(1, across[1], sizeof(float) * TILE);
        for (int half = 0; half <= both; half++) {
            float* to = scores + s + half * TILE;
            if (n <= 4) {
                four_columns(to, across[half], n);
            } else {
                vf square[TILE];
                for (int i = 0; i < TILE; i++) square[i] = load(across[half] + i * TILE);
                transpose<W / 2>(square);
                for (int i = 0; i < n; i++) store(to + i * BLOCK, square[i]);
            }
        }
    }
}

// Numbers d to d + 31 of the value of key s; 0 for keys from n on.
inline __m512i value_row(const Call& c, const Scratch& x, int n, int head, int s, int d) {
    const bf16* from = static_cast<const bf16*>(c.v) + x.place[s] + int64_t(head) * c.dim + d;
    return s < n ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
}

// The keys of a block in tiles of 16: in the page, or copied where 16 keys are not in one page.
class KeyTiles {
    const bool is_direct;

  public:
    const bf16* at[BLOCK / TILE];
    const int64_t apart;  // from one key of a tile to the next

    KeyTiles(const Call& c, const Item& item)
        : is_direct(c.page % TILE == 0 && item.start % TILE == 0), apart(is_direct ? c.s_slot : c.dim) {}

    // Reads one head of n located keys.
    void read(const Call& c, Scratch& x, int n, int head) {
        bf16* copied = reinterpret_cast<bf16*>(x.k);
        for (int s = 0; s < n; s++) {
            const bf16* from = static_cast<const bf16*>(c.k) + x.place[s] + int64_t(head) * c.dim;
            if (s % TILE == 0) at[s / TILE] = is_direct ? from : copied + s * c.dim;
            if (!is_direct) std::memcpy(copied + s * c.dim, from, c.dim * sizeof(bf16));
        }
    }
};

// Copies V of a block to [dim / 16][BLOCK / 2][16][2], in pairs of keys; 0 for keys from n on. Of each 32 numbers, 0 to
// 3, 8 to 11, ... come first, and then the others; `in_order` restores the order in the sums.
inline void pair_values(const Call& c, Scratch& x, int n, int head, NextBlock<bf16>& next) {
    const auto row = [&](int s, int d) { return value_row(c, x, n, head, s, d); };
    for (int s = 0; s < (n + GROUP - 1) / GROUP * GROUP; s += 2) {
        if (s % 8 == 0) next.prefetch();
        for (int d = 0; d < c.dim; d += GROUP) {
            const __m512i even = row(s, d), odd = row(s + 1, d);
            bf16* to = x.v_pairs + d * BLOCK + s * TILE;
            _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
            _mm512_store_si512(to + BLOCK * TILE, _mm512_unpackhi_epi16(even, odd));
        }
    }
}

inline void in_order(vf& low, vf& high) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const vf all = (vf)_mm512_permutex2var_ps((__m512)low, first, (__m512)high);
    high = (vf)_mm512_permutex2var_ps((__m512)low, _mm512_add_epi32(first, _mm512_set1_epi32(8)), (__m512)high);
    low = all;
}

// acc[n rows][dim] += weights * values. weights: [n][BLOCK]
inline void tile_sums(float* acc, const bf16* weights, const bf16* values, int n_keys, int dim,
                      NextBlock<bf16>& next) {
    for (int d = 0; d < dim; d += GROUP, acc += GROUP, values += GROUP * BLOCK) {
        next.prefetch();
        _tile_loadd(2, acc, dim * sizeof(float));
        _tile_loadd(3, acc + TILE, dim * sizeof(float));
        for (int s = 0; s < n_keys; s += GROUP) {
            _tile_loadd(5, weights + s, BLOCK * sizeof(bf16));
            _tile_loadd(6, values + s * TILE, 64);
            _tile_loadd(7, values + (BLOCK + s) * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, acc, dim * sizeof(float));
        _tile_stored(3, acc + TILE, dim * sizeof(float));
    }
}

// `attend_few` for bfloat16 rows and pools, and dimensions in whole tiles.
inline void attend_tiled(const Call& c, const Item& item, int head_from, int head_to, Scratch& x) {
    const int group = c.n_heads / c.n_kv_heads, n = item.n * group, dim = c.dim;
    const int n_tile = n < TILE ? n : TILE, s_head = (n + n_tile - 1) / n_tile * n_tile;  // rows of a tile, and of a head
    const int32_t* entry = c.rows + int64_t(item.first) * 2;  // (row of q, its partial result) of each row
    KeyTiles keys(c, item);
    alignas(64) bf16 weights[TILE * BLOCK];
    const Tiles shapes(n_tile);

    for (int h = head_from, at = 0; h < head_to; h++, at += s_head)
        for (int i = 0; i < n; i++) {
            const bf16* from = query<bf16>(c, item, entry[i / group * 2]) + (h * group + i % group) * dim;
            bf16* to = x.q_half + (at + i / n_tile * n_tile) * dim + i % n_tile * 2;
            for (int d = 0; d < dim; d += 2) std::memcpy(to + d * n_tile, from + d, 2 * sizeof(bf16));
            for (int d = 0; d < dim; d += W) store(x.acc + (at + i) * dim + d, vf{});
            x.top[at + i] = -INFINITY;
            x.total[at + i] = vf{};
        }
    NextBlock<bf16> next(c, head_from, head_to - head_from);
    next.set(item, item.start, 1);
    for (int key = item.start; key < item.end; key += BLOCK) {
        const int n_keys = item.end - key < BLOCK ? item.end - key : BLOCK, n_whole = (n_keys + GROUP - 1) / GROUP * GROUP;
        if (key == item.start) next.prefetch();
        next.set(item, key + BLOCK, N_CALLS * (head_to - head_from));
        locate(c, item, key, n_keys, x);
        for (int h = head_from, at = 0; h < head_to; h++, at += s_head) {
            keys.read(c, x, n_keys, h);
            pair_values(c, x, n_keys, h, next);
            for (int r = 0; r < n; r += n_tile) {
                const int n_here = n - r < n_tile ? n - r : n_tile;
                tile_scores(x.weight, keys.at, keys.apart, n_keys, x.q_half + (at + r) * dim, n_tile, dim,
                            next);
                for (int i = 0; i < n_here; i++) {
                    const int row = entry[(r + i) / group * 2];
                    const int oldest = oldest_key(c, item, row);
                    const uint64_t ancestors = c.ancestors ? c.ancestors[row] : ~uint64_t(0);
                    float *score = x.weight + i * BLOCK, *acc = x.acc + (at + r + i) * dim;
                    const int last = item.position + (r + i) / group;
                    const float shrink = weigh<bf16, true>(c, x, score, key, n_keys, last, oldest, item.tail, ancestors,
                                                           x.top[at + r + i], x.total[at + r + i]);
                    for (int s = (n_keys + W - 1) / W * W; s < n_whole; s += W) store(score + s, vf{});
                    for (int s = 0; s < n_whole; s += 2 * W)
                        store(weights + i * BLOCK + s, load(score + s), load(score + s + W));
                    for (int d = 0; d < dim && shrink != 1.0f; d += W) store(acc + d, load(acc + d) * shrink);
                }
                tile_sums(x.acc + (at + r) * dim, weights, x.v_pairs, n_keys, dim, next);
            }
        }
    }
    for (int h = head_from, at = 0; h < head_to; h++, at += s_head)
        for (int i = 0; i < n; i++) {
            const int head = h * group + i % group, row = entry[i / group * 2], part = entry[i / group * 2 + 1];
            const float by = normalizer(c, head, part, sum(x.total[at + i]), x.top[at + i]);
            float* part_to = c.part + (int64_t(part) * c.n_heads + head) * dim;
            bf16* to = static_cast<bf16*>(c.out) + row * c.s_out + head * dim;
            for (int d = 0; d < dim; d += 2 * W) {
                vf low = load(x.acc + (at + i) * dim + d) * by, high = load(x.acc + (at + i) * dim + d + W) * by;
                in_order(low, high);
                if (part >= 0) store(part_to + d, low), store(part_to + d + W, high);
                else store(to + d, low, high);
            }
        }
}

// --- Many rows: each lane is a row, as in many.h, and the bits of a row are those of `attend_tiled` -------------------------

// Transposes V of a block to [dim / 16][BLOCK / 32][16][32 keys]; 0 for keys from n on.
inline void transpose_values(const Call& c, Scratch& x, int n, int head) {
    const auto row = [&](int s, int d) { return value_row(c, x, n, head, s, d); };
    for (int s = 0; s < n; s += GROUP)
        for (int d = 0; d < c.dim; d += GROUP) {
            vf pairs[2][TILE];  // of keys, as [pair of keys][number]; unpacking puts numbers 0 to 3, 8 to 11, ... first
            for (int i = 0; i < TILE; i++) {
                const __m512i even = row(s + 2 * i, d), odd = row(s + 2 * i + 1, d);
                pairs[0][i] = (vf)_mm512_unpacklo_epi16(even, odd), pairs[1][i] = (vf)_mm512_unpackhi_epi16(even, odd);
            }
            for (int half = 0; half < 2; half++) {
                transpose<W / 2>(pairs[half]);
                for (int i = 0; i < TILE; i++) {
                    const int at = d + i / 4 * 8 + half * 4 + i % 4;
                    bf16* to = x.v_pairs + ((at / TILE * (BLOCK / GROUP) + s / GROUP) * TILE + at % TILE) * GROUP;
                    _mm512_store_si512(to, (__m512i)pairs[half][i]);
                }
            }
        }
}

// Computes the scores [key][PANEL] of n_tiles tiles of rows, for whole tiles of keys. keys: the first of each 16 keys;
// q: a panel of `transpose_rows`
inline void panel_scores(float* scores, const bf16* const* keys, int64_t s_key, int n_keys, const bf16* q, int n_tiles, int dim) {
    constexpr int64_t pitch = PANEL * sizeof(float);
    for (int s = 0; s < n_keys; s += TILE) {
        const bf16* key = keys[s / TILE];
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int d = 0; d < dim; d += GROUP) {
            const bf16* columns = q + d * PANEL;
            _tile_loadd(4, key + d, s_key * sizeof(bf16));
            _tile_loadd(6, columns, pitch);
            _tile_dpbf16ps(0, 4, 6);
            if (n_tiles > 1) { _tile_loadd(7, columns + 2 * TILE, pitch); _tile_dpbf16ps(1, 4, 7); }
            if (n_tiles > 2) { _tile_loadd(6, columns + 4 * TILE, pitch); _tile_dpbf16ps(2, 4, 6); }
            if (n_tiles > 3) { _tile_loadd(7, columns + 6 * TILE, pitch); _tile_dpbf16ps(3, 4, 7); }
        }
        float* to = scores + s * PANEL;
        _tile_stored(0, to, pitch);
        if (n_tiles > 1) _tile_stored(1, to + TILE, pitch);
        if (n_tiles > 2) _tile_stored(2, to + 2 * TILE, pitch);
        if (n_tiles > 3) _tile_stored(3, to + 3 * TILE, pitch);
    }
}

// Turns the scores [key][PANEL] of V vectors of rows into weights [pair of keys][PANEL][2], padded to a whole group of
// keys. Returns the factors of older sums in `shrink`. by: factor of the scores. All sums are in the order of `weigh`.
template <int V>
inline void weigh_panel(float* score, bf16* weight, int n, float by, vf* best, vf* total, vf* shrink) {
    vf base[V];
    update_best<V>(score, n, by, best, base, shrink);
    for (int s = n; s % GROUP; s++)
        for (int v = 0; v < V; v++) store(score + s * PANEL + v * W, vf{} - INFINITY);
    const int n_whole = (n + GROUP - 1) / GROUP * GROUP;
    for (int lane = 0; lane < W; lane += 2) {
        vf even_part[V] = {}, odd_part[V] = {};
        for (int s = lane; s < n_whole; s += W)
            for (int v = 0; v < V; v++) {
                const vf even = exp2(load(score + s * PANEL + v * W) * by - base[v]);
                const vf odd = exp2(load(score + (s + 1) * PANEL + v * W) * by - base[v]);
                even_part[v] += even, odd_part[v] += odd;
                store_pairs(weight + s * PANEL + v * 2 * W, even, odd);
            }
        for (int v = 0; v < V; v++) {
            vf &one = total[lane * NV + v], &other = total[(lane + 1) * NV + v];
            one = one * shrink[v] + even_part[v], other = other * shrink[v] + odd_part[v];
        }
    }
}

// Adds weights times values to 16 N dimensions of a tile of rows, acc [dim][PANEL]. The weights are in tiles 6 and 7.
template <int N>
inline void add_values(float* acc, const bf16* values, bool both) {
    constexpr int64_t pitch = PANEL * sizeof(float);
    constexpr int next = BLOCK * TILE;
    _tile_loadd(0, acc, pitch);
    _tile_loadd(1, acc + TILE * PANEL, pitch);
    if (N > 2) { _tile_loadd(2, acc + 2 * TILE * PANEL, pitch); _tile_loadd(3, acc + 3 * TILE * PANEL, pitch); }
    _tile_loadd(4, values, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, values + next, 64);
    _tile_dpbf16ps(1, 5, 6);
    if (N > 2) {
        _tile_loadd(4, values + 2 * next, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, values + 3 * next, 64);
        _tile_dpbf16ps(3, 5, 6);
    }
    if (both) {
        _tile_loadd(4, values + A_TILE, 64);
        _tile_dpbf16ps(0, 4, 7);
        _tile_loadd(5, values + next + A_TILE, 64);
        _tile_dpbf16ps(1, 5, 7);
        if (N > 2) {
            _tile_loadd(4, values + 2 * next + A_TILE, 64);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, values + 3 * next + A_TILE, 64);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, acc, pitch);
    _tile_stored(1, acc + TILE * PANEL, pitch);
    if (N > 2) { _tile_stored(2, acc + 2 * TILE * PANEL, pitch); _tile_stored(3, acc + 3 * TILE * PANEL, pitch); }
}

// acc [dim][PANEL] += weights * values, for n_tiles tiles of rows. weights: of `weigh_panel`; values: of
// `transpose_values`
inline void panel_sums(float* acc, const bf16* weights, const bf16* values, int n_keys, int n_tiles, int dim) {
    for (int v = 0; v < n_tiles; v++) {
        _tile_loadd(6, weights + v * 2 * TILE, PANEL * sizeof(float));
        if (n_keys > GROUP) _tile_loadd(7, weights + GROUP * PANEL + v * 2 * TILE, PANEL * sizeof(float));
        int d = 0;
        for (; d + 4 * TILE <= dim; d += 4 * TILE) add_values<4>(acc + d * PANEL + v * TILE, values + d * BLOCK, n_keys > GROUP);
        if (d < dim) add_values<2>(acc + d * PANEL + v * TILE, values + d * BLOCK, n_keys > GROUP);
    }
}

// Adds a block of keys to the results of panel p, of which V tiles of rows are left.
template <int V>
inline void panel_tiled(const Call& c, const Item& item, Scratch& x, const KeyTiles& keys, const Block& block, int p) {
    const int dim = c.dim, n_keys = (block.n + TILE - 1) / TILE * TILE;
    bf16* weight = reinterpret_cast<bf16*>(x.weight + BLOCK * PANEL);
    vf shrink[V];
    panel_scores(x.weight, keys.at, keys.apart, n_keys, x.q_half + p * PANEL * dim, V, dim);
    const bool is_capped = c.softcap > 0;
    if (is_capped) scale_scores<bf16, V>(c, x, block.n, c.scale);
    if (!block.is_whole) mask_scores<V>(c, item, x, block, p);
    weigh_panel<V>(x.weight, weight, block.n, is_capped ? 1.0f : c.scale, x.best + p * NV, x.total + p * PANEL, shrink);
    float* acc = x.acc + p * PANEL * dim;
    for (int v = 0; v < V; v++) {
        if (!_mm512_cmpneq_ps_mask((__m512)shrink[v], _mm512_set1_ps(1.0f))) continue;
        for (int d = 0; d < dim; d++) store(acc + d * PANEL + v * W, load(acc + d * PANEL + v * W) * shrink[v]);
    }
    panel_sums(acc, weight, x.v_pairs, block.n, V, dim);
}

constexpr int MANY_TILED = 9;  // fewest rows for which `attend_many_tiled` is faster than `attend_tiled` (measured)

// One KV head of an item with many rows, for bfloat16 rows and pools, and dimensions in whole tiles.
inline void attend_many_tiled(const Call& c, const Item& item, int head, Scratch& x) {
    KeyTiles keys(c, item);
    const Tiles shapes;
    attend_many<bf16, bf16>(
        c, item, head, x,
        [&](int at, int n) {
            locate(c, item, at, n, x);
            keys.read(c, x, n, head);
            transpose_values(c, x, n, head);
        },
        [&](const Block& block, int p, int n) {
            const int n_tiles = (std::min(n, PANEL) + TILE - 1) / TILE;
            by_count<PANEL / TILE>(n_tiles, [&](auto v) {
                panel_tiled<decltype(v)::value>(c, item, x, keys, block, p);
            });
        });
}

}  // namespace
#endif
