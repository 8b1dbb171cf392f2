// Draws a token from each row of logits; kernels/draw/reference.py defines the result.
#pragma once

#include <vector>

#include "vector.h"

namespace {

struct Draws {  // mirrors Rows of kernels/draw/rows.py: one number per row in each
    const double* temperature;
    const int64_t* top_k;
    const double *top_p, *min_p;
    const int64_t *seed, *sample, *position;
};

constexpr int64_t CHUNK = 1024;  // weights that are summed in float; these sums are added in double

inline uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

inline uint32_t bits_of(float x) {  // has the order of positive numbers
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

// The largest logit; NaN if any is NaN.
inline float peak(const float* x, int64_t n) {
    vf most = vf{} - INFINITY;
    vi wrong = vi{};
    each_vector(n, [&](int64_t i, auto left) {
        const vf y = load_some(x + i, left, -INFINITY);
        most = vmax(most, y);
        wrong |= y != y;
    });
    for (int i = 0; i < W; i++)
        if (wrong[i]) return NAN;
    return top(most);
}

// Computes weights, the largest of them 1. Forbidden and very small logits have weight 0. Returns the sum.
inline double weigh(const float* x, float* w, int64_t n, float peak, float temperature) {
    double mass = 0;
    for (int64_t at = 0; at < n; at += CHUNK) {
        vf part = vf{};
        each_vector(n - at < CHUNK ? n - at : CHUNK, [&](int64_t i, auto left) {
            const vf y = exp2((load_some(x + at + i, left, -INFINITY) - peak) / temperature * LOG2E);
            store(w + at + i, y);
            part += y;
        });
        mass += sum(part);
    }
    return mass;
}

// The largest weight at which it and all larger weights reach a goal, in number or in mass; and the weights above it.
struct Border {
    float weight;
    int64_t n_above;
    double mass_above;
};

struct Bins {
    std::vector<int64_t> n;
    std::vector<double> mass;
    std::vector<float> some, fewer;
};

inline Border border(const float* w, int64_t n, int64_t goal_n, double goal_mass, Bins& bins) {
    constexpr int SHIFTS[] = {18, 6, 0}, SIZES[] = {4096, 4096, 64};
    int64_t n_above = 0;
    double mass_above = 0;
    uint32_t prefix = 0;
    for (int level = 0; level < 3; level++) {
        const int shift = SHIFTS[level], size = SIZES[level];
        bins.n.assign(size, 0);
        bins.mass.assign(size, 0.0);
        for (int64_t i = 0; i < n; i++) {
            const uint32_t at = bits_of(w[i]) >> shift & (size - 1);
            bins.n[at]++;
            bins.mass[at] += w[i];
        }
        int at = size, last = 0;  // last: the lowest bin that is not empty, used if rounding keeps the goal out of reach
        while (at-- > 0) {
            if (!bins.n[at]) continue;
            last = at;
            if (goal_n ? n_above + bins.n[at] >= goal_n : mass_above + bins.mass[at] >= goal_mass) break;
            n_above += bins.n[at];
            mass_above += bins.mass[at];
        }
        if (at < 0) {
            at = last;
            n_above -= bins.n[at];
            mass_above -= bins.mass[at];
        }
        prefix = level == 2 ? prefix << 6 | at : prefix << 12 | at;
        if (level == 2) break;
        bins.fewer.clear();
        for (int64_t i = 0; i < n; i++)
            if (bits_of(w[i]) >> shift == prefix) bins.fewer.push_back(w[i]);
        bins.some.swap(bins.fewer);
        w = bins.some.data();
        n = int64_t(bins.some.size());
    }
    float weight;
    std::memcpy(&weight, &prefix, 4);
    return {weight, n_above, mass_above};
}

// The smallest weight that the filters keep, of n weights with sum `mass`.
inline float least_kept(const float* w, int64_t n, double mass, int64_t top_k, double top_p, double min_p, Bins& bins) {
    float least = 0x1p-100f;
    if (top_k > 0 && top_k < n) {
        const Border found = border(w, n, top_k, 0, bins);
        least = found.weight > least ? found.weight : least;
        mass = found.mass_above + double(top_k - found.n_above) * found.weight;  // exactly top_k, without ties
    }
    if (top_p < 1) {
        const Border found = border(w, n, 0, top_p * mass, bins);
        least = found.weight > least ? found.weight : least;
    }
    return min_p > least ? float(min_p) : least;
}

// The first token at which the running sum of kept weights exceeds u times their total. n is a multiple of W.
inline int64_t pick(const float* w, int64_t n, float least, double u) {
    thread_local std::vector<double> sums;
    sums.clear();
    double total = 0;
    for (int64_t at = 0; at < n; at += CHUNK) {
        vf part = vf{};
        for (int64_t i = at; i < n && i < at + CHUNK; i += W) {
            const vf y = load(w + i);
            part += y >= least ? y : vf{};
        }
        sums.push_back(sum(part));
        total += sums.back();
    }
    const double goal = u * total;
    double upto = 0;
    int64_t i = 0, last = 0;
    for (; i + CHUNK < n && upto + sums[i / CHUNK] <= goal; i += CHUNK) upto += sums[i / CHUNK];
    for (; i < n; i++) {
        if (w[i] < least) continue;
        last = i;
        if ((upto += w[i]) > goal) break;
    }
    return last;
}

inline int64_t draw(const float* x, int64_t n_vocab, const Draws& d, int64_t i) {
    thread_local std::vector<float> weights;
    thread_local Bins bins;
    const float most = peak(x, n_vocab);
    if (!std::isfinite(most)) return -1;
    if (d.temperature[i] <= 0) {
        int64_t at = 0;
        for (vi found = vi{}; at + 8 * W <= n_vocab; at += 8 * W) {
            for (int v = 0; v < 8; v++) found |= load(x + at + v * W) == most;
            if (most == top(found ? vf{} + most : vf{} - INFINITY)) break;
        }
        while (x[at] != most) at++;
        return at;
    }
    const int64_t n = (n_vocab + W - 1) / W * W;
    if (int64_t(weights.size()) < n) weights.resize(n);
    float* w = weights.data();
    const float temperature = d.temperature[i] > 1e-30 ? float(d.temperature[i]) : 1e-30f;
    const double mass = weigh(x, w, n_vocab, most, temperature);
    const float least = least_kept(w, n, mass, d.top_k[i], d.top_p[i], d.min_p[i], bins);
    const uint64_t step = mix(mix(mix(uint64_t(d.seed[i])) ^ uint64_t(d.sample[i])) ^ uint64_t(d.position[i])) >> 16;
    return pick(w, n, least, (double(step) + 0.5) * 0x1p-48);
}

}  // namespace
