"""How far a routed request has come, and its present try: one value each, and what may follow it."""

from __future__ import annotations

from enum import Enum
from typing import Self


class Stage(Enum):
    """``after`` are the stages that may follow; another one is a bug. A tuple, since few members are told apart faster
    one by one than by the hash of an Enum.
    """

    after: tuple[Stage, ...]

    def then(self, stage: Self) -> Self:
        """``stage``, if it may follow this one. Raises RuntimeError."""
        if stage not in self.after:
            raise RuntimeError(f"{stage} does not follow {self}")
        return stage


class RequestStage(Stage):
    """A request holds nothing before and after, and one thing in each stage between."""

    READ = "read whole"
    PREDICTING = "precise mode looks up what each replica has cached of it"
    ASKING = "waits at the desk for a place"
    TRYING = "has a try"
    OVER = "over"


class TryStage(Stage):
    """A try holds its place until it is over, and from SENT on a connection to the replica."""

    PLACED = "has a place"
    CONNECTING = "waits for a connection"
    SENT = "the replica has the request, and has not answered"
    HOLDING = "the answer's head is here, and kept until a byte of its body has come"
    TURNED_AWAY = "an answer that sends the request elsewhere comes in, and is kept in case that nobody else takes it"
    PASSING = "the client has part of the answer: there is no way back"
    OVER = "over"


def _lead(*ways: tuple[Stage, *tuple[Stage, ...]]) -> None:
    for stage, *after in ways:
        stage.after = tuple(after)


_lead(
    (RequestStage.READ, RequestStage.ASKING, RequestStage.PREDICTING),
    (RequestStage.PREDICTING, RequestStage.ASKING, RequestStage.OVER),
    (RequestStage.ASKING, RequestStage.TRYING, RequestStage.OVER),
    (RequestStage.TRYING, RequestStage.OVER, RequestStage.ASKING),
    (RequestStage.OVER,),
    (TryStage.PLACED, TryStage.SENT, TryStage.CONNECTING, TryStage.OVER),
    (TryStage.CONNECTING, TryStage.SENT, TryStage.OVER),
    (TryStage.SENT, TryStage.HOLDING, TryStage.TURNED_AWAY, TryStage.CONNECTING, TryStage.OVER),
    (TryStage.HOLDING, TryStage.PASSING, TryStage.OVER),
    (TryStage.TURNED_AWAY, TryStage.PASSING, TryStage.OVER),
    (TryStage.PASSING, TryStage.OVER),
    (TryStage.OVER,),
)
