"""Training: blocks at random anchors of the target's own answers, pulled towards what the target would say there."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from optistack.errors import CheckFailedError, InputError
from optistack_dflash.drafter.acceptance import Acceptance, measure
from optistack_dflash.drafter.blocks import blocks_at, draft_hidden, sample_anchors
from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.losses import TEACHERLESS, head_loss, position_weights
from optistack_dflash.drafter.network import Drafter, save_drafter, write_whole
from optistack_dflash.drafter.recipe import Recipe
from optistack_dflash.drafter.target import Target
from optistack_dflash.drafter.transfers import Fetched, moved

FIRST_STEPS, FIRST_S = 10, 10.0
"""What has to be done, the one or the other, before the first word of how it goes."""


@dataclass
class State:
    """Where training stands. ``elapsed_s`` counts over resumptions."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    elapsed_s: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains ``drafter`` in place and keeps it in ``out``, a folder that engines can load at any time; what is needed
    to go on is in ``out/training``. ``tell`` is given each report; ``begun``, once and before them, the step, the mean
    loss and the steps a second."""

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        corpus: Corpus,
        held_out: Corpus | None,
        recipe: Recipe,
        out: Path,
        tell: Callable[[dict[str, Any]], None] = lambda report: None,
        begun: Callable[[int, float, float], None] = lambda step, loss, steps_s: None,
    ) -> None:
        self.drafter, self.target, self.corpus, self.held_out = drafter.to(target.device), target, corpus, held_out
        self.recipe, self.out, self.tell, self.state = recipe, out, tell, State()
        self.begun = begun
        target.check(drafter.shape)
        self._optimizer = torch.optim.AdamW(
            drafter.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
        )
        self._weights = position_weights(drafter.shape.block_size, recipe.decay)
        self._dice = torch.Generator().manual_seed(recipe.seed)
        # Loss and gradient norm of the step that the device may still be at: to read them would be to wait for it.
        self._unread: tuple[int, Fetched] | None = None

    @property
    def _file(self) -> Path:
        return self.out / "training" / "state.pt"

    def run(self) -> Acceptance | None:
        """Train to the end of the recipe; the last held-out acceptance. CheckFailedError when loss or gradient is not a
        number: ``out`` then holds the last report's weights. InputError when the disk is full."""
        recipe, state = self.recipe, self.state
        began, before_s = time.monotonic(), state.elapsed_s
        batches = self._batches()
        acceptance: Acceptance | None = None
        losses: list[float] = []
        quiet, first, warm_s = True, state.step + 1, 0.0
        self.drafter.train()
        while state.step < recipe.steps and state.elapsed_s < recipe.max_s:
            losses.extend(self._step(batches))
            state.step += 1
            state.elapsed_s = before_s + time.monotonic() - began
            ended = state.step >= recipe.steps or state.elapsed_s >= recipe.max_s
            if ended or state.step % recipe.report_every == 0:
                losses.extend(self._read())
                acceptance = self._report(losses)
                losses, quiet = [], False
            elif state.step == first:
                warm_s = state.elapsed_s  # much of it is what the first step alone has to do
            elif quiet and (state.step - first + 1 >= FIRST_STEPS or state.elapsed_s - before_s >= FIRST_S):
                quiet = False
                pace = (state.step - first) / max(state.elapsed_s - warm_s, 1e-9)
                self.begun(state.step, sum(losses) / len(losses), pace)
        return acceptance

    def resume(self) -> bool:
        """Go on from ``out``; False when nothing was kept there. Another recipe takes over where the last one stood.

        InputError when there is a drafter alone, one of another shape, or what cannot be read."""
        shape = self.drafter.shape.fields()
        if not self._file.is_file():
            if (self.out / "config.json").exists():
                raise InputError(
                    f"{self.out} holds a drafter and nothing to go on from.",
                    fix="Give another folder; dflash finetune trains a drafter further.",
                )
            return False
        try:
            # To the CPU, where AdamW keeps its count of steps: it reads the count of each weight in every step.
            kept = torch.load(self._file, map_location="cpu", weights_only=True)
            # Blocks of another size or other layers to read fit into the same tensors.
            differs = [key for key, value in kept.get("shape", shape).items() if shape[key] != value]
            if differs:
                raise ValueError(f"it was trained with another {differs[0]}")
            self.drafter.load_state_dict(kept["drafter"])
            self._optimizer.load_state_dict(kept["optimizer"])
            self._dice.set_state(kept["dice"])
            self.state = State(**kept["state"])
        except (OSError, EOFError, UnpicklingError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Training cannot be resumed from {self._file}: {error}.",
                fix="Give the options that it was begun with, or another folder.",
            ) from error
        return True

    def _batches(self) -> Iterator[list[int]]:
        """Batches from where the state stands, epoch after epoch."""
        while True:
            seed = self.recipe.seed * 1_000_003 + self.state.epoch
            for number, rows in enumerate(self.corpus.epoch(seed, self.recipe.batch_tokens)):
                if number >= self.state.batch:
                    self.state.batch += 1
                    yield rows
            self.state.epoch += 1
            self.state.batch = 0

    def _step(self, batches: Iterator[list[int]]) -> list[float]:
        """Make a step; the loss of the one before, which is read now that the device has more to do."""
        recipe, total = self.recipe, torch.zeros((), device=self.target.device)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate(self.state.step, self.state.elapsed_s)
        for _ in range(recipe.accumulate):
            loss = self._loss(next(batches)) / recipe.accumulate
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), recipe.clip)
        before = self._read()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._unread = (self.state.step + 1, Fetched(torch.stack((total, norm))))
        return before

    def _read(self) -> list[float]:
        """The loss of the last step that was made; none when it was read already."""
        if self._unread is None:
            return []
        step, both = self._unread
        total, norm = both.read()
        self._unread = None
        if not math.isfinite(total) or not math.isfinite(norm):
            what = "loss" if not math.isfinite(total) else "gradient"
            kept = f"{self.out} holds step {self.state.log[-1]['step']}" if self.state.log else "nothing was kept yet"
            raise CheckFailedError(
                f"Training stopped at step {step}: the {what} is not a number; {kept}.",
                fix="Resume with a lower learning rate.",
            )
        return [total]

    def _loss(self, rows: list[int]) -> torch.Tensor:
        target, shape, recipe = self.target, self.drafter.shape, self.recipe
        on = self.corpus.device
        # Which blocks there are is worked out on the CPU: their number decides shapes, which would wait for the device.
        here = self.corpus.batch(rows)
        anchors, valid = sample_anchors(here, recipe.anchors, self._dice)
        blocks = blocks_at(here, anchors, valid, shape.block_size)
        known = blocks.known.flatten().nonzero().squeeze(1)
        # The target's state one token earlier says what it would emit at the drafted position.
        before = anchors[..., None] + torch.arange(shape.block_size - 1)
        row = torch.arange(len(rows))[:, None, None] * here.tokens.shape[1]
        earlier = moved((row + before).flatten()[known], on)
        labels = moved(blocks.labels.flatten()[known], on)
        weights = moved(self._weights.expand_as(blocks.known).flatten()[known], on)
        tokens, anchors, known = moved(here.tokens, on), moved(anchors, on), moved(known, on)
        states, last = target.states(tokens, shape.captured_layers)
        with torch.autocast(on.type, torch.bfloat16):
            hidden = draft_hidden(self.drafter, target, tokens, states, anchors)
        teacher = None if recipe.loss in TEACHERLESS else last.flatten(0, 1)[earlier]
        return head_loss(
            hidden.flatten(0, 2)[known], teacher, labels, weights, target.head, recipe.loss, recipe.chunk_tokens
        )

    def _report(self, losses: list[float]) -> Acceptance | None:
        acceptance = measure(self.drafter, self.target, self.held_out) if self.held_out else None
        report: dict[str, Any] = {
            "step": self.state.step,
            "epoch": self.state.epoch,
            "seconds": round(self.state.elapsed_s, 1),
            "loss": round(sum(losses) / len(losses), 4),
        }
        if acceptance:
            report["acceptance_length"] = round(acceptance.length, 4)
            report["by_position"] = [round(share, 4) for share in acceptance.by_position]
        self.state.log.append(report)
        self._keep()
        self.tell(report)
        return acceptance

    def _keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        kept = {
            "shape": self.drafter.shape.fields(),
            "drafter": self.drafter.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "dice": self._dice.get_state(),
            "state": asdict(self.state),
        }
        torch.save(kept, content)
        write_whole(self._file, content.getvalue())
        save_drafter(self.drafter, self.out)
        lines = "".join(json.dumps(report) + "\n" for report in self.state.log)
        write_whole(self._file.with_name("log.jsonl"), lines.encode())
