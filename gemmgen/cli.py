"""The ``gemmgen`` command: parses words, hands them to ``gemmgen.commands``, turns exceptions into one sentence.

Imports nothing heavy: a subcommand loads what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gemmgen.commands.forms import Form

app = typer.Typer(
    name="gemmgen",
    help="A Python spec of a GEMM-shaped pipeline becomes CUDA, and a function that torch users call.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A catalog kernel, an op name, FILE.py:VARIABLE, or FILE.json with what `emit --as json` printed.",
    ),
]
Operator = Annotated[
    str,
    typer.Argument(
        metavar="OP",
        help="An operator such as fp8_gemm_nt, or a product with _bias, an activation or both: fp8_gemm_nt_bias_relu.",
    ),
]
ArchName = Annotated[
    str | None,
    typer.Option(
        "--arch",
        help="For an op name, the architecture, such as sm100; for what is compiled also the chip, such as sm_103a.",
    ),
]
M = Annotated[int, typer.Option("-m", min=0, help="Rows of D.")]
N = Annotated[int, typer.Option("-n", min=0, help="Columns of D.")]
K = Annotated[int, typer.Option("-k", min=0, help="Length of the sums.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Edit a field of the spec, such as tile.n=256 or rings.ab.slots=4. May be repeated.",
    ),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write to this file instead of standard output, which - means.")
]


def _seed(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise ValueError(
            f"--seed: is {value}; generators take whole numbers of 64 bits with a sign, so use a smaller one"
        )
    return value


class Place(StrEnum):
    """Where ``run`` executes."""

    AUTO = "auto"
    GPU = "gpu"
    SIM = "sim"


class ScheduleName(StrEnum):
    """When the simulator lets asynchronous effects land."""

    EARLY = "early"
    LATE = "late"
    RANDOM = "random"
    STARVE = "starve"


@app.command("list")
def list_kernels(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the kernels and ops that are shipped."""
    from gemmgen.commands.listing import show

    show(as_json)


@app.command()
def emit(
    target: Target,
    form: Annotated[Form, typer.Option("--as", help="Which text.")] = Form.CUDA,
    arch: ArchName = None,
    m: M = 4096,
    n: N = 4096,
    k: K = 7168,
    assignments: Set = None,
    output: Output = None,
) -> None:
    """Print a kernel as CUDA, PTX, SASS, plan or spec JSON."""
    from gemmgen.commands.emit import render
    from gemmgen.commands.output import deliver
    from gemmgen.commands.targets import Sizes, resolve

    spec = resolve(target, arch, Sizes(m, n, k), assignments or ())
    deliver(render(spec, form, arch), output)


@app.command()
def plan(target: Target, arch: ArchName = None, m: M = 4096, n: N = 4096, k: K = 7168, assignments: Set = None) -> None:
    """Print the plan: every address, count and register that was decided."""
    from gemmgen.commands.emit import plan as plan_text
    from gemmgen.commands.output import deliver
    from gemmgen.commands.targets import Sizes, resolve

    deliver(plan_text(resolve(target, arch, Sizes(m, n, k), assignments or ())), None)


@app.command()
def run(
    target: Target,
    m: M = 192,
    n: N = 384,
    k: K = 1024,
    on: Annotated[
        Place, typer.Option("--on", help="auto takes the GPU if there is one, else the simulator.")
    ] = Place.AUTO,
    schedule: Annotated[ScheduleName, typer.Option(help="Of the simulator.")] = ScheduleName.EARLY,
    seed: Annotated[int, typer.Option(help="Of the random input, and of the random schedule.", callback=_seed)] = 0,
    arch: ArchName = None,
    assignments: Set = None,
) -> None:
    """Run a kernel on random input and compare with a float64 reference on the dequantised inputs."""
    from gemmgen.commands.running import run as run_spec
    from gemmgen.commands.targets import Sizes, resolve

    sizes = Sizes(m, n, k)
    run_spec(resolve(target, arch, sizes, assignments or ()), sizes, on, schedule, seed)


@app.command()
def check(
    target: Target, arch: ArchName = None, m: M = 4096, n: N = 4096, k: K = 7168, assignments: Set = None
) -> None:
    """Validate, compile, and simulate on ragged sizes under every schedule."""
    from gemmgen.commands.checking import check as check_spec
    from gemmgen.commands.targets import Sizes, resolve

    check_spec(resolve(target, arch, Sizes(m, n, k), assignments or ()), arch)


@app.command()
def explain(
    operator: Operator,
    m: M = 4096,
    n: N = 4096,
    k: K = 7168,
    arch: ArchName = None,
    card: Annotated[
        str | None,
        typer.Option("--card", help='A GPU by name, such as "NVIDIA H100 80GB HBM3", whose measured entries count.'),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print all kernels, not the cheapest alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, of all kernels.")] = False,
) -> None:
    """Show the kernels that could serve a problem, the time expected of each, and why one is taken."""
    from gemmgen.commands.explaining import explain as explain_choice
    from gemmgen.commands.targets import Sizes

    explain_choice(operator, Sizes(m, n, k), arch, card, every, as_json)


@app.command()
def tune(
    operator: Operator,
    shapes: Annotated[Path, typer.Option("--shapes", help="Text with m n k on each line.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The tuned file, which GEMMGEN_TUNED may then name.")
    ] = Path("gemmgen_tuned.json"),
    again: Annotated[bool, typer.Option("--again", help="Also measure what the file has already.")] = False,
    times: Annotated[
        Path | None, typer.Option("--times", help="Also write the time of every kernel, a line of JSON a problem.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random input.", callback=_seed)] = 0,
    flush: Annotated[
        str, typer.Option(help="What L2 is full of before each launch: lines that were written, or read.")
    ] = "write",
) -> None:
    """Measure every kernel that could serve some problems on the GPU here, and keep the fastest in a file."""
    from gemmgen.commands.tuning import tune as tune_operator

    tune_operator(operator, shapes, output, again, times, seed, flush)


@app.command("compile")
def compile_kernels(
    targets: Annotated[list[str] | None, typer.Argument(metavar="[TARGET]...")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every kernel of the catalog.")] = False,
    arch: Annotated[
        str | None, typer.Option("--arch", help="Only kernels of this architecture, for this chip: sm100, sm_103a, ...")
    ] = None,
    assignments: Set = None,
    table: Annotated[
        Path | None,
        typer.Option("--table", help="Compile for every chip, and write the table (no times) to this Markdown file."),
    ] = None,
) -> None:
    """Compile kernels and show seconds, registers, spills and shared memory."""
    from gemmgen.commands.compiling import compile_all
    from gemmgen.commands.targets import several

    compile_all(several(targets or [], every, arch, assignments or ()), arch, table)


@app.command()
def generate(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when anything differs.")] = False,
    into: Annotated[
        Path | None, typer.Option("--into", help="Folder, instead of the tree's generated/gemmgen_ops.")
    ] = None,
) -> None:
    """Write the importable library generated/gemmgen_ops."""
    from gemmgen.commands.generating import generate as generate_library

    generate_library(into, check)


@app.command()
def sim(
    file: Annotated[Path, typer.Argument(metavar="FILE.ptx", help="PTX text.")],
    entry: Annotated[str | None, typer.Option(help="The kernel to run; without it the kernels are listed.")] = None,
    grid: Annotated[str, typer.Option(help="CTAs, as X,Y,Z.")] = "1",
    block: Annotated[str, typer.Option(help="Threads of a CTA, as X,Y,Z.")] = "32",
    cluster: Annotated[str, typer.Option(help="CTAs of a cluster, as X,Y,Z.")] = "1",
    shared: Annotated[int, typer.Option(min=0, help="Bytes of dynamic shared memory.")] = 0,
    param: Annotated[
        list[str] | None,
        typer.Option(
            help="One kernel parameter, in order: FILE.npy, zeros:BYTES, or a scalar such as u32:7 or f32:0.5."
        ),
    ] = None,
    save: Annotated[
        list[str] | None, typer.Option(help="INDEX=FILE.npy: write that parameter's buffer afterwards.")
    ] = None,
    schedule: Annotated[ScheduleName, typer.Option(help="When asynchronous effects land.")] = ScheduleName.EARLY,
    seed: Annotated[int, typer.Option(help="Of the random schedule.", callback=_seed)] = 0,
) -> None:
    """List the kernels of a PTX file, or run one on the simulator."""
    from gemmgen.commands.simulating import Launch, list_entries, run_entry

    if entry is None:
        list_entries(file)
    else:
        launch = Launch(entry, grid, block, cluster, shared, tuple(param or ()), tuple(save or ()), schedule, seed)
        run_entry(file, launch)


def main() -> None:
    """Entry point of the console script: a failure is one sentence on standard error and status 1."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("GEMMGEN_TRACEBACK"):
            raise
        from gemmgen.commands.failure import sentence

        sys.stderr.write(f"gemmgen: {sentence(error)}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
