"""Run every ``python`` block of README, CONTRIBUTING, guides and research pages, as a reader does.

Of the first two each block runs in a process of its own, so it must import what it uses. Of a page
the blocks share one process and its names, from top to bottom. Each process starts in an empty
folder; two run at a time.

    python docs/check_snippets.py                # all of them
    python docs/check_snippets.py loop.md        # some pages
    python docs/check_snippets.py ../README.md   # the README alone
    python docs/check_snippets.py ../experiments/docs/theory.md   # which may import experiments

Exits 1 naming the page, block and line that failed. Blocks of other languages, such as ``console``,
are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESEARCH = ROOT / "experiments" / "docs"
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
# Under the name of the page, so that tracebacks quote its lines; nothing is defined beforehand.
RUN = 'exec(compile(__import__("sys").stdin.read(), {name!r}, "exec"))'
PROCESSES = min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class Block:
    """A block of code: its number on the page, from 1; the line before it; the code."""

    number: int
    line: int
    code: str


@dataclass(frozen=True)
class Program:
    """Blocks of a page that run in one process."""

    page: Path
    blocks: list[Block]

    @property
    def name(self) -> str:
        """The page, and the block if it is one of many."""
        page = os.path.relpath(self.page, ROOT)
        return (
            page
            if self.page not in (README, CONTRIBUTING)
            else f"{page}, block {self.blocks[0].number}"
        )

    @property
    def code(self) -> str:
        """The blocks with empty lines between, so that each line has the number it has there."""
        text = ""
        for block in self.blocks:
            text += "\n" * (block.line - text.count("\n")) + block.code
        return text


def programs(page: Path) -> list[Program]:
    """What a page is run as: the README and CONTRIBUTING block by block, others as a whole."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(number, text.count("\n", 0, match.start(1)), match.group(1))
        for number, match in enumerate(BLOCK.finditer(text), start=1)
    ]
    if page in (README, CONTRIBUTING):
        return [Program(page, [block]) for block in found]
    return [Program(page, found)] if found else []


def run(program: Program) -> tuple[float, str | None]:
    """Run a program in a new process; return its seconds and what failed, or None."""
    started = time.perf_counter()
    # The examples are small: more threads only wait for one another.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONIOENCODING": "utf-8"}
    if program.page.is_relative_to(RESEARCH):
        paths = [str(ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", RUN.format(name=str(program.page))],
            input=program.code,
            capture_output=True,
            encoding="utf-8",
            cwd=folder,
            env=environment,
            check=False,
        )
    seconds = time.perf_counter() - started
    if done.returncode == 0:
        return seconds, None
    return seconds, f"{where(program, done)}\n{done.stdout}{done.stderr}"


def where(program: Program, done: subprocess.CompletedProcess) -> str:
    """The page, block and line at which a process failed."""
    page = os.path.relpath(program.page, ROOT)
    at = rf'File "{re.escape(str(program.page))}", line (\d+)'
    # Of a syntax error there is no frame of the module.
    lines = re.findall(at + ", in <module>", done.stderr) or re.findall(at, done.stderr)
    if not lines:
        return f"{page} failed, exit status {done.returncode}:"
    line = int(lines[-1])
    number = max(block.number for block in program.blocks if block.line < line)
    return f"{page}, block {number}, line {line} failed:"


def main() -> int:
    """Run the pages named on the command line, or all of them."""
    pages = [(DOCS / name).resolve() for name in sys.argv[1:]] or [
        README,
        CONTRIBUTING,
        *sorted(
            page for page in DOCS.rglob("*.md") if not {"_build", "research"} & set(page.parts)
        ),
        *sorted(RESEARCH.glob("*.md")),
    ]
    todo = [program for page in pages for program in programs(page)]
    failed = 0
    started = time.perf_counter()
    with ThreadPoolExecutor(PROCESSES) as executor:
        for program, (seconds, failure) in zip(todo, executor.map(run, todo), strict=True):
            mark = "FAILED" if failure else "ok"
            print(f"{mark:6} {seconds:5.1f} s  {len(program.blocks)} blocks  {program.name}")
            if failure:
                failed += 1
                print(failure, file=sys.stderr)
    print(f"{len(todo)} processes, {failed} failed, {time.perf_counter() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
