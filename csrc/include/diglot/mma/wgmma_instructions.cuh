// The text of wgmma.mma_async for each n, which wgmma.cuh includes: inline assembly has its
// operands one by one, so that each n needs its own. Types and options come in as text ("C"
// operands).
#pragma once

#include "diglot/mma/operands.h"
#include "diglot/platform.cuh"

namespace diglot {

template <MmaType kType>
struct MmaTypeText;
#define DIGLOT_MMA_TYPE(TYPE, DEPTH, NAME)                           \
  template <>                                                        \
  struct MmaTypeText<MmaType::TYPE> {                                \
    static constexpr char kName[] = "." NAME;                        \
    static constexpr char kShapeAndName[] = "k" #DEPTH ".f32." NAME; \
  };
DIGLOT_MMA_TYPE(kBfloat16, 16, "bf16")
DIGLOT_MMA_TYPE(kFloat16, 16, "f16")
DIGLOT_MMA_TYPE(kTf32, 8, "tf32")
DIGLOT_MMA_TYPE(kE4m3, 32, "e4m3")
DIGLOT_MMA_TYPE(kE5m2, 32, "e5m2")
#undef DIGLOT_MMA_TYPE

// Blanks stand for an operand that an instruction does not have.
DIGLOT_CONSTEXPR char sign_text(bool negates) { return negates ? '-' : ' '; }
DIGLOT_CONSTEXPR char major_text(Major major) { return major == Major::kMn ? '1' : '0'; }

// multiply<Form>(d, a, b, accumulate): a product of A, given by a descriptor or four registers, and
// B. `Form` is a WgmmaForm.
template <int kN>
struct WgmmaInstruction;

// The accumulators' numbers, n / 2 of them.
#define DIGLOT_NUMBERS_8 "%0, %1, %2, %3"
#define DIGLOT_NUMBERS_16 DIGLOT_NUMBERS_8 ", %4, %5, %6, %7"
#define DIGLOT_NUMBERS_24 DIGLOT_NUMBERS_16 ", %8, %9, %10, %11"
#define DIGLOT_NUMBERS_32 DIGLOT_NUMBERS_24 ", %12, %13, %14, %15"
#define DIGLOT_NUMBERS_40 DIGLOT_NUMBERS_32 ", %16, %17, %18, %19"
#define DIGLOT_NUMBERS_48 DIGLOT_NUMBERS_40 ", %20, %21, %22, %23"
#define DIGLOT_NUMBERS_56 DIGLOT_NUMBERS_48 ", %24, %25, %26, %27"
#define DIGLOT_NUMBERS_64 DIGLOT_NUMBERS_56 ", %28, %29, %30, %31"
#define DIGLOT_NUMBERS_72 DIGLOT_NUMBERS_64 ", %32, %33, %34, %35"
#define DIGLOT_NUMBERS_80 DIGLOT_NUMBERS_72 ", %36, %37, %38, %39"
#define DIGLOT_NUMBERS_88 DIGLOT_NUMBERS_80 ", %40, %41, %42, %43"
#define DIGLOT_NUMBERS_96 DIGLOT_NUMBERS_88 ", %44, %45, %46, %47"
#define DIGLOT_NUMBERS_104 DIGLOT_NUMBERS_96 ", %48, %49, %50, %51"
#define DIGLOT_NUMBERS_112 DIGLOT_NUMBERS_104 ", %52, %53, %54, %55"
#define DIGLOT_NUMBERS_120 DIGLOT_NUMBERS_112 ", %56, %57, %58, %59"
#define DIGLOT_NUMBERS_128 DIGLOT_NUMBERS_120 ", %60, %61, %62, %63"
#define DIGLOT_NUMBERS_136 DIGLOT_NUMBERS_128 ", %64, %65, %66, %67"
#define DIGLOT_NUMBERS_144 DIGLOT_NUMBERS_136 ", %68, %69, %70, %71"
#define DIGLOT_NUMBERS_152 DIGLOT_NUMBERS_144 ", %72, %73, %74, %75"
#define DIGLOT_NUMBERS_160 DIGLOT_NUMBERS_152 ", %76, %77, %78, %79"
#define DIGLOT_NUMBERS_168 DIGLOT_NUMBERS_160 ", %80, %81, %82, %83"
#define DIGLOT_NUMBERS_176 DIGLOT_NUMBERS_168 ", %84, %85, %86, %87"
#define DIGLOT_NUMBERS_184 DIGLOT_NUMBERS_176 ", %88, %89, %90, %91"
#define DIGLOT_NUMBERS_192 DIGLOT_NUMBERS_184 ", %92, %93, %94, %95"
#define DIGLOT_NUMBERS_200 DIGLOT_NUMBERS_192 ", %96, %97, %98, %99"
#define DIGLOT_NUMBERS_208 DIGLOT_NUMBERS_200 ", %100, %101, %102, %103"
#define DIGLOT_NUMBERS_216 DIGLOT_NUMBERS_208 ", %104, %105, %106, %107"
#define DIGLOT_NUMBERS_224 DIGLOT_NUMBERS_216 ", %108, %109, %110, %111"
#define DIGLOT_NUMBERS_232 DIGLOT_NUMBERS_224 ", %112, %113, %114, %115"
#define DIGLOT_NUMBERS_240 DIGLOT_NUMBERS_232 ", %116, %117, %118, %119"
#define DIGLOT_NUMBERS_248 DIGLOT_NUMBERS_240 ", %120, %121, %122, %123"
#define DIGLOT_NUMBERS_256 DIGLOT_NUMBERS_248 ", %124, %125, %126, %127"

// And the accumulators.
#define DIGLOT_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DIGLOT_ACCUMULATORS_8 DIGLOT_FOUR(0)
#define DIGLOT_ACCUMULATORS_16 DIGLOT_ACCUMULATORS_8, DIGLOT_FOUR(4)
#define DIGLOT_ACCUMULATORS_24 DIGLOT_ACCUMULATORS_16, DIGLOT_FOUR(8)
#define DIGLOT_ACCUMULATORS_32 DIGLOT_ACCUMULATORS_24, DIGLOT_FOUR(12)
#define DIGLOT_ACCUMULATORS_40 DIGLOT_ACCUMULATORS_32, DIGLOT_FOUR(16)
#define DIGLOT_ACCUMULATORS_48 DIGLOT_ACCUMULATORS_40, DIGLOT_FOUR(20)
#define DIGLOT_ACCUMULATORS_56 DIGLOT_ACCUMULATORS_48, DIGLOT_FOUR(24)
#define DIGLOT_ACCUMULATORS_64 DIGLOT_ACCUMULATORS_56, DIGLOT_FOUR(28)
#define DIGLOT_ACCUMULATORS_72 DIGLOT_ACCUMULATORS_64, DIGLOT_FOUR(32)
#define DIGLOT_ACCUMULATORS_80 DIGLOT_ACCUMULATORS_72, DIGLOT_FOUR(36)
#define DIGLOT_ACCUMULATORS_88 DIGLOT_ACCUMULATORS_80, DIGLOT_FOUR(40)
#define DIGLOT_ACCUMULATORS_96 DIGLOT_ACCUMULATORS_88, DIGLOT_FOUR(44)
#define DIGLOT_ACCUMULATORS_104 DIGLOT_ACCUMULATORS_96, DIGLOT_FOUR(48)
#define DIGLOT_ACCUMULATORS_112 DIGLOT_ACCUMULATORS_104, DIGLOT_FOUR(52)
#define DIGLOT_ACCUMULATORS_120 DIGLOT_ACCUMULATORS_112, DIGLOT_FOUR(56)
#define DIGLOT_ACCUMULATORS_128 DIGLOT_ACCUMULATORS_120, DIGLOT_FOUR(60)
#define DIGLOT_ACCUMULATORS_136 DIGLOT_ACCUMULATORS_128, DIGLOT_FOUR(64)
#define DIGLOT_ACCUMULATORS_144 DIGLOT_ACCUMULATORS_136, DIGLOT_FOUR(68)
#define DIGLOT_ACCUMULATORS_152 DIGLOT_ACCUMULATORS_144, DIGLOT_FOUR(72)
#define DIGLOT_ACCUMULATORS_160 DIGLOT_ACCUMULATORS_152, DIGLOT_FOUR(76)
#define DIGLOT_ACCUMULATORS_168 DIGLOT_ACCUMULATORS_160, DIGLOT_FOUR(80)
#define DIGLOT_ACCUMULATORS_176 DIGLOT_ACCUMULATORS_168, DIGLOT_FOUR(84)
#define DIGLOT_ACCUMULATORS_184 DIGLOT_ACCUMULATORS_176, DIGLOT_FOUR(88)
#define DIGLOT_ACCUMULATORS_192 DIGLOT_ACCUMULATORS_184, DIGLOT_FOUR(92)
#define DIGLOT_ACCUMULATORS_200 DIGLOT_ACCUMULATORS_192, DIGLOT_FOUR(96)
#define DIGLOT_ACCUMULATORS_208 DIGLOT_ACCUMULATORS_200, DIGLOT_FOUR(100)
#define DIGLOT_ACCUMULATORS_216 DIGLOT_ACCUMULATORS_208, DIGLOT_FOUR(104)
#define DIGLOT_ACCUMULATORS_224 DIGLOT_ACCUMULATORS_216, DIGLOT_FOUR(108)
#define DIGLOT_ACCUMULATORS_232 DIGLOT_ACCUMULATORS_224, DIGLOT_FOUR(112)
#define DIGLOT_ACCUMULATORS_240 DIGLOT_ACCUMULATORS_232, DIGLOT_FOUR(116)
#define DIGLOT_ACCUMULATORS_248 DIGLOT_ACCUMULATORS_240, DIGLOT_FOUR(120)
#define DIGLOT_ACCUMULATORS_256 DIGLOT_ACCUMULATORS_248, DIGLOT_FOUR(124)

// The operands that follow: I1 to I9 are their numbers.
#define DIGLOT_WGMMA(N, I1, I2, I3, I4, I5, I6, I7, I8, I9)                                       \
  template <>                                                                                     \
  struct WgmmaInstruction<N> {                                                                    \
    template <typename Form>                                                                      \
    static DIGLOT_DEVICE void multiply(float (&d)[N / 2], uint64_t a, uint64_t b,                 \
                                       int accumulate) {                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I3                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "%" #I4 "%" #I5 " {" DIGLOT_NUMBERS_##N \
                   "}, %" #I1 ", %" #I2 ", p%" #I6 ";\n}\n"                                       \
                   : DIGLOT_ACCUMULATORS_##N                                                      \
                   : "l"(a), "l"(b), "r"(accumulate), "C"(Form::TextA::kShapeAndName),            \
                     "C"(Form::TextB::kName), "C"(Form::kOptions));                               \
    }                                                                                             \
    template <typename Form>                                                                      \
    static DIGLOT_DEVICE void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,     \
                                       int accumulate) {                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #I6                                       \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "%" #I7 "%" #I8 " {" DIGLOT_NUMBERS_##N \
                   "}, {%" #I1 ", %" #I2 ", %" #I3 ", %" #I4 "}, %" #I5 ", p%" #I9 ";\n}\n"       \
                   : DIGLOT_ACCUMULATORS_##N                                                      \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),         \
                     "C"(Form::TextA::kShapeAndName), "C"(Form::TextB::kName),                    \
                     "C"(Form::kOptions));                                                        \
    }                                                                                             \
  };
DIGLOT_WGMMA(8, 4, 5, 6, 7, 8, 9, 10, 11, 12)
DIGLOT_WGMMA(16, 8, 9, 10, 11, 12, 13, 14, 15, 16)
DIGLOT_WGMMA(24, 12, 13, 14, 15, 16, 17, 18, 19, 20)
DIGLOT_WGMMA(32, 16, 17, 18, 19, 20, 21, 22, 23, 24)
DIGLOT_WGMMA(40, 20, 21, 22, 23, 24, 25, 26, 27, 28)
DIGLOT_WGMMA(48, 24, 25, 26, 27, 28, 29, 30, 31, 32)
DIGLOT_WGMMA(56, 28, 29, 30, 31, 32, 33, 34, 35, 36)
DIGLOT_WGMMA(64, 32, 33, 34, 35, 36, 37, 38, 39, 40)
DIGLOT_WGMMA(72, 36, 37, 38, 39, 40, 41, 42, 43, 44)
DIGLOT_WGMMA(80, 40, 41, 42, 43, 44, 45, 46, 47, 48)
DIGLOT_WGMMA(88, 44, 45, 46, 47, 48, 49, 50, 51, 52)
DIGLOT_WGMMA(96, 48, 49, 50, 51, 52, 53, 54, 55, 56)
DIGLOT_WGMMA(104, 52, 53, 54, 55, 56, 57, 58, 59, 60)
DIGLOT_WGMMA(112, 56, 57, 58, 59, 60, 61, 62, 63, 64)
DIGLOT_WGMMA(120, 60, 61, 62, 63, 64, 65, 66, 67, 68)
DIGLOT_WGMMA(128, 64, 65, 66, 67, 68, 69, 70, 71, 72)
DIGLOT_WGMMA(136, 68, 69, 70, 71, 72, 73, 74, 75, 76)
DIGLOT_WGMMA(144, 72, 73, 74, 75, 76, 77, 78, 79, 80)
DIGLOT_WGMMA(152, 76, 77, 78, 79, 80, 81, 82, 83, 84)
DIGLOT_WGMMA(160, 80, 81, 82, 83, 84, 85, 86, 87, 88)
DIGLOT_WGMMA(168, 84, 85, 86, 87, 88, 89, 90, 91, 92)
DIGLOT_WGMMA(176, 88, 89, 90, 91, 92, 93, 94, 95, 96)
DIGLOT_WGMMA(184, 92, 93, 94, 95, 96, 97, 98, 99, 100)
DIGLOT_WGMMA(192, 96, 97, 98, 99, 100, 101, 102, 103, 104)
DIGLOT_WGMMA(200, 100, 101, 102, 103, 104, 105, 106, 107, 108)
DIGLOT_WGMMA(208, 104, 105, 106, 107, 108, 109, 110, 111, 112)
DIGLOT_WGMMA(216, 108, 109, 110, 111, 112, 113, 114, 115, 116)
DIGLOT_WGMMA(224, 112, 113, 114, 115, 116, 117, 118, 119, 120)
DIGLOT_WGMMA(232, 116, 117, 118, 119, 120, 121, 122, 123, 124)
DIGLOT_WGMMA(240, 120, 121, 122, 123, 124, 125, 126, 127, 128)
DIGLOT_WGMMA(248, 124, 125, 126, 127, 128, 129, 130, 131, 132)
DIGLOT_WGMMA(256, 128, 129, 130, 131, 132, 133, 134, 135, 136)
#undef DIGLOT_WGMMA
#undef DIGLOT_FOUR

}  // namespace diglot
