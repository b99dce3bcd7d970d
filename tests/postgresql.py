"""A server of PostgreSQL in a temporary folder, for tests."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/usr/lib/postgresql")
"""Where Debian has the programs of a server."""


class Server:
    """A server that listens to a socket in its folder alone, and trusts whoever can reach it.

    Args:
        programs: Folder of the programs.
        folder: Folder of its data.
    """

    def __init__(self, programs: Path, folder: Path):
        self.programs = programs
        self.folder = folder
        self._num_databases = 0

    def call(self, program: str, *arguments: str) -> None:
        """Run a program of the server, which refuses to be root."""
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*user, str(self.programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def control(self, call: str, *arguments: str) -> None:
        """Start, stop or restart the server."""
        data, log = str(self.folder / "data"), str(self.folder / "log")
        self.call("pg_ctl", call, "--wait", "-D", data, "-l", log, *arguments)

    def restart(self) -> None:
        """Restart it as after a crash: all connections break, and its log is replayed."""
        self.control("restart", "-m", "immediate")

    def new_database(self) -> str:
        """Make an empty database, and return its URL."""
        self._num_databases += 1
        name = f"run_{self._num_databases}"
        self.call("createdb", "-h", str(self.folder), "-U", "postgres", name)
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"


def find_programs() -> Path | None:
    """Return the folder of the programs of the newest server that is installed; None if none is."""
    if (found := shutil.which("pg_ctl")) is not None:
        return Path(found).resolve().parent
    return max(ROOT.glob("*/bin"), default=None, key=lambda path: int(path.parent.name))


@contextmanager
def server(programs: Path) -> Iterator[Server]:
    """Start a server, and stop it afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        made = Server(programs, folder)
        made.call("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "postgres")
        with (folder / "data" / "postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = ''\nunix_socket_directories = '{folder}'\n")
        made.control("start")
        try:
            yield made
        finally:
            made.control("stop", "-m", "immediate")
