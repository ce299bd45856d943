"""Mistakes of kernels that are launched early: what kernels ahead may still use is touched before the wait for them."""

from __future__ import annotations

from gemmgen.catalog import Shape, bf16_gemm, fp8_gemm_nt
from gemmgen.ir import Plan

from .edit import planted
from .kernels import Subject, register
from .ptx_text import Statement, delete, find, insert, replace

WAIT = "griddepcontrol.wait"
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared"

# four tiles on one CTA; lanes gather the scales of A, the epilogue reads C
_TILES = Shape(64, 32, groups=1, slots=2, unroll=1)
_WALKING = fp8_gemm_nt(_TILES, residual=True, sfa_major="k", programmatic_launch=True)
register("early_fp8", Subject(_WALKING, m=72, n=40, k=272))
# two CTAs share a tile by way of a workspace, and lanes store
_SHARED = Shape(64, 32, groups=1, slots=2, unroll=1, share=True)
_SHARING = bf16_gemm("nt", _SHARED, direct_store=True, programmatic_launch=True)
register("early_share", Subject(_SHARING, m=64, n=24, k=968, sms=2))


def _too_early(what: str, did: str, role: str) -> str:
    """A report of who touched what."""
    return rf"\({role}\): .*: {what}(\+\d+|, box at \S+ \S+): lanes \S+ {did} it before their griddepcontrol\.wait"


def _loader_waits(text: str) -> Statement:
    """Of the waits of a kernel whose roles wait apart, the one that stands beside copies."""
    copies = [each.start for each in find(text, TENSOR_LOAD)]
    return min(find(text, WAIT), key=lambda each: min(abs(each.start - copy) for copy in copies))


@planted("push_bf16", says=_too_early("a", "read", "load"))
def the_loader_does_not_wait_for_kernels_ahead(text: str, plan: Plan) -> str:
    return delete(text, [_loader_waits(text)])


@planted("push_bf16", says=_too_early("d", "write", "math"))
def products_do_not_wait_for_kernels_ahead(text: str, plan: Plan) -> str:
    loader = _loader_waits(text)
    return delete(text, find(text, WAIT, lambda each: each != loader))


@planted("push_bf16", says=_too_early("a", "read", "load"))
def a_is_read_ahead_as_well(text: str, plan: Plan) -> str:
    """The loader waits behind its first copy of A, not before it."""
    wait = _loader_waits(text)
    for copy in reversed(find(text, TENSOR_LOAD, lambda each: each.start > wait.start)):
        text = insert(text, copy.end, f"{WAIT};")
    return delete(text, [wait])


def _all_but(text: str, first: int, warps: int) -> str:
    """Threads wait where they all do, but for those of some warps."""
    wait = min(find(text, WAIT), key=lambda each: each.start)
    others = f"sub.u32 r, r, {32 * first}; setp.ge.u32 q, r, {32 * warps}; @q {WAIT};"
    return replace(text, wait, f"{{ .reg .pred q; .reg .b32 r; mov.u32 r, %tid.x; {others} }}")


@planted("early_fp8", says=_too_early("a", "read", "load"))
def boxes_are_copied_before_kernels_ahead_have_ended(text: str, plan: Plan) -> str:
    return _all_but(text, plan.role("load").first_warp, 1)


@planted("early_fp8", says=_too_early("sfa", "read", "load"))
def scales_are_copied_before_kernels_ahead_have_ended(text: str, plan: Plan) -> str:
    return _all_but(text, plan.role("load").first_warp + 1, 1)


@planted("early_fp8", says=_too_early("c", "read", "math"))
def c_is_read_before_kernels_ahead_have_ended(text: str, plan: Plan) -> str:
    return _all_but(text, plan.role("math").first_warp, plan.role("math").warps)


@planted("early_fp8", says=_too_early("a|sfa|b|sfb", "read", "load"))
def nobody_waits_for_kernels_ahead(text: str, plan: Plan) -> str:
    return delete(text, find(text, WAIT))


@planted("early_fp8", says=_too_early("a", "read", "load"))
def the_first_box_is_copied_before_the_wait(text: str, plan: Plan) -> str:
    for copy in reversed(find(text, TENSOR_LOAD)):
        text = insert(text, copy.end, f"{WAIT};")
    return _all_but(text, plan.role("load").first_warp, 1)


@planted("early_share", says=_too_early("partials", "write", "math"))
def sums_are_shared_before_kernels_ahead_have_ended(text: str, plan: Plan) -> str:
    """The workspace may be in use still, by a kernel that shares sums as well."""
    return _all_but(text, plan.role("math").first_warp, plan.role("math").warps)
