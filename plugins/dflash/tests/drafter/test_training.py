"""Training goes on where it stopped, keeps the last good drafter, and refuses what it cannot learn from."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from optistack.errors import CheckFailedError, InputError
from optistack_dflash.drafter import trainer as trainer_module
from optistack_dflash.drafter.corpus import Corpus
from optistack_dflash.drafter.losses import LOSSES, head_loss
from optistack_dflash.drafter.network import Drafter, load_drafter
from optistack_dflash.drafter.provenance import Provenance
from optistack_dflash.drafter.recipe import Recipe
from optistack_dflash.drafter.shape import DrafterShape
from optistack_dflash.drafter.shards import Recorded, read_folder, write_shard
from optistack_dflash.drafter.trainer import Trainer
from optistack_dflash.drafter.transfers import Fetched

CPU = torch.device("cpu")


@pytest.fixture
def train(target: Any, answers: list[Recorded], shape: DrafterShape, tmp_path: Path) -> Any:
    def make(out: str = "out", **recipe: Any) -> Trainer:
        torch.manual_seed(0)
        corpus = Corpus(answers, CPU, max_tokens=64)
        given = {"steps": 12, "report_every": 4, "batch_tokens": 128, "anchors": 8, **recipe}
        return Trainer(Drafter(shape), target, corpus, None, Recipe(**given), tmp_path / out)

    return make


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_drafter(folder).state_dict()


def test_a_training_that_was_broken_off_ends_as_if_it_had_not_been(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train("whole")
    whole.run()

    broken = train("broken")
    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, batches: 1 / 0 if self.state.step == 6 else step(self, batches))
    with pytest.raises(ZeroDivisionError):
        broken.run()
    monkeypatch.undo()
    again = train("broken")
    assert again.resume()
    assert again.state.step == 4
    again.run()

    assert [one["step"] for one in again.state.log] == [4, 8, 12]
    for name, value in weights(whole.out).items():
        assert torch.equal(value, weights(again.out)[name]), name


@pytest.mark.parametrize("changed", [{"block_size": 5}, {"captured_layers": (0, 3)}, {"mask_token_id": 62}])
def test_a_training_does_not_go_on_with_other_blocks(train: Any, changed: dict[str, Any]) -> None:
    trainer = train(steps=4)
    trainer.run()
    more = train(steps=8)
    more.drafter.shape = replace(more.drafter.shape, **changed)
    with pytest.raises(InputError, match=f"another {next(iter(changed))}"):
        more.resume()


def test_a_drafter_without_its_training_is_not_written_over(train: Any) -> None:
    trainer = train(steps=4)
    trainer.run()
    (trainer.out / "training" / "state.pt").write_bytes(b"no state")
    with pytest.raises(InputError, match="cannot be resumed"):
        train().resume()
    (trainer.out / "training" / "state.pt").unlink()
    with pytest.raises(InputError, match="holds a drafter and nothing to go on from"):
        train().resume()


def test_accumulated_micro_batches_train_too(train: Any) -> None:
    trainer = train(accumulate=3, steps=4)
    before = {name: value.clone() for name, value in trainer.drafter.state_dict().items()}
    trainer.run()
    assert any(not torch.equal(value, before[name]) for name, value in trainer.drafter.state_dict().items())


class Reads(TorchDispatchMode):
    """Notes in ``found`` what waits for the device: a number read from it, a shape that depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.found.append(str(op))
        return op(*args, **(kwargs or {}))


def test_a_step_reads_nothing_that_a_gpu_would_still_have_to_compute(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train()
    batches = trainer._batches()
    trainer._step(batches)
    # AdamW reads its count of steps, which is the CPU's everywhere.
    monkeypatch.setattr(trainer._optimizer, "step", lambda: None)
    with Reads() as reads:
        assert len(trainer._step(batches)) == 1
    # Which places of the blocks are known is worked out on the CPU.
    assert reads.found == ["aten.nonzero.default"]


def test_the_first_line_comes_long_before_the_first_report(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = train(steps=30, report_every=25)
    told: list[tuple[int, float, float]] = []
    trainer.begun = lambda *said: told.append(said)
    losses: list[float] = []
    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, batches: losses.extend(found := step(self, batches)) or found)
    trainer.run()
    ((at, loss, steps_s),) = told
    assert at == 10
    assert loss == pytest.approx(sum(losses[:9]) / 9), "that of step 10 is still the device's"
    assert steps_s > 0
    assert [one["step"] for one in trainer.state.log] == [25, 30]


def test_slow_steps_are_told_after_some_seconds(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 6))
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    trainer = train(report_every=12)
    told: list[tuple[int, float, float]] = []
    trainer.begun = lambda *said: told.append(said)
    trainer.run()
    assert [at for at, *_ in told] == [2], "after 12 s; the loss of the first step is known in the second"


def test_a_report_that_comes_early_needs_no_line_before(train: Any) -> None:
    trainer = train(report_every=4)
    trainer.begun = lambda *said: pytest.fail("told")
    trainer.run()


def test_the_first_line_reads_nothing_of_the_device(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    read = Fetched.read
    monkeypatch.setattr(Fetched, "read", lambda self: fetched.append("fetched") or read(self))

    def run(out: str) -> list[str]:
        trainer = train(out, steps=24, report_every=24)
        trainer.begun = lambda *said: told.append(said)
        fetched.clear()
        with Reads() as reads:
            trainer.run()
        return [*reads.found, *fetched]

    told: list[Any] = []
    with_line = run("with")
    monkeypatch.setattr(trainer_module, "FIRST_STEPS", 10_000)
    assert run("without") == with_line
    assert len(told) == 1


def test_attention_is_not_planned_for_every_shape(target: Any) -> None:
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(("bad", "good"), [(8, 4), (10, 8)])
def test_not_a_number_stops_with_the_step_and_keeps_the_last_good_drafter(
    train: Any, monkeypatch: pytest.MonkeyPatch, bad: int, good: int
) -> None:
    trainer = train()
    loss = Trainer._loss
    monkeypatch.setattr(
        Trainer, "_loss", lambda self, rows: loss(self, rows) * (float("nan") if self.state.step == bad - 1 else 1.0)
    )
    with pytest.raises(
        CheckFailedError, match=f"stopped at step {bad}: the loss is not a number.* holds step {good}"
    ) as failed:
        trainer.run()
    assert "lower learning rate" in failed.value.fix
    assert all(value.isfinite().all() for value in weights(trainer.out).values())


def test_a_full_disk_leaves_the_drafter_that_was_there(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = train(steps=4)
    trainer.run()
    good, files = weights(trainer.out), sorted(trainer.out.rglob("*"))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("optistack.files.os.fsync", full)
    more = train(steps=8)
    assert more.resume()
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        more.run()
    for name, value in weights(trainer.out).items():
        assert torch.equal(value, good[name])
    assert sorted(trainer.out.rglob("*")) == files


def test_a_drafter_that_is_a_link_is_written_where_it_points(train: Any, tmp_path: Path) -> None:
    trainer = train(steps=4)
    trainer.out.mkdir()
    (trainer.out / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    trainer.run()
    assert (trainer.out / "model.safetensors").is_symlink()
    assert load_file(tmp_path / "elsewhere.safetensors").keys() == trainer.drafter.state_dict().keys()


def test_seconds_end_a_training_too(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(trainer_module.time, "monotonic", lambda: float(next(clock)))
    trainer = train(steps=1000, max_s=20.0)
    trainer.run()
    assert trainer.state.step == 4
    assert json.loads((trainer.out / "training" / "log.jsonl").read_text().splitlines()[-1])["step"] == 4


@pytest.mark.parametrize("kind", sorted(LOSSES))
def test_the_loss_in_chunks_is_the_loss_at_once(kind: str) -> None:
    torch.manual_seed(0)
    hidden, teacher, head = torch.randn(10, 8), torch.randn(10, 8), torch.randn(20, 8)
    labels, scale = torch.randint(0, 20, (10,)), torch.rand(10)
    one = hidden.clone().requires_grad_()
    plain = (LOSSES[kind](one @ head.T, teacher @ head.T, labels) * scale).sum() / scale.sum()
    plain.backward()
    two = hidden.clone().requires_grad_()
    chunked = head_loss(two, teacher, labels, scale, head, kind, 3)
    chunked.backward()
    assert torch.allclose(plain, chunked)
    assert torch.allclose(one.grad, two.grad, atol=1e-6)
    if kind != "ce":
        same = head_loss(teacher.clone().requires_grad_(), teacher, labels, scale, head, kind, 4)
        assert same.abs() < 1e-5


def record(folder: Path, teacher: Any, answers: list[Recorded], **changes: str) -> None:
    provenance = Provenance(teacher.name, teacher.revision, teacher.template, (("temperature", 0.0),), "test 1")
    provenance = replace(provenance, **changes)  # type: ignore[arg-type]  # all of them are text
    write_shard(folder / "one.safetensors", answers, domain="code", provenance=provenance)


def test_recorded_tokens_come_back_as_they_were(target: Any, answers: list[Recorded], tmp_path: Path) -> None:
    record(tmp_path, target, answers)
    assert read_folder(tmp_path, revision=target.revision, template=target.template, target=target.name) == answers


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"revision": "0" * 32, "target": "other"}, "was written by another target: other"),
        ({"template": "0" * 32}, "another chat template"),
    ],
)
def test_tokens_of_another_target_or_template_are_refused(
    target: Any, answers: list[Recorded], tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    record(tmp_path, target, answers, **changes)
    with pytest.raises(InputError, match=says):
        read_folder(tmp_path, revision=target.revision, template=target.template, target=target.name)


def test_a_damaged_shard_is_named(target: Any, answers: list[Recorded], tmp_path: Path) -> None:
    record(tmp_path, target, answers)
    file = tmp_path / "one.safetensors"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"one\.safetensors cannot be read"):
        read_folder(tmp_path, revision=target.revision, template=target.template, target=target.name)


def test_a_drafter_for_another_target_is_refused(target: Any, shape: DrafterShape) -> None:
    with pytest.raises(InputError, match="vocabulary of 100 and hidden size 32"):
        target.check(replace(shape, vocab=100))
    with pytest.raises(InputError, match="made for a target of 5 layers"):
        target.check(replace(shape, target_layers=5))


def test_answers_too_short_to_learn_from_are_refused() -> None:
    with pytest.raises(InputError, match="None of 1 sequences has an answer of two tokens"):
        Corpus([Recorded((1, 2, 3), 2)], CPU, max_tokens=64)
