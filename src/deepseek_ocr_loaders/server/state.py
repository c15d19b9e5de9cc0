"""What is known of one managed server: its folder, and the record that its supervisor keeps."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from deepseek_ocr_loaders.engines.base import ServerOptions
from deepseek_ocr_loaders.server.files import private_folder, read_json, state_root, write_json
from deepseek_ocr_loaders.server.locks import is_locked
from deepseek_ocr_loaders.server.processes import Family, ProcessId, boot

__all__ = ["Phase", "ServerFolder", "ServerState", "options_from_json", "options_to_json"]

Phase = Literal["starting", "ready", "restarting", "stopping", "stopped", "failed"]


@dataclass
class ServerState:
    """The record that the supervisor writes and everyone else reads.

    Attributes:
        run: A random name of this life of the server.
        phase: Where in its life it is.
        family: The processes of the engine.
        supervisor: The process that owns it.
        stage: What it does at the moment, read from the engine's log.
        generation: Counts the engine's starts, over all lives of the server.
        copy: Which of the servers side by side it is, from 0.
        failure: Why it failed: `kind` (`start`, `died`, `port`, `stopped`), `message`, `hint`,
            `exit_code`, `log_tail`.
    """

    run: str
    phase: Phase
    family: Family
    supervisor: ProcessId
    engine: str
    model: str
    reader: str = ""
    stage: str = ""
    port: int = 0
    api_key: str = field(default="", repr=False)
    version: str | None = None
    max_model_len: int | None = None
    max_concurrency: int | None = None
    generation: int = 0
    copy: int = 0
    restarts: int = 0
    since: float = 0.0
    failure: dict[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """True while it starts, runs or comes back: one may attach to it."""
        return self.phase in {"starting", "ready", "restarting"}

    @property
    def base_url(self) -> str:
        """The address up to and including `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def as_json(self) -> dict[str, Any]:
        """Give it as what a JSON file can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServerState | None:
        """Read what `as_json` wrote; None where another version of this package wrote it."""
        try:
            known = {f.name for f in fields(cls)}
            data = {name: item for name, item in value.items() if name in known}
            data["family"] = Family.from_json(value["family"])
            data["supervisor"] = ProcessId(**value["supervisor"])
            return cls(**data)
        except (KeyError, TypeError, ValueError):
            return None


def options_to_json(options: ServerOptions) -> dict[str, Any]:
    """Give options as what a JSON file can hold."""
    return {
        **asdict(options),
        "image_tar": str(options.image_tar) if options.image_tar else None,
    }


def options_from_json(value: dict[str, Any]) -> ServerOptions:
    """Read what `options_to_json` wrote."""
    return ServerOptions(
        **{
            **value,
            "extra_args": tuple(value["extra_args"]),
            "env": tuple((str(name), str(text)) for name, text in value["env"]),
            "image_tar": Path(value["image_tar"]) if value["image_tar"] else None,
        }
    )


@dataclass(frozen=True)
class ServerFolder:
    """The folder of one server: same options, same folder.

    Attributes:
        path: The folder, private to its owner.
    """

    path: Path

    @classmethod
    def of(cls, options: ServerOptions, executable: str = "") -> ServerFolder:
        """Give the folder for these options on the GPUs that this process may use.

        It is the first's where several work side by side; `copy` gives the others.
        """
        one = replace(options, copy=0, copies=1)
        seen = [options_to_json(one), executable, os.environ.get("CUDA_VISIBLE_DEVICES")]
        digest = hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()
        return cls(private_folder(state_root() / digest[:16]))

    def copy(self, number: int) -> ServerFolder:
        """Give the folder of another server of the same options, beside this first one."""
        if not number:
            return self
        return ServerFolder(private_folder(self.path.with_name(f"{self.path.name}-{number}")))

    @property
    def is_first(self) -> bool:
        """False for a server that was started beside another of the same options."""
        return self.path.name == self.group

    @property
    def group(self) -> str:
        """The name that servers of the same options have in common."""
        return self.path.name.partition("-")[0]

    @classmethod
    def all(cls) -> list[ServerFolder]:
        """Give the folders of all servers that this user has or had on this machine."""
        if sys.platform == "win32":
            return []
        return [cls(path) for path in sorted(state_root().iterdir()) if path.is_dir()]

    @property
    def gate(self) -> Path:
        """Locked while someone comes or the supervisor decides to go."""
        return self.path / "gate.lock"

    @property
    def owner(self) -> Path:
        """Locked by the supervisor as long as it lives."""
        return self.path / "owner.lock"

    @property
    def leases(self) -> Path:
        """One file for each process that uses the server."""
        return private_folder(self.path / "leases")

    @property
    def log(self) -> Path:
        """The engine's output."""
        return self.path / "server.log"

    @property
    def keep(self) -> Path:
        """Names the run that stays up without a user."""
        return self.path / "keep.json"

    def has_owner(self) -> bool:
        """Say whether a supervisor lives."""
        return is_locked(self.owner)

    def options(self) -> ServerOptions | None:
        """Give the options that the server was started with."""
        value = read_json(self.path / "options.json")
        with suppress(KeyError, TypeError, ValueError):
            return options_from_json(value) if value is not None else None
        return None

    def write_options(self, options: ServerOptions) -> None:
        """Leave the options for the supervisor: a file, since they may hold the user's secrets."""
        write_json(self.path / "options.json", options_to_json(options))

    def forget_options(self) -> None:
        """Remove the options of a server that has ended: they may hold the user's secrets."""
        (self.path / "options.json").unlink(missing_ok=True)

    def read(self) -> ServerState | None:
        """Give the last record; it is the truth only while `has_owner`."""
        value = read_json(self.path / "state.json")
        return ServerState.from_json(value) if value is not None else None

    def engine(self) -> str:
        """Name the engine of the server that lives or lived here; empty where none did."""
        state = self.read()
        return state.engine if state is not None else ""

    def write(self, state: ServerState) -> None:
        """Replace the record at once."""
        write_json(self.path / "state.json", state.as_json())

    def is_kept(self, state: ServerState) -> bool:
        """Say whether this life of the server was asked to stay up without a user."""
        value = read_json(self.keep)
        if value is None or value.get("run") != state.run:
            return False
        holder = value.get("holder")
        return holder is None or ProcessId(**holder).alive()

    def keep_up(self, state: ServerState, *, holder: ProcessId | None) -> None:
        """Ask this life of the server to stay up: until it is stopped, or the holder ends."""
        value = {"pid": holder.pid, "started": holder.started} if holder is not None else None
        write_json(self.keep, {"run": state.run, "holder": value})

    def from_this_boot(self, state: ServerState) -> bool:
        """Say whether the record was made since the machine started."""
        return state.family.boot == boot()

    def remove(self) -> None:
        """Delete the folder; only for a server that has ended."""
        shutil.rmtree(self.path, ignore_errors=True)
