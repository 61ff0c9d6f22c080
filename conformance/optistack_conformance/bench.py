"""What a plugin's own conformance cases are made with: an engine that can be asked for scored tokens.

from optistack_conformance.bench import Answer, Bench, bench_case

def unchanged(bench: Bench) -> Answer:
    run = bench.run(bench.prompts(6, "mine"))
    verdict = bench.margin(run)
    return Answer.of(verdict.passed, verdict.describe(), proof="prompt logprobs")

CASES = [bench_case("mine/unchanged", tier=1, summary="...", asked="...", work=unchanged)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optistack.cases import ConformanceCase
from optistack.errors import CheckFailedError
from optistack.verify.receipt import CheckResult, Status
from optistack_conformance import margin
from optistack_conformance.answers import NotScoredError
from optistack_conformance.client import Client
from optistack_conformance.engine import EngineInfo, read_engine
from optistack_conformance.margin import MarginVerdict
from optistack_conformance.outcomes import InconclusiveError
from optistack_conformance.scoring import Scorer
from optistack_conformance.sequences import Measured, Run, counted, fresh_prompts, measure, scored_tokens

if TYPE_CHECKING:
    from optistack.verify.endpoint import Endpoint

SEQUENCE_TOKENS = 24


@dataclass(frozen=True)
class Answer:
    """What a case found. ``says`` in the engine's terms, ``proof`` where it is seen, ``why`` what it means."""

    status: Status
    says: str
    proof: str = ""
    why: str = ""

    @classmethod
    def of(cls, kept: bool, says: str, *, proof: str = "", why: str = "") -> Answer:
        """PASS or FAIL; ``why`` is said of a failure only."""
        return cls(Status.PASS if kept else Status.FAIL, says, proof, "" if kept else why)


@dataclass(frozen=True)
class Bench:
    """An engine that scores tokens. ``tokens`` are generated after every prompt."""

    client: Client
    engine: EngineInfo
    scorer: Scorer
    tokens: int = SEQUENCE_TOKENS

    @classmethod
    def at(cls, endpoint: Endpoint) -> Bench:
        """Raises NotScoredError where the engine cannot score."""
        client, engine = Client.over(endpoint), read_engine(endpoint)
        return cls(client, engine, Scorer(client, engine.name))

    def prompts(self, number: int, name: str) -> list[tuple[int, ...]]:
        """Prompts that the server has not seen, three pages each: a first page of its own, then two that all share."""
        return fresh_prompts(self.scorer, number=number, page_tokens=self.engine.page_tokens, seed=name)

    def run(self, prompts: Sequence[tuple[int, ...]], *, concurrency: int = 4, alone: int | None = None) -> Run:
        """Greedy generations, scored; ``alone`` of them one by one (half, unless said), the others ``concurrency`` at a
        time."""
        return counted(
            self.client,
            lambda: measure(self.scorer, prompts, max_tokens=self.tokens, concurrency=concurrency, alone=alone),
        )

    def margin(self, *runs: Run) -> MarginVerdict:
        """Whether every greedy token is the model's own, by the bound of the engine's KV dtype."""
        sequences: list[Measured] = [one for run in runs for one in run.sequences]
        return margin.judge(scored_tokens(sequences), margin.bound_nat(self.engine.kv_dtype))


def bench_case(
    case_id: str, *, tier: int, summary: str, asked: str, work: Callable[[Bench], Answer]
) -> ConformanceCase:
    """``work`` as a case. An engine that cannot score or count is unproven, one that answers with an error fails."""

    def run(endpoint: Endpoint) -> CheckResult:
        try:
            answer = work(Bench.at(endpoint))
        except NotScoredError as error:
            answer = Answer(Status.UNPROVEN, "no scores", why=str(error))
        except InconclusiveError as error:
            answer = Answer(Status.UNPROVEN, "nothing", why=str(error))
        except CheckFailedError as error:
            answer = Answer(Status.FAIL, "an error", why=str(error))
        return CheckResult(
            id=case_id,
            promised_by=case_id.partition("/")[0],
            asked=asked,
            engine_says=answer.says,
            proof=answer.proof,
            status=answer.status,
            why=answer.why,
        )

    return ConformanceCase(id=case_id, tier=tier, summary=summary, run=run)
