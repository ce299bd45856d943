"""The sm120 kernels that need no instruction an H100 lacks (BF16, TF32, plain e4m3), compiled for sm_90a and run there.

    python tests/gpu/sm120_forms.py                 every form: exact on ragged problems, and 4096 x 4096 x 4096
    python tests/gpu/sm120_forms.py --sim           ragged problems also in the simulator, bit for bit
    python tests/gpu/sm120_forms.py --speed         BF16 beside torch.mm
    compute-sanitizer --tool memcheck --report-api-errors no python tests/gpu/sm120_forms.py --small [--sms 1]
    compute-sanitizer --tool synccheck python tests/gpu/sm120_forms.py --small [--sms 1]

The text is the same as for sm_120a; only the target of the compiler differs. ``--json OUT`` writes what was found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks"), str(Path(__file__).parents[2])]
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "sim")]

import reference  # noqa: E402
from planted.inputs import TORCH_TYPES, exact, laid_out  # noqa: E402

from gemmgen.catalog.dense_sm120 import WarpShape, bf16_gemm, e4m3_gemm_nt, tf32_gemm_nt  # noqa: E402
from gemmgen.ir import DType, KernelSpec  # noqa: E402
from gemmgen.ops.block import whole_block  # noqa: E402
from gemmgen.ops.dispatch import encoder  # noqa: E402
from gemmgen.ops.kernels import kernel_of  # noqa: E402
from gemmgen.runtime.architectures import resolve  # noqa: E402
from gemmgen.runtime.arguments import Problem, TensorView, grid_size, workspace_bytes  # noqa: E402
from gemmgen.runtime.sim_target import SimTarget  # noqa: E402
from gemmgen.runtime.simulation import Simulation  # noqa: E402

F32 = DType.F32
SQUARE = WarpShape(128, 128, k_bytes=64)
LOW = WarpShape(16, 128, warps=(8, 1), swap=True)
FORMS: tuple[KernelSpec, ...] = (
    bf16_gemm("nt", SQUARE),
    bf16_gemm("nt", WarpShape(128, 128)),
    bf16_gemm("nt", WarpShape(128, 256, warps=(2, 4), k_bytes=64)),
    bf16_gemm("nt", WarpShape(256, 128, k_bytes=64), F32, True),
    bf16_gemm("nt", WarpShape(64, 64, warps=(2, 2), k_bytes=64, ctas_per_sm=2)),
    bf16_gemm("nt", WarpShape(64, 64, warps=(2, 4)), residual=True),
    bf16_gemm("nt", WarpShape(64, 64, warps=(2, 4), splits=4)),
    bf16_gemm("nt", WarpShape(128, 16, warps=(8, 1))),
    bf16_gemm("nt", LOW),
    bf16_gemm("nt", replace(LOW, splits=8), F32, True),
    bf16_gemm("nn", SQUARE),
    bf16_gemm("nn", replace(LOW, splits=4)),
    bf16_gemm("tn", SQUARE, F32, True),
    bf16_gemm("tt", SQUARE),
    bf16_gemm("tt", WarpShape(64, 128, warps=(2, 4)), direct_store=True),
    tf32_gemm_nt(SQUARE),
    tf32_gemm_nt(LOW, DType.BF16, True),
    e4m3_gemm_nt(SQUARE),
    e4m3_gemm_nt(WarpShape(64, 128, warps=(2, 4)), F32, direct_store=True),
)
RAGGED = ((129, 136, 160), (17, 264, 96), (300, 40, 608), (1, 136, 1120))
WHOLE = (4096, 4096, 4096)
Tensors = dict[str, torch.Tensor]


def inputs(spec: KernelSpec, sizes: dict[str, int], device: str) -> Tensors:
    """Small whole numbers, NaN where no element is."""
    found = {}
    for operand in spec.operands:
        if operand != spec.output:
            tensor = exact(operand, sizes)
            found[operand.name] = laid_out(tensor.to(device), operand) if device == "cpu" else moved(tensor, device)
    return found


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On another device with its strides, and what lies between rows."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(device)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def poisoned(spec: KernelSpec, sizes: dict[str, int], device: str) -> torch.Tensor:
    """NaN everywhere, also behind each row and below the last."""
    values = torch.full((sizes["m"] + 1, sizes["n"]), float("nan"), dtype=TORCH_TYPES[spec.output.dtype])
    return moved(laid_out(values, spec.output, extra=16), device)[: sizes["m"]]


class Call:
    """One problem made ready for a target, so that launching it again does nothing else."""

    def __init__(self, spec: KernelSpec, sizes: dict[str, int], tensors: Tensors, target: Any, sms: int) -> None:
        kernel = kernel_of(spec)
        self.plan, self.target, self.text = kernel.plan, target, replace(kernel.text, arch="sm90")
        self.device = tensors[spec.output.name].device
        self.workspace = {
            name: torch.zeros(size, dtype=torch.uint8, device=self.device)
            for name, size in workspace_bytes(self.plan, sizes, 132).items()
        }
        views = {
            name: TensorView(target.address(each, name), tuple(each.shape), each.stride())
            for name, each in tensors.items()
        }
        places = {name: target.address(each, name) for name, each in self.workspace.items()}
        self.block = whole_block(self.plan, Problem(sizes, views, {}, places), encoder(target))
        self.grid = (grid_size(self.plan, sizes, sms), 1, 1)
        self.handle = target.load(self.text)

    def __call__(self) -> None:
        self.target.launch(self.handle, self.grid, self.block, self.target.current_stream())

    def counters_are_zero(self) -> bool:
        """What the next launch relies on."""
        return "arrivals" not in self.workspace or not bool(self.workspace["arrivals"].any())


def run(spec: KernelSpec, sizes: dict[str, int], tensors: Tensors, target: Any, sms: int) -> torch.Tensor:
    """The output of two launches, of which the second finds the first one's counters."""
    device = str(next(iter(tensors.values())).device)
    output = poisoned(spec, sizes, device)
    call = Call(spec, sizes, {**tensors, spec.output.name: output}, target, sms)
    call()
    first = output.clone()
    call()
    assert torch.equal(first, output), f"{spec.name}: two launches differ"
    assert call.counters_are_zero(), f"{spec.name}: counters are not 0"
    return output.cpu()


def check_ragged(spec: KernelSpec, size: tuple[int, int, int], sms: int | None, simulated: bool) -> None:
    """Exact on the GPU; and the simulator, running the PTX for sm_90a, gives the same bits."""
    from gemmgen.runtime.gpu_target import gpu_target

    sizes = dict(zip("mnk", size, strict=True))
    tensors = inputs(spec, sizes, "cpu")
    target = gpu_target(0)
    found = run(spec, sizes, {name: moved(each, "cuda") for name, each in tensors.items()}, target, sms or target.sms)
    assert torch.equal(found, reference.exact_result(spec, tensors)), f"{spec.name} {size}: wrong"
    if simulated:
        there = run(spec, sizes, tensors, SimTarget(Simulation(resolve("sm90"), "random", 1, sms=4)), 4)
        assert torch.equal(found, there), f"{spec.name} {size}: the simulator gives other bits"


def check_whole(spec: KernelSpec) -> float:
    """Random numbers: the largest error beside fp64 products, relative to the largest element."""
    from gemmgen.runtime.gpu_target import gpu_target

    sizes = dict(zip("mnk", WHOLE, strict=True))
    tensors = {}
    for index, operand in enumerate(each for each in spec.operands if each != spec.output):
        values = torch.randn(*(sizes[axis] for axis in operand.box), device="cuda", generator=seeded(index))
        stored = values.to(TORCH_TYPES[operand.dtype])
        tensors[operand.name] = stored if operand.inner == operand.box[-1] else stored.T.contiguous().T
    target = gpu_target(0)
    found = run(spec, sizes, tensors, target, target.sms).double()
    a, b = (tensors[name].float() for name in ("a", "b"))
    if spec.operand("a").dtype == F32:
        a, b = ((each.view(torch.int32) & -(1 << 13)).view(torch.float32) for each in (a, b))
    exact_sum = (a.double() @ b.double().T + (tensors["c"].double() if "c" in tensors else 0)).cpu()
    error = float((found - exact_sum).abs().max() / exact_sum.abs().max())
    assert error < (2**-8 if spec.output.dtype == DType.BF16 else 1e-4), f"{spec.name}: relative error {error}"
    return error


def seeded(index: int) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(index)


def speed() -> list[dict[str, Any]]:
    """Microseconds of the BF16 forms and of torch.mm, flushed L2, interleaved."""

    from gemmgen.runtime.gpu_target import gpu_target
    from gemmgen.runtime.timing import Flush, times

    target, flush, rows = gpu_target(0), Flush("write"), []
    specs = [bf16_gemm("nt", shape) for shape in (SQUARE, WarpShape(128, 128), *FORM_SHAPES)]
    for m, n, k in ((4096, 4096, 4096), (4096, 7168, 2048), (64, 4096, 7168)):
        sizes = {"m": m, "n": n, "k": k}
        a, b = (torch.randn(rows_, k, device="cuda").bfloat16() for rows_ in (m, n))
        d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        calls: list[Callable[[], object]] = [lambda a=a, b=b, d=d: torch.mm(a, b.T, out=d)]
        calls += [Call(spec, sizes, {"a": a, "b": b, "d": d}, target, target.sms) for spec in specs]
        for name, spent in zip(("torch.mm", *(spec.name for spec in specs)), times(calls, flush, 50), strict=True):
            rows.append({"kernel": name, "m": m, "n": n, "k": k, "us": spent, "tflops": 2e-6 * m * n * k / spent})
            print(f"{name:50} {m}x{n}x{k}: {spent:8.1f} us, {rows[-1]['tflops']:6.1f} TFLOPS", flush=True)
    return rows


FORM_SHAPES = (
    WarpShape(128, 256, warps=(2, 4), k_bytes=64),
    WarpShape(256, 128, k_bytes=64),
    WarpShape(64, 64, warps=(2, 2), k_bytes=64, ctas_per_sm=2),
    WarpShape(64, 64, warps=(2, 4), splits=4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim", action="store_true", help="hold the simulator against the GPU, bit for bit")
    parser.add_argument("--small", action="store_true", help="ragged problems only, for sanitizers")
    parser.add_argument("--speed", action="store_true", help="only times")
    parser.add_argument("--sms", type=int, help="launch grids for so few SMs, so that slots come round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    if options.speed:
        found["speed"] = speed()
    else:
        found["exact"], found["whole"] = [], {}
        for spec in FORMS:
            for size in RAGGED[:2] if options.small else RAGGED:
                check_ragged(spec, size, options.sms, options.sim)
                found["exact"].append([spec.name, *size])
            if not options.small:
                found["whole"][spec.name] = check_whole(spec)
            print(spec.name, "right", found["whole"].get(spec.name, ""), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
