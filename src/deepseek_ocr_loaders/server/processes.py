"""Which processes are ours, proven by start time and boot, and how they are ended.

A process id alone proves nothing: it is reused after a crash and means another process after a
reboot. A record holds the id, the start time in clock ticks and the boot, and nothing that fails
the comparison is ever touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Family",
    "ProcessId",
    "boot",
    "end",
    "identify",
    "listens",
    "members",
]

_LINUX = sys.platform.startswith("linux")
LABEL = "deepseek-ocr-loaders.server"
"""The label that our containers carry; its value is the container's name."""


def boot() -> str:
    """Name this run of the machine, and of the container that we are in."""
    if not _LINUX:
        import psutil  # noqa: PLC0415 - not needed on Linux

        return str(int(psutil.boot_time()))
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{kernel} {Path('/proc/self/ns/pid').readlink()}"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for as long as it lives: `started` tells it from a later one of the same id."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Say whether exactly this process still runs; a zombie does not."""
        row = _row(self.pid)
        return row is not None and row.started == self.started and not row.zombie


@dataclass(frozen=True, slots=True)
class _Row:
    pid: int
    parent: int
    session: int
    started: str
    zombie: bool


@dataclass
class Family:
    """The processes of one engine, as recorded so that anyone can end them later.

    Attributes:
        boot: The run of the machine in which the record was made.
        leader: The engine's first process, which leads a session of its own.
        others: Descendants that were seen, wherever they went.
        marker: A random value in the environment of all of them.
        container: The name of the engine's container, if there is one.
        docker: The command that talks to the container engine.
    """

    boot: str
    leader: ProcessId | None = None
    others: tuple[ProcessId, ...] = ()
    marker: str = ""
    container: str | None = None
    docker: str = "docker"
    owner: ProcessId | None = field(default=None, repr=False)

    def as_json(self) -> dict[str, Any]:
        """Give it as what a JSON file can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Family:
        """Read what `as_json` wrote."""

        def one(item: Any) -> ProcessId | None:
            return ProcessId(int(item["pid"]), str(item["started"])) if item else None

        return cls(
            boot=str(value["boot"]),
            leader=one(value.get("leader")),
            others=tuple(filter(None, map(one, value.get("others", ())))),
            marker=str(value.get("marker", "")),
            container=value.get("container"),
            docker=str(value.get("docker", "docker")),
            owner=one(value.get("owner")),
        )


def _row(pid: int) -> _Row | None:
    if not _LINUX:
        return next((row for row in _psutil_rows() if row.pid == pid), None)
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name may hold spaces and brackets, so the fields are counted from its last bracket.
    fields = text[text.rindex(")") + 2 :].split()
    return _Row(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=fields[19],
        zombie=fields[0] in "ZX",
    )


def _rows() -> list[_Row]:
    if not _LINUX:
        return _psutil_rows()
    rows = (_row(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [row for row in rows if row is not None]


def _psutil_rows() -> list[_Row]:
    import psutil  # noqa: PLC0415 - not needed on Linux

    rows = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError), process.oneshot():
            rows.append(
                _Row(
                    pid=process.pid,
                    parent=process.ppid(),
                    session=os.getsid(process.pid),
                    started=f"{process.create_time():.2f}",
                    zombie=process.status() == psutil.STATUS_ZOMBIE,
                )
            )
    return rows


def identify(pid: int) -> ProcessId | None:
    """Give a running process its record; None where there is no such process."""
    row = _row(pid)
    return ProcessId(pid, row.started) if row is not None else None


def members(family: Family, *, search: bool = True) -> list[ProcessId]:
    """Give the living processes that are proven to belong to the family.

    They are: those recorded, those in the session that the engine leads, all descendants of these
    and of the living owner, and those with the marker in their environment.

    Args:
        family: Whose processes.
        search: False leaves out the marker, which costs a look at every process of the user.
    """
    if family.boot != boot():
        return []
    rows = {row.pid: row for row in _rows()}
    found = {
        known.pid
        for known in (*((family.leader,) if family.leader else ()), *family.others)
        if known.pid in rows and rows[known.pid].started == known.started
    }
    if (leader := family.leader) is not None:
        # While a session has members its number is not given to anyone else; but if a process
        # with that number exists and is not our leader, the session is not ours either.
        holder = rows.get(leader.pid)
        if holder is None or holder.started == leader.started:
            found |= {row.pid for row in rows.values() if row.session == leader.pid}
    if search and family.marker:
        found |= {row.pid for row in rows.values() if _is_marked(row.pid, family.marker)}
    roots = set(found)
    if (owner := family.owner) and (row := rows.get(owner.pid)) and row.started == owner.started:
        roots.add(owner.pid)
    grew = True
    while grew:
        children = {row.pid for row in rows.values() if row.parent in roots} - roots
        grew = bool(children)
        roots |= children
        found |= children
    excluded = {os.getpid(), family.owner.pid if family.owner else 0}
    return [
        ProcessId(pid, rows[pid].started)
        for pid in sorted(found - excluded)
        if not rows[pid].zombie
    ]


def _is_marked(pid: int, marker: str) -> bool:
    if not _LINUX:
        return False
    try:
        return marker.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _send(targets: Iterable[ProcessId], number: signal.Signals) -> None:
    for target in targets:
        # Looked at again at the last moment: between listing and sending it may have gone.
        if target.alive():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(target.pid, number)


def end(
    family: Family, *, grace: float = 5.0, spare: Iterable[int] = (), reap: Any = lambda: None
) -> list[ProcessId]:
    """End every process of the family: ask, wait, then kill, until none is left.

    Args:
        family: Whose processes.
        grace: Seconds between asking and killing.
        spare: Process ids that are left alone.
        reap: Called while waiting, for a caller that has zombies of its own to collect.

    Returns:
        Those that cannot be ended (blocked in the kernel); normally none.
    """
    spared = frozenset(spare)

    def living() -> list[ProcessId]:
        reap()
        return [found for found in members(family) if found.pid not in spared]

    targets = living()
    _send(targets, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while targets and time.monotonic() < deadline:
        time.sleep(0.05)
        targets = living()
    if family.container:
        end_container(family.docker, family.container, grace=grace)
    deadline = time.monotonic() + 10
    while targets and time.monotonic() < deadline:
        _send(targets, signal.SIGKILL)
        time.sleep(0.05)
        targets = living()
    return targets


def end_container(docker: str, name: str, *, grace: float) -> None:
    """Stop and remove a container, if its label says that it is ours."""

    def call(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                [docker, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None

    label = call(
        "inspect", "--format", f'{{{{ index .Config.Labels "{LABEL}" }}}}', name, timeout=10
    )
    if label is None or label.returncode != 0 or label.stdout.strip() != name:
        return
    call("stop", "--time", str(max(1, round(grace))), name, timeout=grace + 10)
    call("rm", "--force", name, timeout=10)


def listens(family: Family, port: int) -> bool:
    """Say whether a process of the family, and nobody else, listens on a TCP port."""
    if not _LINUX:
        import psutil  # noqa: PLC0415 - not needed on Linux

        for member in members(family):
            with suppress(psutil.Error):
                for connection in psutil.Process(member.pid).net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                        return True
        return False
    sockets = _listening_sockets(port)
    for member in members(family, search=False):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{member.pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return True
    return False


def _listening_sockets(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found
