// The C interface of attention. It is compiled in parallel with the rest (ops.cpp).

#include "types.h"  // first, as it refuses old compilers

#include "attention.h"

extern "C" {

void banyan_attention(int is_bf16, int kind, const Call* c) {
    by_types(is_bf16, kind, [&](auto t, auto p) { run<decltype(t), decltype(p)>(*c); });
}

}  // extern "C"
