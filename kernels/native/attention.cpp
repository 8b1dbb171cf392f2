// The C interface of attention. It is compiled in parallel with the rest (ops.cpp).

#include "types.h"  // first, as it refuses old compilers

#include "attention.h"

extern "C" {

void banyan_attention(int is_bf16, int kind, const Call* c, const Item* small, int n_small, const Item* large,
                      int n_large, const int32_t* merges, int n_merges, int n_threads) {
    by_types(is_bf16, kind, [&](auto t, auto p) {
        run<decltype(t), decltype(p)>(*c, small, n_small, large, n_large, merges, n_merges, n_threads);
    });
}

}  // extern "C"
