"""Mistakes of sm100 kernels for groups of rows: who skips tiles, whose operands are read, where words and rows end."""

from __future__ import annotations

from gemmgen.catalog.dense_sm100 import Factor, PairShape, scaled_gemm_nt
from gemmgen.ir import DType, Plan

from .edit import planted
from .kernels import register
from .ptx_text import Statement, find, insert, replace_all, rewrite
from .row_grouped import of_row_groups

_COARSE = Factor(DType.E4M3, 128)
_DENSE = {ctas: scaled_gemm_nt(_COARSE, _COARSE, PairShape(32, ctas=ctas, slots=2)) for ctas in (1, 2)}
_COUNTS = (5, 0, 37, 1)

# tiles that start anywhere, so that boxes of words start before them
register("sm100_offsets", of_row_groups(_DENSE[1], "ends", _COUNTS, n=32, k=256))
# a matrix for each group, of which one has a whole box of rows and more
register("sm100_masked", of_row_groups(_DENSE[1], "counts", _COUNTS, n=32, k=256))
# groups at multiples of a tile, and a tile of nobody behind them
register("sm100_ids", of_row_groups(_DENSE[1], "ids", _COUNTS, n=32, k=256))
# the same where the rows of both CTAs of a pair are a tile
register("sm100_pair_ids", of_row_groups(_DENSE[2], "ids", _COUNTS, n=32, k=256))

LOAD, STORE = "cp.async.bulk.tensor.3d.shared", "cp.async.bulk.tensor.3d.global"
ANYWHERE = 1 << 30
"""A row below every matrix."""


def _coordinates(copy: Statement) -> list[str]:
    """Those of the copy's box, the contiguous axis first."""
    box = next(each for each in copy.operands if "{" in each)
    return [each.strip() for each in box[box.index("{") + 1 : box.index("}")].split(",")]


def _of_first_group(text: str, copies: list[Statement]) -> str:
    """The last coordinate of these copies becomes 0."""

    def moved(each: Statement) -> str:
        place = next(i for i, operand in enumerate(each.operands) if "{" in operand)
        box = ", ".join([*_coordinates(each)[:-1], "0"])
        return rewrite(each, **{f"_{place}": f"{each.operands[place].partition(',')[0]}, {{{box}}}]"})

    return replace_all(text, copies, moved)


def _decided(text: str, found: list[Statement], truth: str) -> str:
    """Comparisons by this opcode always hold, and others never do."""

    def outcome(each: Statement) -> str:
        return f"setp.{'eq' if each.opcode.startswith(truth) else 'ne'}.u32 {each.target}, 0, 0;"

    return replace_all(text, found, outcome)


def _known(text: str, group: str) -> str:
    """Whoever has the group's number in this register works for nobody, too."""
    moves, names, before = find(text, "mov.u32"), {group}, 0
    while before < len(names):  # and in those that it is moved from and to
        before = len(names)
        names |= {name for each in moves for name in each.operands if names & {*each.operands} and name[0] == "%"}
    compared = ("setp.lt.u32", "setp.ge.u32")
    found = find(text, "setp.", lambda each: each.opcode in compared and each.operands[1] in names)
    return _decided(text, found, "setp.lt")


@planted("sm100_ids", says=r"no warp can make progress")
def producer_loads_for_tiles_of_nobody(text: str, plan: Plan) -> str:
    return _known(text, _coordinates(find(text, LOAD)[0])[-1])


@planted("sm100_ids", says=r"no warp can make progress")
def storing_warps_wait_for_tiles_of_nobody(text: str, plan: Plan) -> str:
    end = find(text, "redux.sync.max")[0]
    ids = find(text, "setp.eq.s32", lambda each: each.start < end.start)[-1]
    return _known(text, ids.operands[2])


@planted("sm100_pair_ids", says=r"no warp can make progress")
def each_cta_of_a_pair_asks_for_its_own_rows(text: str, plan: Plan) -> str:
    """The second one's may all be of nobody where the first one's are not."""
    rank = "{{ .reg .b32 q; mov.u32 q, %cluster_ctarank; mad.lo.s32 {0}, q, 128, {0}; }}"
    for each in reversed(find(text, "shl.b32", lambda each: each.operands[2] == "8")):
        text = insert(text, each.end, rank.format(each.target))
    return text


@planted("sm100_ids")
def rows_of_nobody_are_stored(text: str, plan: Plan) -> str:
    return replace_all(text, find(text, "redux.sync.max"), lambda each: f"mov.u32 {each.target}, {ANYWHERE};")


@planted("sm100_offsets")
def every_group_multiplies_by_the_first_b(text: str, plan: Plan) -> str:
    return _of_first_group(text, find(text, LOAD)[1:])


@planted("sm100_offsets")
def every_group_scales_by_the_first_ones_scales(text: str, plan: Plan) -> str:
    return _of_first_group(text, find(text, LOAD)[:1])


@planted("sm100_masked")
def every_group_stores_to_the_first_ones_rows(text: str, plan: Plan) -> str:
    return _of_first_group(text, find(text, STORE))


@planted("sm100_offsets")
def words_are_not_moved_up(text: str, plan: Plan) -> str:
    """Where the tile starts inside 16 bytes, those before it are of another group, or of nobody."""
    skipped = find(text, "and.b32", lambda each: each.operands[2] == "3" and _is_address(text, each))
    return replace_all(text, skipped, lambda each: f"mov.u32 {each.target}, 0;")


def _is_address(text: str, remainder: Statement) -> bool:
    """Whether words are counted from it, and not K blocks."""
    following = text[remainder.end : remainder.end + 400]
    return "setp" not in following.split(";")[0] and "shl.b32" in following


@planted("sm100_offsets", says=r"multiple of (4 elements|16 bytes)")
def words_are_copied_from_the_tile_on(text: str, plan: Plan) -> str:
    places = {each for copy in find(text, "cp.async.bulk.tensor.2d.shared") for each in _coordinates(copy)}
    starts = find(text, "and.b32", lambda each: each.operands[2] == "-4" and each.target in places)
    return replace_all(text, starts, lambda each: f"mov.b32 {each.target}, {each.operands[1]};")


@planted("sm100_offsets")
def a_box_that_its_group_ends_in_is_stored_whole(text: str, plan: Plan) -> str:
    """Trap 51: rows of the next group are written."""
    ends = [each.target for each in find(text, "add.s32", lambda each: each.operands[2] == "32")]
    found = find(text, "setp.", lambda each: each.opcode[5:] in ("le.u32", "gt.u32") and each.operands[1] in ends)
    return _decided(text, found, "setp.le")
