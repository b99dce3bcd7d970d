"""Run every ``python`` block of the pages; the blocks of a page share a namespace.

    python docs/check_snippets.py            # all pages and the README
    python docs/check_snippets.py loop.md    # some

Each page runs in an empty folder of its own. Exits 1 naming the page, block and line that failed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

# The examples are small: more threads only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """The line before each block, and its code."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in BLOCK.finditer(text)]


def run_page(page: Path) -> str | None:
    """Run a page; return what failed, or None."""
    namespace: dict = {"__name__": "__main__"}
    for number, (line, code) in enumerate(blocks(page), start=1):
        output = io.StringIO()
        try:
            # The empty lines make tracebacks point into the page.
            program = compile("\n" * line + code, str(page), "exec")
            with contextlib.redirect_stdout(output):
                exec(program, namespace)
        except Exception:
            return (
                f"{page.relative_to(ROOT)}, block {number}, line {line + 1} failed:\n"
                f"{output.getvalue()}{traceback.format_exc()}"
            )
    return None


def main() -> int:
    """Run the pages named on the command line, or all of them."""
    pages = [DOCS / name for name in sys.argv[1:]] or [
        ROOT / "README.md",
        *sorted(DOCS.rglob("*.md")),
    ]
    failed = 0
    for page in pages:
        if "_build" in page.parts or not blocks(page):
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            failure = run_page(page)
        print(
            f"{'FAILED' if failure else 'ok':6} {time.perf_counter() - started:5.1f} s  "
            f"{len(blocks(page))} blocks  {page.relative_to(ROOT)}"
        )
        if failure:
            failed += 1
            print(failure, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
