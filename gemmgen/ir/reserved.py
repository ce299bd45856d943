"""Words that operands, rings, roles and kernels may not be called by, because emitted text and calls mean others."""

from __future__ import annotations

from keyword import kwlist

AXES = ("m", "n", "k")
CALLS = ("self", "others")
TYPES = ("u8", "u16", "u32", "u64", "i32", "bf16", "bf16x2", "f16", "f16x2", "e4m3", "e4m3x2", "e5m2", "e5m2x2")
SCOPES = ("gemmgen", "ptx", "float2")
FUNCTIONS = ("announce_barriers", "wait_for_barriers")
"""What schedule cluster_split_k has beside roles."""
LOCALS = ("p", "warp", "tmem")
"""What a kernel has in front of the calls of its roles."""
MATHS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc "
    "erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim fdivide floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn "
    "ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter norm norm3d "
    "norm4d normcdf normcdfinv pow rcbrt remainder remquo rhypot rint rnorm round rsqrt scalbln scalbn sin sincos "
    "sincospi sinh sinpi sqrt tan tanh tgamma trunc y0 y1 yn"
)
LIBRARY = (
    "abs clock clock64 dim3 free labs llabs llmax llmin main malloc max min printf ptrdiff_t size_t std ullmax ullmin "
    "umax umin va_arg va_copy va_end va_start"
)
CPP = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
    "wchar_t while xor xor_eq"
)
WORDS = (*CPP.split(" "), *TYPES, *SCOPES)
RESERVED = frozenset((*kwlist, *WORDS, *AXES, *CALLS))
RINGS = frozenset((*WORDS, *FUNCTIONS, "std"))
"""Rings are namespaces."""
ROLES = frozenset((*WORDS, *FUNCTIONS, *LOCALS, "std"))
"""Roles are functions in a namespace of the file's own."""
KERNELS = frozenset(
    (*kwlist, *WORDS, *MATHS.split(" "), *(f"{each}f" for each in MATHS.split(" ")), *LIBRARY.split(" "))
)
"""Kernels are functions with C's names, beside those of its library."""


def check_free(what: str, name: str, words: frozenset[str]) -> str:
    """The name, if it is none of those words."""
    if name in words:
        raise ValueError(
            f"{what} {name!r} is called by a word of Python or CUDA, or one that emitted text has a meaning for; "
            f"rename it, {name + '_'!r} say"
        )
    return name
