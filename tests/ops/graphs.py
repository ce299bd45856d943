"""How many graphs a compiler makes of several calls: one, if it guards on none of the numbers that tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

ROWS = (9, 5, 6, 77)
Given = tuple[torch.Tensor, ...]


def graphs_of(function: Callable[..., Any], calls: Iterable[Given], run: bool = False) -> tuple[set[Any], int]:
    """What the first graph of a function calls, and how many there are; ``run`` compares results with eager ones."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward if run else lambda *arguments: [torch.empty(0)]

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for given in calls:
        result = compiled(*given)
        assert not run or torch.equal(result, function(*given))
    return {node.target for node in graphs[0].graph.nodes if node.op == "call_function"}, len(graphs)


def of_rows(*inputs: torch.Tensor) -> Iterator[Given]:
    """The same call with other numbers of rows, wherever an input has as many as the first one."""
    rows = len(inputs[0])
    for m in (rows, *ROWS[1:]):
        yield tuple(each[:1].expand(m, -1).clone() if len(each) == rows else each for each in inputs)
