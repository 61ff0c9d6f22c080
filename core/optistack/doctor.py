"""``examine``: whether this machine has what optistack needs, and what to mend where it has not."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

from optistack import paths
from optistack.apply.ports import free_port
from optistack.engines.environment import EngineEnvironment, read_environment
from optistack.engines.models import MODELS, is_whole
from optistack.engines.recipes import RECIPES, Recipe
from optistack.errors import InputError
from optistack.facts.detect import detect_node, ram_bytes
from optistack.host import Host

LEAST_DISK_BYTES = 10**9
"""For logs, probes and a small model, once every engine is there."""
LEAST_RAM_BYTES = 4 * 2**30
"""An estimate: the laptop stack's 1 GiB of KV and 0.3 GiB of weights, beside what torch and an engine load."""
NVIDIA, DISPLAY_CLASSES = "0x10de", ("0x03",)
SMI_TIMEOUT_S = 20


@dataclass(frozen=True)
class Checkup:
    """One thing that was looked at. ``mend`` is one sentence, empty where nothing is wrong."""

    name: str
    says: str
    mend: str = ""

    @property
    def ok(self) -> bool:
        return not self.mend


def examine(root: Path = Path("/")) -> list[Checkup]:
    """Look at everything, without changing anything. ``root`` is where ``dev`` and ``sys`` are. Takes a few seconds
    where checkpoints are large: their bytes are compared with their digests."""
    return [
        *_python(),
        *_folders(),
        _disk(),
        _ram(root),
        _gpu(root),
        *_engines(),
        *_models(),
        _ports(),
        *_plugins(),
    ]


def _missing() -> list[Recipe]:
    return [recipe for recipe in RECIPES if read_environment(paths.engines_dir() / recipe.folder_name) is None]


def _python() -> Iterator[Checkup]:
    version = platform.python_version()
    outside = [recipe for recipe in RECIPES if version not in SpecifierSet(recipe.python)]
    if outside:
        names = ", ".join(f"{recipe.name} needs {recipe.python}" for recipe in outside)
        yield Checkup("python", f"Python {version}: {names}.", "Install optistack under a Python in that range.")
    elif importlib.util.find_spec("ensurepip") is None:
        yield Checkup(
            "python",
            f"Python {version} cannot make environments for engines: it has no ensurepip.",
            "Install Python's venv module; on Debian and Ubuntu it is the package python3-venv.",
        )
    else:
        yield Checkup("python", f"Python {version}, which every engine that can be installed takes.")


def _folders() -> Iterator[Checkup]:
    for name, folder, used, variable in (
        ("cache", paths.cache_dir(), (paths.engines_dir(), paths.models_dir()), "XDG_CACHE_HOME"),
        ("state", paths.state_dir(), (paths.deployments_dir(),), "XDG_STATE_HOME"),
    ):
        places = (_nearest(one) for one in (folder, *used))
        closed = [place for place in places if not _takes_a_folder(place)]
        if not closed:
            yield Checkup(name, f"{folder} can be written.")
        else:
            mend = f"Make {closed[0]} a folder that you may write to, or set {variable} to another."
            yield Checkup(name, f"{folder} cannot be written.", mend)


def _takes_a_folder(there: Path) -> bool:
    """Tried, since permissions do not tell: root has them all, and file systems such as /proc take nothing."""
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".optistack-"):
            return True
    except OSError:
        return False


def _nearest(folder: Path) -> Path:
    """``folder``, or the deepest of those above it that is there; a link that leads nowhere is there, and no folder."""
    return next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())


def _disk() -> Checkup:
    folder = paths.cache_dir()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    missing = sorted(_missing(), key=lambda recipe: recipe.disk_bytes)
    fits = [recipe for recipe in missing if recipe.disk_bytes <= free]
    says = f"{free / 1e9:.1f} GB free in {folder}"
    mend = "Free some, or set XDG_CACHE_HOME to a folder on a larger disk."
    if missing and not fits:
        return Checkup("disk", f"{says}; {missing[0].name} takes {missing[0].disk_bytes / 1e9:.1f} GB.", mend)
    if free < LEAST_DISK_BYTES:
        return Checkup("disk", f"{says}; logs and models want {LEAST_DISK_BYTES / 1e9:.0f} GB.", mend)
    room = ", ".join(f"{recipe.name} ({recipe.disk_bytes / 1e9:.1f} GB)" for recipe in fits)
    return Checkup("disk", f"{says}{f': room for {room}' if room else ''}.")


def _ram(root: Path) -> Checkup:
    import psutil

    limit = ram_bytes(root)
    free = min(psutil.virtual_memory().available, limit)
    says = f"{free / 2**30:.1f} of {limit / 2**30:.1f} GiB of RAM available"
    if free < LEAST_RAM_BYTES:
        mend = "End what takes it, or raise the limit of the container."
        return Checkup("ram", f"{says}; an engine on the CPU wants {LEAST_RAM_BYTES / 2**30:.0f} GiB.", mend)
    return Checkup("ram", f"{says}.")


def _gpu(root: Path) -> Checkup:
    program = shutil.which("nvidia-smi")
    if program is None:
        if any((root / "dev").glob("nvidia[0-9]*")) or _nvidia_on_the_bus(root):
            mend = (
                "Install the NVIDIA driver with its nvidia-smi; a container gets both from NVIDIA's container toolkit."
            )
            return Checkup("gpu", "There is an NVIDIA GPU, and no nvidia-smi to ask about it.", mend)
        return Checkup("gpu", "No NVIDIA GPU: engines run on the CPU here; plans for GPUs need none.")
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Checkup("gpu", f"nvidia-smi does not answer: {error}.", "Restart the machine or its NVIDIA driver.")
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        return Checkup("gpu", f"nvidia-smi finds no driver: {said.rstrip('.')}.", "Install or load the NVIDIA driver.")
    try:
        node = detect_node()
    except InputError as error:
        return Checkup("gpu", error.message, error.fix)
    if node.gpu is None:
        return Checkup("gpu", "nvidia-smi shows no GPU that this process may use.", "Set CUDA_VISIBLE_DEVICES to one.")
    return Checkup("gpu", f"{node.gpus} x {node.gpu.name}, SM{node.gpu.sm}.")


def _nvidia_on_the_bus(root: Path) -> bool:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == NVIDIA and kind.startswith(DISPLAY_CLASSES):
            return True
    return False


def _engines() -> Iterator[Checkup]:
    folder = paths.engines_dir()
    homes = sorted(home for home in folder.glob("[!.]*") if home.is_dir()) if folder.is_dir() else []
    if not homes:
        yield Checkup("engines", "None is installed; `optistack engines` lists those that can be.")
    for home in homes:
        yield _engine(home)


def _engine(home: Path) -> Checkup:
    name = f"engine {home.name}"
    recipe = next((recipe for recipe in RECIPES if recipe.folder_name == home.name), None)
    anew = f"optistack engine install {recipe.name}" if recipe else ""
    again = f"Remove it with `rm -r {home}`" + (f" and run `{anew}`." if anew else ".")
    environment = read_environment(home)
    if environment is None:
        # An install replaces what is unfinished by itself.
        return Checkup(name, f"{home} is unfinished, or its Python is gone.", f"Run `{anew}`." if anew else again)
    lost = _lost(environment)
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        return Checkup(name, f"{home} has changed since it was made: {', '.join(lost[:3])}{more}.", again)
    if recipe is not None and environment.recipe != recipe.digest:
        return Checkup(name, f"{home} was made by an older optistack, in another way.", f"Run `{anew}`.")
    return Checkup(name, f"whole, {len(environment.packages)} packages, torch {environment.torch_version}.")


def _lost(environment: EngineEnvironment) -> list[str]:
    """Packages that are gone or of another version; pip, which anybody may renew, aside."""
    # An engine's imports may put those that setuptools carries on the path, and they are recorded then.
    places = ("lib/python*/site-packages", "lib/python*/site-packages/setuptools/_vendor")
    folders = [str(path) for place in places for path in environment.home.glob(place)]
    there: dict[str, list[str]] = {}
    for found in distributions(path=folders):
        there.setdefault(found.metadata["Name"], []).append(found.version)
    return [
        f"{name} {version} is {' and '.join(there.get(name, ['gone']))}"
        for name, version in sorted(environment.packages.items())
        if name != "pip" and version not in there.get(name, [])
    ]


def _models() -> Iterator[Checkup]:
    for name, recipe in MODELS.items():
        home = paths.models_dir() / name
        if not home.exists():
            continue
        if is_whole(home, recipe.revision):
            yield Checkup(f"model {name}", f"whole, in {home}.")
        else:
            says = f"{home} is not what `optistack model fetch` makes: files are missing, changed or older."
            yield Checkup(f"model {name}", says, f"Run `optistack model fetch {name}`.")


def _ports() -> Checkup:
    try:
        return Checkup("ports", f"{free_port()} is free on 127.0.0.1, and so are others.")
    except OSError as error:
        mend = "Let processes listen on 127.0.0.1: see `ip addr show lo` and the sandbox that this runs in."
        return Checkup("ports", f"Nothing can listen on 127.0.0.1: {error.strerror or error}.", mend)


def _plugins() -> Iterator[Checkup]:
    host = Host.from_environment()
    for failure in host.failures:
        mend = f"Mend or remove it: pip uninstall {failure.distribution.partition(' ')[0]}"
        yield Checkup(f"plugin {failure.name}", f"It does not load: {failure.error}", mend)
    working = ", ".join(plugin.name for plugin in host.plugins())
    yield Checkup("plugins", f"{working}." if working else "None is installed.")
