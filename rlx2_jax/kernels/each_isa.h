// Includes the file RLX2_KERNELS once per instruction set, so that one build runs on every CPU.
// No include guard: it is included several times.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(RLX2_X86)
#define RLX2_X86 1
#endif

#ifdef RLX2_X86
#define RLX2_NS avx512
#define RLX2_BYTES 64
#define RLX2_TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma")))
#include RLX2_KERNELS
#undef RLX2_NS
#undef RLX2_BYTES
#undef RLX2_TARGET
#define RLX2_NS avx2
#define RLX2_BYTES 32
#define RLX2_TARGET __attribute__((target("avx2,fma")))
#include RLX2_KERNELS
#undef RLX2_NS
#undef RLX2_BYTES
#undef RLX2_TARGET
#endif
#define RLX2_NS baseline
#define RLX2_BYTES 16
#define RLX2_TARGET
#include RLX2_KERNELS
#undef RLX2_NS
#undef RLX2_BYTES
#undef RLX2_TARGET
