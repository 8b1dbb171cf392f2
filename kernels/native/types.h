// How the C interface names types: pointers are to float32, or to bfloat16 if is_bf16. Pools have that type too (kind
// 0), or int8 (1) or e4m3 (2) with scales, or int8 keys and values of 4 bits with scales and minimums (3).
#pragma once

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#error "the CPU kernels need GCC 12 or newer, or Clang"
#endif

#include "vector.h"

namespace {

// Calls f with a value of the computation's type.
template <class F>
void by_dtype(int is_bf16, const F& f) {
    if (is_bf16) f(bf16{});
    else f(float{});
}

// Calls f with values of the computation's type and of the pool's.
template <class F>
void by_types(int is_bf16, int kind, const F& f) {
    by_dtype(is_bf16, [&](auto t) {
        if (kind == 0) f(t, t);
        else if (kind == 1) f(t, int8_t{});
        else if (kind == 2) f(t, e4m3{});
        else f(t, k8v4{});
    });
}

}  // namespace
