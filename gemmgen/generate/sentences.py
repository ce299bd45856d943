"""Sentences that several ops share."""

from __future__ import annotations

from gemmgen.generate.operator import COMPILED_DIMS

OUTPUT = {
    "d": "bf16 or fp32 [M, N] to write to, rows contiguous, any pitch; allocated when left out, returned either way.",
    "c": "of d's shape and type, added in fp32 before the result is rounded; may be d itself.",
    "compiled_dims": COMPILED_DIMS,
    "out_dtype": "type of a d that is allocated: c's when there is a c, else bf16.",
}
FINISH = {
    "bias": "bf16 or fp32 [N], added to every row in fp32.",
    "activation": "relu, squared_relu, gelu, gelu_tanh or silu, of the sum with c and bias, in fp32 before rounding.",
    "gate": "interleaved or halves: b's rows are gate and up, 8 of each in turn or all of gate first; d [M, N/2] is "
    "activation(gate) * up, silu if none is named; bias is added before, c is refused.",
}
RECIPES = {
    "recipe": "(rows a scale of a, of b, elements of K a scale of both), as fp8_fp4_gemm_nt.",
    "recipe_a": "(rows, elements of K) a scale of a, together with recipe_b, instead of recipe.",
    "recipe_b": "(rows, elements of K) a scale of b, together with recipe_a, instead of recipe.",
    "disable_ue8m0_cast": "accepted for compatibility; refused with fp32 scales on sm100 and sm120.",
}
MXFP8_SCALES = (
    "float8_e8m0fnu [M, ceil(N/32)], or int32 [M, ceil(N/128)], four a word along M, as sm100 and sm120 read the "
    "scales of a next product's a"
)
