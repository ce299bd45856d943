"""Words that an operand may not be called by, because emitted text and calls have a meaning for them."""

from __future__ import annotations

from keyword import kwlist

AXES = ("m", "n", "k")
CALLS = ("self", "others")
TYPES = ("u8", "u16", "u32", "u64", "i32", "bf16", "bf16x2", "f16", "f16x2", "e4m3", "e4m3x2", "e5m2", "e5m2x2")
SCOPES = ("gemmgen", "ptx", "float2")
CPP = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
    "wchar_t while xor xor_eq"
)
RESERVED = frozenset((*kwlist, *CPP.split(" "), *AXES, *CALLS, *TYPES, *SCOPES))
