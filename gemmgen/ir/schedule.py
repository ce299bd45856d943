"""Schedules: how output tiles reach CTAs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gemmgen.ir.node import Node

LEAST_BLOCKS, MOST_SPLITS = 4, 32
"""K blocks that are worth a CTA of their own, and how many CTAs' sums the last one adds up in a short time."""


class Tile(Node):
    """Extent of the output tile of one CTA and of a K block, in elements."""

    m: Annotated[int, Field(ge=8, le=512)]
    n: Annotated[int, Field(ge=8, le=256, multiple_of=8)]
    k: Annotated[int, Field(ge=16, le=512)]


class Cluster(Node):
    """CTAs launched together. Along m they share B's tile by multicast, along n they share A's."""

    m: Annotated[int, Field(ge=1, le=2)] = 1
    n: Annotated[int, Field(ge=1, le=2)] = 1

    @property
    def size(self) -> int:
        return self.m * self.n


class OneTile(Node):
    """One CTA per output tile; the grid is the number of tiles."""

    kind: Literal["one_tile"] = "one_tile"
    raster_group: Annotated[int, Field(ge=1)] = 8


class Persistent(Node):
    """As many CTAs as are resident at once, each walking tiles ``gridDim`` apart.

    ``raster_group`` tile rows are walked together, column by column, so that neighbours in time share L2.
    """

    kind: Literal["persistent"] = "persistent"
    raster_group: Annotated[int, Field(ge=1)] = 8


class CutRemainder(Node):
    """Persistent, and where the last wave of tiles is filled in part, each of its tiles is cut into ``parts`` along n.

    Those are handed out once more, so that all SMs share what is left, unless that would take as many waves of parts as
    a tile is worth: a part takes more than its share of a tile. One kernel with a second, narrower product (sm90).
    """

    kind: Literal["cut_remainder"] = "cut_remainder"
    parts: Annotated[int, Field(ge=2, le=8)]
    raster_group: Annotated[int, Field(ge=1)] = 8

    def waves(self, tiles: int, at_once: int) -> tuple[int, int]:
        """Waves of whole tiles and of parts, for so many tiles of which ``at_once`` are worked on at a time."""
        whole, left = divmod(tiles, at_once)
        cut = -(-left * self.parts // at_once)
        return (whole, cut) if 2 * cut <= self.parts else (whole + 1, 0)


class LaunchControl(Node):
    """One CTA (or pair) per output tile is launched; a running one takes over tiles of those that have not started.

    A role with body ``FetchTiles`` asks the hardware, which balances tiles of unlike cost (sm100 and later).
    """

    kind: Literal["launch_control"] = "launch_control"
    raster_group: Annotated[int, Field(ge=1)] = 8


class SplitK(Node):
    """Persistent, and ``splits`` CTAs share the K blocks of a tile, for problems with fewer tiles than SMs.

    Each writes its sums to a workspace; the one that comes last adds them up in a fixed order and runs the epilogue,
    so results do not depend on who that is. ``splits=None`` leaves their number to the launch, which makes as many as
    fill the GPU and shares K blocks out evenly, the remainder one each to the first. With ``slices`` nobody adds up:
    outputs have an axis ``"s"`` before their others, a slice for each split, and its extent is the number of splits.
    With ``whole_waves`` only tiles that fill no wave are shared: those before them have a CTA each.
    """

    kind: Literal["split_k"] = "split_k"
    splits: Annotated[int, Field(ge=2, le=32)] | None
    slices: bool = False
    whole_waves: bool = False
    raster_group: Annotated[int, Field(ge=1)] = 8

    @model_validator(mode="after")
    def _the_launch_counts_waves(self) -> SplitK:
        if self.whole_waves and (self.splits is not None or self.slices):
            raise ValueError("whole_waves is for splits that the launch decides on and that meet; use splits=None")
        return self

    def shared(self, tiles: int, at_once: int) -> int:
        """How many of the tiles CTAs share, ``at_once`` of which are there: all, or those that fill no wave."""
        return tiles % at_once if self.whole_waves else tiles

    def sharing(self, tiles: int, at_once: int, k_blocks: int) -> int:
        """How many CTAs share a tile where the launch decides: as many as fill the GPU, each with some K blocks."""
        most = min(MOST_SPLITS, -(-k_blocks // LEAST_BLOCKS))
        return max(1, min(at_once // max(1, self.shared(tiles, at_once)), most))


class ClusterSplitK(Node):
    """One tile for a cluster of ``splits`` CTAs that share its K blocks: not persistent, for products of few rows.

    Each CTA pushes slices of its sums into the shared memory of those that own them, which add up in the order of
    ranks and run the epilogue on their slices. Nobody waits for more than that; with one split nothing is pushed. The
    loading warp asks for the first K block before it says that barriers are made.
    """

    kind: Literal["cluster_split_k"] = "cluster_split_k"
    splits: Annotated[int, Field(ge=1, le=8)] = 1


Schedule = Annotated[
    OneTile | Persistent | CutRemainder | LaunchControl | SplitK | ClusterSplitK, Field(discriminator="kind")
]
