"""Runs every shipped kernel on the GPU and on the simulator on inputs whose sums are exact, and compares the bits.

    python tests/gpu/agreement.py --json OUT
    python tests/gpu/agreement.py --since OUT

Both results are also held against the float64 reference. Sizes leave ragged edges in m, n and k and take four tiles;
the simulator runs a random schedule with another seed for each kernel. The file says where and when this was, and has a
digest of each kernel's text: ``--since`` runs nothing and names the kernels of which a file does not say that they ran
as they are now. Files from before digests say it of none.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import reference  # noqa: E402

import gemmgen  # noqa: E402
from gemmgen import catalog  # noqa: E402
from gemmgen.ir import DType, KernelSpec, Operand, split_axis  # noqa: E402
from gemmgen.ops.kernels import kernel_of  # noqa: E402
from gemmgen.runtime.nvrtc import nvrtc_version  # noqa: E402

TORCH = {DType.E4M3: torch.float8_e4m3fn, DType.BF16: torch.bfloat16, DType.F32: torch.float32}


def sizes(spec: KernelSpec) -> dict[str, int]:
    """A tile and a bit in m and n, two K blocks and a bit."""
    return {"m": spec.tile.m + 5, "n": spec.tile.n + 24, "k": 2 * spec.tile.k + 64}


def inputs(spec: KernelSpec) -> dict[str, torch.Tensor]:
    """Whole numbers for the factors and C, powers of two for scales, each laid out as the spec wants it."""
    tensors = {}
    for index, operand in enumerate(spec.operands):
        if operand.name == spec.output.name:
            continue
        extents = [-(-sizes(spec)[axis] // per) for axis, per in map(split_axis, operand.box)]
        found = numbers(spec, operand, *([1] * (2 - len(extents))), *extents, index)
        tensors[operand.name] = laid_out(operand, found) if len(extents) == 2 else found[0]
    return tensors


def numbers(spec: KernelSpec, operand: Operand, rows: int, cols: int, seed: int) -> torch.Tensor:
    if operand.name in ("a", "b"):
        return reference.exact_factor(rows, cols, TORCH[operand.dtype], seed)
    if operand.name in ("sfa", "sfb"):
        return reference.exact_scales(rows, cols, seed)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-32, 33, (rows, cols), generator=generator).to(TORCH[operand.dtype])


def laid_out(operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    """The contiguous axis where the operand has it, rows 16-byte aligned."""
    flip = operand.inner != operand.box[-1]
    plain = tensor.T if flip else tensor
    pad = -plain.shape[1] % (16 // plain.element_size())
    wide = torch.empty(plain.shape[0], plain.shape[1] + pad, dtype=plain.dtype, device=plain.device)
    wide[:, : plain.shape[1]] = plain
    view = wide[:, : plain.shape[1]]
    return view.T if flip else view


def empty_output(spec: KernelSpec, device: str) -> torch.Tensor:
    """NaN everywhere; an odd pitch where the kernel stores without TMA."""
    m, n = sizes(spec)["m"], sizes(spec)["n"]
    direct = "_direct" in spec.name
    return torch.full((m, n + 1 if direct else n), float("nan"), dtype=TORCH[spec.output.dtype], device=device)[:, :n]


def simulated(name: str, seed: int) -> tuple[str, torch.Tensor, float]:
    torch.set_num_threads(1)
    spec = catalog.specs()[name]
    d, start = empty_output(spec, "cpu"), time.time()
    with gemmgen.simulate(str(spec.arch), schedule="random", seed=seed, sms=2):
        gemmgen.op(spec)(**inputs(spec), d=d)
    return name, d.clone(), time.time() - start


def on_gpu(spec: KernelSpec) -> torch.Tensor:
    tensors = {}
    for operand in spec.operands:
        if operand.name != spec.output.name:
            tensor = inputs(spec)[operand.name].cuda()
            tensors[operand.name] = laid_out(operand, tensor) if tensor.dim() == 2 else tensor
    d = empty_output(spec, "cuda")
    gemmgen.op(spec)(**tensors, d=d)
    return d.cpu()


def environment(sim_only: bool) -> dict[str, str | None]:
    """Where and when: card (none where the simulator ran alone), versions and date."""
    return {
        "card": None if sim_only else torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "date": datetime.date.today().isoformat(),
    }


def digest(spec: KernelSpec) -> str:
    """Of the CUDA that the spec becomes."""
    return hashlib.sha256(kernel_of(spec).text.source.encode()).hexdigest()[:16]


def changed(result: dict[str, Any], shipped: Iterable[KernelSpec]) -> list[str]:
    """Kernels of which the file does not say that they ran as they are now."""
    ran = {row["kernel"]: row.get("digest") for row in result["rows"]}
    return [spec.name for spec in shipped if ran.get(spec.name) != digest(spec)]


def compare(spec: KernelSpec, device: torch.Tensor, sim: torch.Tensor) -> dict[str, Any]:
    bits = {DType.BF16: torch.int16, DType.F32: torch.int32}[spec.output.dtype]
    unequal = int((device.contiguous().view(bits) != sim.contiguous().view(bits)).sum())
    try:
        reference.check(device, spec, inputs(spec))
        wrong = ""
    except AssertionError as error:
        wrong = str(error)
    return {"kernel": spec.name, "digest": digest(spec), **sizes(spec), "unequal": unequal, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--match", default="", help="only kernels whose name contains one of these, a,b")
    parser.add_argument("--arch", default="sm90", help="kernels of this architecture, which is the GPU's")
    parser.add_argument("--sim-only", action="store_true", help="hold the simulator against the reference, no GPU")
    parser.add_argument("--since", type=Path, help="a file that this wrote: say which kernels have changed, run none")
    options = parser.parse_args()
    others = catalog.fused_specs()  # those have several outputs: test_fused_ops.py, test_prenorm.py
    shipped = [
        s for s in catalog.specs().values() if s.arch == options.arch and not s.prologue and s.name not in others
    ]
    if options.since:
        found = changed(json.loads(options.since.read_text()), shipped)
        print("\n".join(found) or "none that the file knows of")
        return
    names = [spec.name for spec in shipped if any(part in spec.name for part in options.match.split(","))]
    rows = []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, sim, seconds in pool.map(simulated, names, range(len(names))):
            spec = catalog.specs()[name]
            row = compare(spec, sim if options.sim_only else on_gpu(spec), sim)
            rows.append(row | {"sim_seconds": round(seconds, 2)})
            if row["unequal"] or row["wrong"]:
                print("BAD", row, flush=True)
    bad = sum(bool(row["unequal"] or row["wrong"]) for row in rows)
    print(
        f"{len(rows)} kernels, {bad} disagree; simulated in {sum(row['sim_seconds'] for row in rows):.0f} s of CPU time"
    )
    if options.json:
        where = environment(options.sim_only)
        contents = {"environment": where, "kernels": len(rows), "disagree": bad, "rows": rows}
        Path(options.json).write_text(json.dumps(contents, indent=1) + "\n")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
