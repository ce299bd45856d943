"""Rules of specs of groups."""

from __future__ import annotations

import pytest

from gemmgen import catalog


def test_something_says_how_many_groups_there_are() -> None:
    spec = catalog.grouped_specs()["sm90_m_grouped_bf16_gemm_nt_bf16_64x128_by_ids"]
    alone = tuple(each.replace(box=each.plane) for each in spec.operands)
    with pytest.raises(ValueError, match=r"groups by ids, but no operand has an axis 'g'.*put 'g' first in what each"):
        spec.replace(operands=alone)
